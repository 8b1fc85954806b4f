"""Advantages: who gets the credit? Transforms that write `advantage` [B,T]."""

from melior.advantages.decoupled import GroupDecoupled
from melior.advantages.gae import GAE, TerminalReward
from melior.advantages.group import GroupRelative, LeaveOneOut, PositiveOnly, Reward
from melior.advantages.sibling import SiblingBaseline
from melior.advantages.tree import PrefixTree
from melior.advantages.whiten import Whiten

__all__ = [
    "GAE",
    "GroupDecoupled",
    "GroupRelative",
    "LeaveOneOut",
    "PositiveOnly",
    "PrefixTree",
    "Reward",
    "SiblingBaseline",
    "TerminalReward",
    "Whiten",
]

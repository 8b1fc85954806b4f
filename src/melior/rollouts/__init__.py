"""Rollouts: how do we act to get trajectories?"""

from melior.rollouts.blends import TrustBlend
from melior.rollouts.environments import VectorEnvs
from melior.rollouts.group import Group, GroupWithGreedy

__all__ = ["Group", "GroupWithGreedy", "TrustBlend", "VectorEnvs"]

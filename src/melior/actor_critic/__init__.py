"""Parts of the actor-critic frame: networks, losses, exploration, and what is remembered."""

from melior.actor_critic.acting import Explore
from melior.actor_critic.losses import Ascend, NetLoss, SumOfLosses, TDError
from melior.actor_critic.networks import Actor, Critics, Network
from melior.actor_critic.replay import Replay, Transitions

__all__ = [
    "Actor",
    "Ascend",
    "Critics",
    "Explore",
    "NetLoss",
    "Network",
    "Replay",
    "SumOfLosses",
    "TDError",
    "Transitions",
]

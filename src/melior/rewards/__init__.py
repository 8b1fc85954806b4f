"""The reward stage: how good was it? Reward functions, built-in verifiers, and the parts that combine them."""

from melior.rewards.combine import OverlongPenalty, Sum

__all__ = ["OverlongPenalty", "Sum"]

"""Rollouts: how do we act to get trajectories?"""

from melior.rollouts.group import Group, GroupWithGreedy

__all__ = ["Group", "GroupWithGreedy"]

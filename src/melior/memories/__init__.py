"""Memories: what outlives a step?"""

from melior.memories.ridge_probe import RidgeProbe
from melior.memories.running_mean import RunningMean

__all__ = ["RidgeProbe", "RunningMean"]

"""Curricula: what do we try next, what do we keep?"""

from melior.curricula.mixed import MixedGroups

__all__ = ["MixedGroups"]

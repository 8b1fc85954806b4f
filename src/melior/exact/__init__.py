"""Finite problems, solved exactly."""

from melior.exact.mdp import FiniteMDP, chain, problem
from melior.exact.value_iteration import ValueIteration

__all__ = ["FiniteMDP", "ValueIteration", "chain", "problem"]

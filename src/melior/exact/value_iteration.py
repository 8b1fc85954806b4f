"""Value iteration."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from melior.exact.mdp import FiniteMDP
from melior.frames import Solution, Solver


@dataclass(frozen=True)
class ValueIteration(Solver):
    """V <- max_a (r + gamma * P V), from 0, until the certificate is small enough.

    The Bellman operator is a contraction by gamma in the largest norm, so |V_k+1 - V*| <= gamma / (1 - gamma) *
    |V_k+1 - V_k|: that bound is the certificate. The policy is greedy for the last V, and its own value is within
    2 * gamma / (1 - gamma) times the certificate of the best.

    Source: Puterman 1994, "Markov Decision Processes", theorem 6.3.1.

    Attributes:
        tolerance: the certificate to reach.
        sweeps: sweeps at most; the certificate says what was reached.
    """

    tolerance: float = 1e-8
    sweeps: int = 100_000

    def __call__(self, problem: FiniteMDP) -> Solution:
        value, trace = torch.zeros_like(problem.reward[:, 0]), []
        for _ in range(self.sweeps):
            new = problem.look_ahead(value).amax(-1)
            trace.append(problem.gamma / (1 - problem.gamma) * float((new - value).abs().max()))
            value = new
            if trace[-1] <= self.tolerance:
                break
        best = problem.look_ahead(value).argmax(-1)
        policy = torch.nn.functional.one_hot(best, problem.reward.shape[1]).to(value.dtype)
        return Solution(policy, value, trace[-1] if trace else float("inf"), tuple(trace))

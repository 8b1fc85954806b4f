"""Runs of solvers: the certificate after each sweep, as the outer loop sees training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from melior.exact.mdp import problem
from melior.frames import Solution, Solver, SolverSettings
from melior.loops.given import Given
from melior.storage.folder import RunFolder

SETTINGS = SolverSettings
DIGITS = 16  # at most: beyond them a float64 says nothing


def trainee(solver: Solver, settings: SolverSettings, given: Given | None = None) -> SolverTrainee:
    """A solver's run, ready for the outer loop."""
    return SolverTrainee(solver, settings)


class SolverTrainee:
    """A finite problem being solved: a step is a sweep, and the score counts the digits that are certain.

    The problem is solved at once and its trace told step by step; steps after the last sweep repeat it. Nothing is
    random, so every seed gives the same.

    Attributes:
        solver, settings: what solves, and what.
        solution: what it finds.
        step: sweeps told so far.
        notes, intact: see `Trainee`.
    """

    notes: tuple[str, ...] = ()
    intact = True

    def __init__(self, solver: Solver, settings: SolverSettings) -> None:
        self.solver, self.settings, self.step = solver, settings, 0
        self.solution: Solution = solver(problem(settings.problem))

    def advance(self) -> dict[str, float]:
        """The certificate of one more sweep."""
        self.step += 1
        return {"gap": self._gap()}

    def evaluate(self) -> Mapping[str, Any]:
        """The gap, and as "score" its digits, -log10(gap); nothing before the first sweep."""
        return {"score": digits(self._gap()), "gap": self._gap()} if self.step else {}

    def preview(self, short: bool = False) -> str:
        """What the run is about to do, in words."""
        states, actions = self.solution.policy.shape
        return f"{self.solver.name}: {self.settings.problem}, {states} states x {actions} actions"

    def state(self) -> dict[str, Any]:
        """How far it has been told."""
        return {"step": self.step}

    def save(self, folder: Path) -> None:
        """Writes `solution.safetensors`: the policy [S,A] and the value [S]."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, torch.Tensor] = {"policy": self.solution.policy, "value": self.solution.value}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "solution.safetensors")

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Back to a step; the solution is the same."""
        self.step = int(state["step"])

    def record(self, folder: RunFolder) -> None:
        """There are no rollouts."""

    def forget(self, folder: RunFolder) -> None:
        """There is nothing to remove."""

    def _gap(self) -> float:
        trace = self.solution.trace
        return trace[min(self.step, len(trace)) - 1] if trace else math.inf


def digits(gap: float) -> float:
    """How many decimal digits an error leaves right: -log10, at most 16; NaN for an infinite one."""
    if not math.isfinite(gap):
        return math.nan
    return float(DIGITS) if gap <= 10.0**-DIGITS else -math.log10(gap)

"""What a run of a comparison came to, read from its folder or, for finished runs, from whoever's log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from melior.errors import RunError
from melior.inspect.logs import RunLog
from melior.inspect.logs import read as read_log
from melior.inspect.logs.held_out import held_out_curve

AXES = ("step", "tokens", "seconds")


@dataclass(frozen=True)
class Point:
    """A held-out evaluation: after which step, sampled tokens and seconds of training, and its score."""

    step: int
    tokens: float
    seconds: float
    score: float

    def at(self, axis: str) -> float:
        """Where it stands on one of the axes."""
        return float(getattr(self, axis))


@dataclass(frozen=True)
class Outcome:
    """One run of a comparison.

    Attributes:
        label: the contender's.
        seed: its seed; runs of equal seed are paired.
        folder: its run folder, or the log it was read from.
        status: "finished", "interrupted", "crashed" or "missing".
        error: why it crashed or is missing.
        curve: its evaluations, the first one before training.
        measure: the held-out figure that they are of, by our name; "" without any.
        steps, tokens, seconds: what it spent; tokens are environment steps where no tokens are sampled.
        step_norm: mean length of the change of the weights in a step; NaN where it is not known.
        rows: mean rows learnt from in a step.
        settings: flat, by our names.
        lengths: that length for every step, from the first.
    """

    label: str
    seed: int
    folder: Path
    status: str
    error: str = ""
    curve: tuple[Point, ...] = ()
    measure: str = ""
    steps: int = 0
    tokens: float = math.nan
    seconds: float = math.nan
    step_norm: float = math.nan
    rows: float = math.nan
    settings: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[float, ...] = ()

    @property
    def final(self) -> float:
        """The last score; NaN for a run that did not finish."""
        return self.curve[-1].score if self.curve and self.status == "finished" else math.nan

    def end(self, axis: str) -> float:
        """How far its curve goes."""
        return self.curve[-1].at(axis) if self.curve else math.nan

    def as_dict(self) -> dict[str, Any]:
        """As it stands in `comparison.json`; the curve as [step, tokens, seconds, score]."""
        curve = [[p.step, p.tokens, p.seconds, p.score] for p in self.curve]
        return {
            "label": self.label, "seed": self.seed, "folder": str(self.folder), "status": self.status,
            "error": self.error, "final": self.final, "curve": curve, "measure": self.measure, "steps": self.steps,
            "tokens": self.tokens, "seconds": self.seconds, "step_norm": self.step_norm, "rows": self.rows,
        }  # fmt: skip


def outcome_of(label: str, folder: Path, seed: int | None = None, status: str = "finished", error: str = "") -> Outcome:
    """Reads a run; one that crashed before it wrote anything has nothing but its error.

    Args:
        label: the contender's.
        folder: a run folder, or a log of another trainer.
        seed: its seed; None takes the log's.
        status, error: how it ended.
    """
    if status != "finished" and not folder.exists():
        return Outcome(label, seed or 0, folder, status, error)
    try:
        log = read_log(folder)
    except RunError as damaged:
        return Outcome(label, seed or 0, folder, "crashed", error or str(damaged))
    own = log.settings.get("seed", 0)
    found = _figures(log)
    return Outcome(label, int(own) if seed is None else seed, folder, status, error, settings=log.settings, **found)


# ---- inside


def _figures(log: RunLog) -> dict[str, Any]:
    steps = log.steps
    made = steps > 0
    spent = log.metric("tokens")
    if np.isnan(spent).all():
        spent = log.metric("env_steps")
    tokens, seconds = np.nancumsum(spent), np.nancumsum(log.metric("step_seconds"))
    held_out = held_out_curve(log)
    places = {} if held_out is None else dict(zip(held_out.steps.tolist(), held_out.scores.tolist(), strict=True))
    curve = tuple(
        Point(int(steps[i]), float(tokens[i]), float(seconds[i]), places[int(steps[i])])
        for i in range(len(steps))
        if int(steps[i]) in places
    )
    lengths = _lengths(log)[made]
    return {
        "curve": curve,
        "measure": "" if held_out is None else held_out.name,
        "steps": int(steps[-1]) if len(steps) else 0,
        "tokens": math.nan if np.isnan(spent).all() else float(tokens[-1]),
        "seconds": math.nan if np.isnan(log.metric("step_seconds")).all() else float(seconds[-1]),
        "step_norm": _mean(lengths),
        "rows": _mean(log.metric("rows")[made]),
        "lengths": tuple(lengths.tolist()),
    }


def _lengths(log: RunLog) -> np.ndarray:
    """[S] length of each step's change: measured as a whole, or the sum of its updates' lengths."""
    whole, each = log.metric("step_norm"), log.metric("update_norm")
    updates = np.nan_to_num(log.metric("updates"), nan=1.0)
    found = np.where(np.isnan(whole), each * updates, whole)
    idle = np.isnan(found) & (log.metric("skipped") == 1)  # nothing was left to learn, and nothing moved
    return np.where(idle, 0.0, found)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan

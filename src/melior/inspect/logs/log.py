"""A run as it is looked at, whoever trained it: figures by step, settings, completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One completion. None where it is not known.

    Attributes:
        prompt, text: as text.
        reward: the shaped reward that was learnt from.
        components: raw rewards by name; one that does not apply is left out.
        advantage: mean over the tokens that are trained on; 0 where none is.
        length: tokens of the completion.
        truncated: whether the token limit cut it off.
        group: which prompt of the batch; completions of one prompt have the same.
        outcome: the raw figure that says whether it passed.
        version: the weights it was sampled from, as a number that rises with every set that the sampler is given; the
            oldest where tokens differ.
    """

    prompt: str | None = None
    text: str | None = None
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    length: int | None = None
    truncated: bool | None = None
    group: int | None = None
    outcome: float | None = None
    version: int | None = None


class Rollouts:
    """The completions of the steps that have some; a step is read when it is first asked for.

    Attributes:
        steps: which steps, rising.
    """

    def __init__(self, steps: Sequence[int] = (), read: Callable[[int], Sequence[Row]] | None = None) -> None:
        self.steps = tuple(sorted(steps))
        self._read = read
        self._known: dict[int, tuple[Row, ...]] = {}

    def rows(self, step: int) -> tuple[Row, ...]:
        """The completions of a step; () for a step that has none."""
        if step not in self._known:
            there = self._read is not None and step in self.steps
            self._known[step] = tuple(self._read(step)) if there and self._read is not None else ()
        return self._known[step]

    def spread(self, most: int) -> tuple[int, ...]:
        """At most so many of the steps, evenly spaced, the first and the last among them."""
        if len(self.steps) <= most:
            return self.steps
        places = np.linspace(0, len(self.steps) - 1, most).round().astype(int)
        return tuple(self.steps[place] for place in dict.fromkeys(places.tolist()))


@dataclass(frozen=True)
class RunLog:
    """A run as the doctor sees it, whoever trained it.

    Attributes:
        source: the folder or file it was read from.
        trainer: who wrote it: "melior", "trl", "verl", "wandb".
        steps: [S] step numbers, rising, each once. What was measured before the first step stands at step 0.
        metrics: our names (docs/metrics.md) -> [S] floats, NaN where a step has none.
        settings: flat, by our names where there is one (`n`, `prompts`, `max_tokens`, `lr`, `pass_at`, `steps`, ...);
            a setting that is not known is left out.
        rollouts: the completions.
        unread: what was there and not understood, each a short text such as a file's or a figure's name.
    """

    source: Path
    trainer: str
    steps: np.ndarray
    metrics: Mapping[str, np.ndarray]
    settings: Mapping[str, Any] = field(default_factory=dict)
    rollouts: Rollouts = field(default_factory=Rollouts)
    unread: tuple[str, ...] = ()

    def metric(self, name: str) -> np.ndarray:
        """[S] a figure by our name; all NaN when the run has none of it."""
        known = self.metrics.get(name)
        return np.full(len(self.steps), np.nan) if known is None else known


def by_step(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(step, figures by name) in any order -> the steps, rising, and each figure as an array along them.

    Figures that are no numbers are left out; of one that a step has twice the later counts.
    """
    merged: dict[int, dict[str, float]] = {}
    for step, figures in rows:
        numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        merged.setdefault(int(step), {}).update(numbers)
    steps = sorted(merged)
    names = dict.fromkeys(name for step in steps for name in merged[step])
    arrays = {name: np.array([merged[step].get(name, np.nan) for step in steps], dtype=np.float64) for name in names}
    return np.array(steps, dtype=np.int64), arrays

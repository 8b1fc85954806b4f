"""Figures along a run, and the robust statistics that checks judge them by: medians, ranks, thirds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from melior.inspect.logs.log import RunLog

# A rank statistic beyond this many standard deviations is taken for a change. A few dozen are looked at in a run, and
# by chance one in 2,000 gets there; that the effect must be large too keeps false alarms well below that.
Z = 3.5


@dataclass(frozen=True)
class Series:
    """A figure at the steps at which it is known.

    Attributes:
        name: of the figure.
        steps: [N] step numbers, rising.
        values: [N] finite values.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def first(self, count: int) -> Series:
        """The first so many."""
        return Series(self.name, self.steps[:count], self.values[:count])

    def last(self, count: int) -> Series:
        """The last so many."""
        return Series(self.name, self.steps[-count:], self.values[-count:])

    def since(self, step: int) -> Series:
        """Those from a step on."""
        return Series(self.name, self.steps[self.steps >= step], self.values[self.steps >= step])

    def before(self, step: int) -> Series:
        """Those before a step."""
        return Series(self.name, self.steps[self.steps < step], self.values[self.steps < step])

    @property
    def median(self) -> float:
        """NaN when empty."""
        return float(np.median(self.values)) if len(self) else math.nan

    @property
    def span(self) -> tuple[int, int]:
        """First and last step; (0, 0) when empty."""
        return (int(self.steps[0]), int(self.steps[-1])) if len(self) else (0, 0)

    def smooth(self, width: int) -> Series:
        """Medians of `width` neighbors each, ending at every step from the `width`-th on."""
        if len(self) < width:
            return self.first(0)
        windows = np.lib.stride_tricks.sliding_window_view(self.values, width)
        return Series(self.name, self.steps[width - 1 :], np.median(windows, axis=1))

    def held(self, shows: Callable[[np.ndarray], np.ndarray], least: int) -> float:
        """How many of the values show it, as a multiple of `least`."""
        return float(np.sum(shows(self.values))) / max(least, 1)

    def change(self) -> Change:
        """From the first third to the last."""
        third = max(1, len(self) // 3)
        return change(self.values[:third], self.values[-third:])


@dataclass(frozen=True)
class Change:
    """From some values to later ones: both medians, and by how many standard deviations the ranks moved (up is
    positive; 0 where there is nothing to compare)."""

    before: float
    after: float
    z: float

    @property
    def rises(self) -> bool:
        """Clearly up."""
        return self.z >= Z

    @property
    def falls(self) -> bool:
        """Clearly down."""
        return self.z <= -Z


def series(log: RunLog, name: str) -> Series:
    """A figure of a run where it is finite."""
    values = log.metric(name)
    known = np.isfinite(values) & (log.steps > 0)
    return Series(name, log.steps[known], values[known])


def score(log: RunLog) -> Series:
    """What the run is to raise: `pass_rate` where it is known, else `reward`, else `return`.

    A pass rate of 0 throughout beside a reward that varies says nothing: no completion can reach what counts as passed.
    """
    passed, reward, returned = (series(log, name) for name in ("pass_rate", "reward", "return"))
    if len(passed) and len(reward) and not passed.values.any() and np.ptp(reward.values) > 0:
        return reward
    return next((each for each in (passed, reward, returned) if len(each)), reward)


def learns(log: RunLog, since: int = 0) -> bool:
    """Whether the score rises from the first to the last third of the run, or of the part since a step."""
    part = score(log).since(since)
    moved = part.change()
    return moved.z >= 2 and moved.after > moved.before


def change(before: Sequence[float] | np.ndarray, after: Sequence[float] | np.ndarray) -> Change:
    """Compares two samples by ranks (Mann-Whitney, normal approximation, ties corrected for)."""
    a, b = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if len(a) < 2 or len(b) < 2:
        return Change(_median(a), _median(b), 0.0)
    both = np.concatenate([a, b])
    order, total = ranks(both), len(both)
    u = order[len(a) :].sum() - len(b) * (len(b) + 1) / 2
    _, counts = np.unique(both, return_counts=True)
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (total * (total - 1))
    variance = len(a) * len(b) / 12 * (total + 1 - ties)
    z = (u - len(a) * len(b) / 2) / math.sqrt(variance) if variance > 0 else 0.0
    return Change(_median(a), _median(b), float(z))


def ranks(values: np.ndarray) -> np.ndarray:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; NaN where one of them does not vary."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else math.nan

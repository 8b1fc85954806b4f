"""Every method against every other: how often a run of one beats a run of the other, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melior.intervals import Interval

RESAMPLES = 2000
LEVELS = (0.05, 0.2, 0.35)  # how far from one half a shade begins


@dataclass(frozen=True)
class Square:
    """One square of the matrix.

    Attributes:
        better: the probability that a run of the row beats one of the column, with its 95 % interval.
        level: -3 (the column is far better) to 3 (the row is).
        settled: "above" or "below" where the interval leaves out one half, else "".
    """

    better: Interval
    level: int
    settled: str


def improvement_interval(left: Sequence[float], right: Sequence[float]) -> Interval:
    """Probability that a run of the left beats one of the right, ties counted half, with its 95 % bootstrap interval.

    Runs of both sides are drawn anew, apart from each other, with a fixed seed. The bounds are NaN where a side has
    fewer than two runs; where no run of one side reaches any of the other, the interval has no width.
    """
    a, b = (np.array([v for v in side if not math.isnan(v)], dtype=np.float64) for side in (left, right))
    if not len(a) or not len(b):
        return math.nan, math.nan, math.nan
    wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
    value = float(wins.mean())
    if len(a) < 2 or len(b) < 2:
        return value, math.nan, math.nan
    rng = np.random.Generator(np.random.Philox(key=0))
    rows, columns = (rng.integers(len(side), size=(RESAMPLES, len(side))) for side in (a, b))
    drawn = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return value, float(low), float(high)


def matrix(finals: Mapping[str, Sequence[float]]) -> list[tuple[str, list[Square | None]]]:
    """(label, squares) of every row; None where a row meets itself or a side has no runs."""
    found: dict[tuple[str, str], Interval] = {}
    labels = list(finals)
    for i, left in enumerate(labels):
        for right in labels[i + 1 :]:
            value, low, high = improvement_interval(finals[left], finals[right])
            found[left, right], found[right, left] = (value, low, high), (1 - value, 1 - high, 1 - low)
    return [(row, [_square(found.get((row, column))) for column in labels]) for row in labels]


# ---- inside


def _square(better: Interval | None) -> Square | None:
    if better is None or math.isnan(better[0]):
        return None
    value, low, high = better
    size = sum(abs(value - 0.5) >= level for level in LEVELS)
    settled = "above" if low > 0.5 else "below" if high < 0.5 else ""
    return Square(better, size if value > 0.5 else -size, settled)

"""What a few runs say: means over seeds, differences paired by seed, and how often one is better than another.

A score is one number a run. NaN stands for a run that is missing or has no score; it is left out, and counted by those
who call. All resampling has a fixed seed, so equal scores give equal intervals.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from melior.errors import UserError
from melior.intervals import Interval

RESAMPLES = 9999
FEW = 5  # seeds below which an interval or a p says little
UNKNOWN: Interval = (math.nan, math.nan, math.nan)


def need_packages() -> None:
    """UserError where the packages for statistics are missing."""
    try:
        for name in ("scipy.stats", "statsmodels.stats.multitest", "rliable.metrics"):
            importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"comparisons need the package '{error.name}': pip install 'melior[compare]'") from error


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """The mean of the runs and its 95 % bootstrap interval; the bounds are NaN for fewer than two runs."""
    return _bootstrap([_known(values)])


def paired_difference(left: Mapping[int, float], right: Mapping[int, float]) -> tuple[Interval, float, int]:
    """Mean of left - right over the seeds that both have: (with its 95 % interval, p, how many seeds).

    The interval is scipy's paired bootstrap. p is that of the exact two-sided sign-flip test: the share of all ways to
    exchange left and right within seeds that give a mean at least as far from 0. With n seeds it is at least 2 / 2^n,
    and 1 when nothing differs; NaN for fewer than two seeds.
    """
    from scipy import stats

    pairs = [(left[s], right[s]) for s in left if s in right and not math.isnan(left[s]) and not math.isnan(right[s])]
    if not pairs:
        return UNKNOWN, math.nan, 0
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    if len(pairs) < 2:
        return (float((a - b).mean()), math.nan, math.nan), math.nan, 1
    interval = _bootstrap([a, b])
    if not (a - b).any():
        return interval, 1.0, len(pairs)
    test = stats.permutation_test(
        (a, b), _difference, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES, rng=_rng()
    )
    return interval, float(test.pvalue), len(pairs)


def improvement(left: Sequence[float], right: Sequence[float]) -> float:
    """Probability that a run of the left is better than one of the right, ties counted half; NaN without runs."""
    from rliable import metrics

    a, b = _known(left), _known(right)
    if not len(a) or not len(b):
        return math.nan
    return float(metrics.probability_of_improvement(a[:, None], b[:, None]))


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of the runs (of all of them, where there are fewer than four); NaN without runs."""
    from rliable import metrics

    known = _known(values)
    return float(metrics.aggregate_iqm(known[:, None])) if len(known) else math.nan


def holm(p: Sequence[float]) -> list[float]:
    """The p values of one family, corrected for their number by Holm; NaN stay and do not count."""
    from statsmodels.stats.multitest import multipletests

    places = [i for i, value in enumerate(p) if not math.isnan(value)]
    found = [math.nan] * len(p)
    if places:
        for i, value in zip(places, multipletests([p[i] for i in places], method="holm")[1], strict=True):
            found[i] = float(value)
    return found


def area(curve: Sequence[tuple[float, float]], end: float = math.inf) -> float:
    """Mean score along a curve of (x, score) from its first x to `end`, by trapezoids; NaN with fewer than two points.

    What lies beyond `end` is cut off in the middle of its stretch; a curve that ends before counts as far as it goes.
    """
    points = sorted((x, y) for x, y in curve if not math.isnan(y) and not math.isnan(x))
    if len(points) < 2 or end <= points[0][0]:
        return math.nan
    x, y = (np.array(side) for side in zip(*points, strict=True))
    if end < x[-1]:
        y = np.append(y[x < end], np.interp(end, x, y))
        x = np.append(x[x < end], end)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def cautions(seeds: int, comparisons: int = 1) -> list[str]:
    """Sentences on what so few seeds cannot say."""
    if seeds < 2:
        return ["one seed: nothing is known of how runs of one method differ, so there are no intervals and no p"]
    said = []
    if seeds < FEW:
        said.append(f"{seeds} seeds are few: bootstrap intervals of so few runs are too narrow; take at least {FEW}")
    least = 2 / 2**seeds
    if least * comparisons > 0.05:
        said.append(f"with {seeds} seeds the exact test cannot go below p = {least:.3g}, however large the difference")
    return said


# ---- inside


def _difference(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
    return np.mean(a - b, axis=axis)


def _mean(a: np.ndarray, axis: int = -1) -> np.ndarray | np.floating:
    return np.mean(a, axis=axis)


def _bootstrap(samples: Sequence[np.ndarray]) -> Interval:
    from scipy import stats

    paired = len(samples) == 2
    statistic: Callable[..., Any] = _difference if paired else _mean
    if not len(samples[0]):
        return UNKNOWN
    value = float(statistic(*samples))
    if len(samples[0]) < 2:
        return value, math.nan, math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all equal: an interval of no width
        found = stats.bootstrap(
            tuple(samples), statistic, paired=paired, vectorized=True, n_resamples=RESAMPLES, method="percentile",
            rng=_rng(),
        ).confidence_interval  # fmt: skip
    return value, float(found.low), float(found.high)


def _known(values: Sequence[float]) -> np.ndarray:
    return np.array([value for value in values if not math.isnan(value)], dtype=np.float64)


def _rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=0))

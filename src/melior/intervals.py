"""Intervals of proportions, means and pass@k, at 95 % unless asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float, float]  # value, low, high
RESAMPLES = 2000


def wilson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a proportion: `successes` in `n` independent trials, in [0, 1].

    (nan, nan) for n = 0. Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if n <= 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(p * (1 - p), 0.0) / n + z * z / (4 * n * n))
    # At the ends the bound is exact, not a rounding error away.
    return (0.0 if p == 0 else max(center - half, 0.0)), (1.0 if p == 1 else min(center + half, 1.0))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of independent values and its percentile bootstrap interval: (value, low, high).

    2,000 resamples from a generator with a fixed seed, so equal values give equal intervals. The values are one for
    each independent unit: a prompt, an episode. NaN are left out; without any value all three are NaN. One value has
    no interval: its bounds are NaN. Values that are all equal have one of no width, which for a pass rate is too
    confident: `pass_at_k` does better there.
    """
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    if len(known) < 2:
        return (float(known[0]) if len(known) else math.nan), math.nan, math.nan
    generator = np.random.Generator(np.random.Philox(key=0))
    # Resample by resample in blocks, so that many values do not take much memory.
    block = max(1, 2**22 // len(known))
    means = [
        known[generator.integers(0, len(known), (min(block, RESAMPLES - start), len(known)))].mean(1)
        for start in range(0, RESAMPLES, block)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(known.mean()), float(low), float(high)


def pass_at_k(tried: Sequence[int], right: Sequence[int], k: int, confidence: float = 0.95) -> Interval:
    """pass@k over prompts: the probability that at least one of k completions of a prompt passes.

    Each prompt's unbiased estimate from n completions of which c pass is 1 - C(n-c, k) / C(n, k). The interval is
    Wilson's at the effective number of prompts, p (1 - p) / (variance of the mean of the prompts' estimates), which is
    the number of prompts when every estimate is 0 or 1, more when estimates lie between, and never more than the
    completions. So it stays inside [0, 1] and does not shrink to nothing when all prompts fail.

    Prompts with fewer than k completions are left out; without any prompt all three are NaN.

    Sources: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, eq. 1; Korn &
    Graubard 1998 for intervals at an effective sample size.
    """
    if k < 1:
        raise ValueError(f"pass@k needs k of at least 1, not {k}")
    pairs = [(n, c) for n, c in zip(tried, right, strict=True) if n >= k]
    if not pairs:
        return math.nan, math.nan, math.nan
    values = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in pairs]
    p = math.fsum(values) / len(values)
    variance = math.fsum((value - p) ** 2 for value in values) / len(values) ** 2
    most = sum(n for n, _ in pairs)
    effective = min(most, max(p * (1 - p) / variance, len(values))) if variance > 0 else most
    if p in (0.0, 1.0):  # nothing is known of how completions of one prompt differ, so only prompts count
        effective = len(values)
    return p, *wilson(p * effective, effective, confidence)

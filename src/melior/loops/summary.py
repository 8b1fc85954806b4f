"""Figures with 95 % intervals, and the few lines that a run ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

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


def summary_text(summary: Mapping[str, Any], run_folder: Path) -> str:
    """What a run ends with: before -> after with intervals, its size, where it is, how to go on.

    Figures without an interval are left to `summary.json`.
    """
    before, after = summary.get("before") or {}, summary.get("after") or {}
    names = [name for name in before if is_interval(before[name]) and (not after or name in after)]
    width = max((len(name) for name in names), default=0)
    lines = []
    for name in names:
        text = f"{name:<{width}}  {interval_text(before[name])}"
        lines.append(f"{text} -> {interval_text(after[name])}" if after and summary.get("steps") else text)
    size = [f"{summary.get('steps', 0)} steps"]
    if summary.get("tokens"):
        size.append(f"{count_text(summary['tokens'])} tokens")
    size.append(time_text(summary.get("seconds") or 0.0))
    stopped = "interrupted after " if summary.get("interrupted") else ""
    lines.append(f"{stopped}{', '.join(size)}; saved in {run_folder}")
    if summary.get("interrupted"):
        lines.append(f"go on: melior train --resume {run_folder}")
    else:
        lines.append(f"measure it: melior eval {run_folder}    use it: {run_folder / 'model'}")
    return "\n".join(lines)


def figures_text(figures: Mapping[str, Any]) -> str:
    """One figure a line, with its interval where it has one."""
    width = max((len(name) for name in figures), default=0)
    return "\n".join(f"{name:<{width}}  {interval_text(value)}" for name, value in figures.items())


def interval_text(figure: Any) -> str:
    """ "0.240 [0.192, 0.295]" for [value, low, high]; a single number without the brackets."""
    if is_interval(figure):
        value, low, high = figure
        known = all(bound is not None and not math.isnan(bound) for bound in (low, high))
        return f"{number_text(value)} [{number_text(low)}, {number_text(high)}]" if known else number_text(value)
    return number_text(figure) if isinstance(figure, int | float) or figure is None else str(figure)


def number_text(value: float | None) -> str:
    """A number at about three significant digits; "-" for what is not known."""
    if value is None or math.isnan(value):
        return "-"
    if isinstance(value, int) or math.isinf(value):
        return str(value)
    size = abs(value)
    if size != 0 and not 1e-3 <= size < 1e6:
        return f"{value:.2e}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}"


def count_text(value: float) -> str:
    """A count in short: 950, 8.1k, 812k, 1.3M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            short = value / size
            return f"{short:.1f}{sign}" if short < 9.995 else f"{short:.0f}{sign}"
    return f"{value:.0f}"


def time_text(seconds: float) -> str:
    """A duration in short: 4.2 s, 61 s, 12:05, 3:07:10."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def is_interval(figure: Any) -> bool:
    """Whether a figure is [value, low, high]."""
    return isinstance(figure, list | tuple) and len(figure) == 3

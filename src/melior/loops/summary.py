"""The few lines that a run ends with, and figures as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def summary_text(summary: Mapping[str, Any], run_folder: Path, objects: Sequence[str] = ()) -> str:
    """What a run ends with: before -> after with intervals, its size, where it is, how to go on.

    Figures without an interval are left to `summary.json`. `objects` are the arguments that were Python objects, which
    have to be given again whenever the run is opened.
    """
    before, after = summary.get("before") or {}, summary.get("after") or {}
    names = [name for name in before if is_interval(before[name]) and (not after or name in after)]
    width = max((len(name) for name in names), default=0)
    lines = []
    for name in names:
        text = f"{name:<{width}}  {interval_text(before[name])}"
        lines.append(f"{text} -> {interval_text(after[name])}" if after and summary.get("steps") else text)
    size = ["1 step" if summary.get("steps") == 1 else f"{summary.get('steps', 0)} steps"]
    if summary.get("tokens"):
        size.append(f"{count_text(summary['tokens'])} tokens")
    size.append(time_text(summary.get("seconds") or 0.0))
    stopped = "interrupted after " if summary.get("interrupted") else ""
    lines.append(f"{stopped}{', '.join(size)}; saved in {run_folder}")
    if summary.get("interrupted"):
        lines.append(f"go on: {going_on(run_folder, objects)}")
    else:
        measured = f"melior eval {run_folder}" + ("" if before else " --data …")
        if objects:
            measured = f'melior.evaluate("{run_folder}", {_again(objects)})'
        lines.append(f"measure it: {measured}    use it: {run_folder / 'model'}")
    return "\n".join(lines)


def going_on(run_folder: Path, objects: Sequence[str]) -> str:
    """How to resume a run: from Python, where it was given objects."""
    if objects:
        return f'melior.train(resume="{run_folder}", {_again(objects)})'
    return f"melior train --resume {run_folder}"


def _again(objects: Sequence[str]) -> str:
    return ", ".join(f"{name}=..." for name in objects)


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

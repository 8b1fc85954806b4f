"""The held-out score of a run over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from melior.loops.summary import is_interval
from melior.report.charts import Series

SCORE, OF_ROWS = "score", "eval/"
COUNTS = ("prompts", "episodes")  # what an evaluation measures on


def held_out_series(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], label: str = "") -> Series | None:
    """Before the run, at each evaluation and after it, with the intervals that are known; None without a score."""
    found = {row["step"]: _at_step(row) for row in rows if _is_number(row.get(OF_ROWS + SCORE))}
    for side, step in (("before", 0), ("after", summary.get("steps"))):
        figures = summary.get(side) or {}
        if step is not None and _is_number(figures.get(SCORE)):
            found[step] = (figures[SCORE], _interval(figures))
    if not found:
        return None
    steps = sorted(found)
    spread = {step: interval for step in steps if (interval := found[step][1]) is not None}
    return Series(label, steps, [found[step][0] for step in steps], spread, marked=True)


def intervals(rows: Sequence[Mapping[str, Any]], name: str) -> dict[float, tuple[float, float]]:
    """The interval of a metric by step, where it has one."""
    found = {row["step"]: _bounds(row, name) for row in rows}
    return {step: pair for step, pair in found.items() if pair is not None}


def score_name(summary: Mapping[str, Any]) -> str:
    """Which figure the score is, such as "pass@1"; "score" where that is not known."""
    for side in ("before", "after"):
        figures = summary.get(side) or {}
        for name, figure in figures.items():
            if is_known(figure) and figure[0] == figures.get(SCORE):
                return name
    return SCORE


def measured_on(summary: Mapping[str, Any]) -> str:
    """What an evaluation of the run measures on, such as "256 prompts"; "" when that is not known."""
    figures = summary.get("after") or summary.get("before") or {}
    return ", ".join(f"{figures[name]} {name}" for name in COUNTS if name in figures)


def is_known(figure: Any) -> bool:
    """Whether a figure is [value, low, high], all of them numbers."""
    return is_interval(figure) and all(_is_number(bound) for bound in figure)


def _at_step(row: Mapping[str, Any]) -> tuple[float, tuple[float, float] | None]:
    score = row[OF_ROWS + SCORE]
    named = (name for name, value in row.items() if name.startswith(OF_ROWS) and value == score)
    return score, next((pair for name in named if (pair := _bounds(row, name)) is not None), None)


def _bounds(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None or high is None else (float(low), float(high))


def _interval(figures: Mapping[str, Any]) -> tuple[float, float] | None:
    """That of the figure which the score is."""
    for figure in figures.values():
        if is_known(figure) and figure[0] == figures[SCORE]:
            return figure[1], figure[2]
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

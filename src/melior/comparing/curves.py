"""Curves of a comparison: the mean over seeds with its interval, in one chart or one for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from melior.comparing.statistics import mean_over_seeds
from melior.errors import MeliorError
from melior.inspect.logs import read
from melior.report.charts import Chart, Series, line_chart
from melior.report.palette import PALETTE

POINTS, STRETCHES = 13, 24  # of a curve whose runs were measured at different places; of a curve of rewards
COLUMN = {"step": 0, "tokens": 1, "seconds": 2}
Curves = Mapping[str, Sequence[Sequence[tuple[float, float]]]]  # label -> one list of (x, value) a run


def score_curves(data: Mapping[str, Any]) -> Curves:
    """The held-out scores of the runs that finished, over the comparison's axis."""
    column = COLUMN[data["axis"]]
    return {
        label: [[(point[column], point[3]) for point in cell["curve"]] for cell in cells if len(cell["curve"]) > 1]
        for label, cells in finished(data).items()
    }


def reward_curves(data: Mapping[str, Any], out: Path) -> Curves:
    """What was earned in training, step by step: the reward or the return. Runs without a log are left out."""
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for label, cells in finished(data).items():
        found[label] = []
        for cell in cells:
            try:
                log = read(folder_of(cell, out))
            except MeliorError:
                continue
            values = log.metric("reward")
            if np.isnan(values).all():
                values = log.metric("return")
            known = ~np.isnan(values) & (log.steps > 0)
            if known.sum() > 1:
                found[label].append(list(zip(log.steps[known].tolist(), values[known].tolist(), strict=True)))
    return found


def finished(data: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Label -> its cells that finished, in the order of the table."""
    return {
        row["label"]: [c for c in data["cells"] if c["label"] == row["label"] and c["status"] == "finished"]
        for row in data["table"]
    }


def folder_of(cell: Mapping[str, Any], out: Path) -> Path:
    """The run's folder, also when the comparison's was moved or is read from another place."""
    written = Path(cell["folder"])
    moved = out.joinpath(*written.parts[-3:])
    return moved if moved.exists() else written


def charts(title: str, how: str, unit: str, axis: str, curves: Curves) -> list[Chart]:
    """One chart of all; where there are more curves than colors, one of each beside the first, on the same scale."""
    series = [each for label, runs in curves.items() if (each := mean_series(label, runs)) is not None]
    if not series:
        return []
    if len(series) <= len(PALETTE):
        return [_named(line_chart(title, how, unit, series), axis)]
    first, *others = series
    edges = [bound for each in series for pair in each.spread.values() for bound in pair]
    edges += [value for each in series for value in each.values]
    return [
        _named(line_chart(f"{title}: {each.label}", how, unit, [first, each], also=(min(edges), max(edges))), axis)
        for each in others
    ]


def mean_series(label: str, runs: Sequence[Sequence[tuple[float, float]]]) -> Series | None:
    """The mean of runs with its 95 % intervals; None without runs."""
    if not runs:
        return None
    places = _places(runs)
    values, spread = [], {}
    for place, at_place in places.items():
        value, low, high = mean_over_seeds(at_place)
        values.append(value)
        if not math.isnan(low):
            spread[place] = (low, high)
    return Series(label, list(places), values, spread, marked=len(places) < STRETCHES)


# ---- inside


def _places(runs: Sequence[Sequence[tuple[float, float]]]) -> dict[float, list[float]]:
    """x -> the runs' values there: as measured where all share their x, else by straight lines between."""
    xs = [[x for x, _ in run] for run in runs]
    if all(each == xs[0] for each in xs):
        size = math.ceil(len(xs[0]) / STRETCHES)
        stretches = [slice(i, i + size) for i in range(0, len(xs[0]), size)]
        middles = [float(np.mean(xs[0][part])) if size > 1 else xs[0][part][0] for part in stretches]
        return {x: [float(np.mean([v for _, v in run[part]])) for run in runs] for x, part in zip(middles, stretches, strict=True)}  # fmt: skip  # noqa: E501
    start, end = max(each[0] for each in xs), min(each[-1] for each in xs)
    if start >= end:
        return {x: [value] for x, value in runs[0]}
    grid = np.linspace(start, end, POINTS)
    at = np.array([np.interp(grid, x, [v for _, v in run]) for x, run in zip(xs, runs, strict=True)])
    return {round(float(x), 1): at[:, i].tolist() for i, x in enumerate(grid)}


def _named(chart: Chart, axis: str) -> Chart:
    return replace(chart, x_label=axis, header=(axis, *chart.header[1:]))

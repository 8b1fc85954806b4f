"""The page itself: a run's record put into templates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melior.loops.summary import count_text, time_text
from melior.records.describe import stage_rows
from melior.records.differences import Difference, differences
from melior.report.charts import Chart, Series, bands, histogram, line_chart
from melior.report.coloring import Coloring, coloring
from melior.report.data import RunData, read_run
from melior.report.diagnosis import section
from melior.report.figures import Figure, rooms
from melior.report.held_out import COUNTS, held_out_series, intervals, is_known, measured_on, score_name
from melior.report.palette import DASHES, PALETTE
from melior.report.rendering import template
from melior.report.verdict import verdict
from melior.settings import stands_for_object
from melior.storage.writing import write_atomic

NAME = "report.html"
_WORDS = (
    ("Problem", "problem"),
    ("Move", "move"),
    ("Formula", "formula"),
    ("Use when", "use_when"),
    ("Beware", "beware"),
    ("Evidence", "evidence"),
)


def write_report(run: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of a run, whole or not at all.

    Args:
        run: the run folder; the run may be going on.
        out: the file; by default `report.html` in the folder.

    Raises:
        UserError: no run folder, or jinja2 is not installed.
        RunError: the folder is damaged, or the disk refuses.
    """
    path = Path(out) if out is not None else Path(run) / NAME
    write_atomic(path, page(read_run(run)))
    return path


def page(run: RunData) -> str:
    """The report as one HTML document that loads nothing."""
    text = template("run.html.j2").render(**_content(run))
    return text.encode("utf-8", "replace").decode("utf-8")


# ---- inside


@dataclass(frozen=True)
class _Score:
    """A held-out figure before and after."""

    name: str
    before: Any
    after: Any
    marks: Sequence[Any] = ()


def _content(run: RunData) -> dict[str, Any]:
    found = rooms(run.rows)
    charts = [(room.title, [_chart(figure, run.rows) for figure in room.figures]) for room in found.rooms]
    held_out = _held_out(run)
    scores, scale = _scores(run.summary)
    return {
        "run": run,
        "palette": PALETTE,
        "dashes": DASHES,
        "title": f"{run.method} on {run.task}",
        "model": "" if "env" in run.plain else str(run.plain.get("model", "")),
        "size": _size(run),
        "verdict": verdict(run.summary, run.rows),
        "scores": scores,
        "scale": scale,
        "health": section(run.path),
        "measured_on": measured_on(run.summary),
        "held_out": held_out,
        "charts": charts,
        "still": found.still,
        "as_reward": found.as_reward,
        "rollouts": _examples(run),
        "lengths": _lengths(run),
        "words": [(title, getattr(run.entry, field)) for title, field in _WORDS if getattr(run.entry, field, "")],
        "link": _link(run),
        "stages": stage_rows(run.record) if run.record is not None else [],
        "changed": _changed(run),
        "settings": _unusual(run),
        "command": f"melior train --config {shlex.quote(str(run.path / 'config.yaml'))}",
        "objects": sorted(key for key, value in run.plain.items() if stands_for_object(value)),
    }


def _size(run: RunData) -> list[tuple[str, str]]:
    steps = run.summary.get("steps", run.rows[-1]["step"] if run.rows else 0)
    found = [("steps", str(steps))]
    if run.summary.get("tokens"):
        found.append(("tokens", count_text(run.summary["tokens"])))
    if "seconds" in run.summary:
        found.append(("time", time_text(run.summary["seconds"])))
    if run.summary.get("peak_memory_gb"):
        found.append(("memory", f"{run.summary['peak_memory_gb']:.1f} GB"))
    return [*found, ("seed", str(run.plain.get("seed", "-")))]


def _scores(summary: Mapping[str, Any]) -> tuple[list[_Score], tuple[float, float]]:
    """Every held-out figure; those with an interval get marks on one scale."""
    before, after = summary.get("before") or {}, summary.get("after") or {}
    names = [name for name in {**before, **after} if name not in ("score", *COUNTS)]
    certain = [name for name in names if all(is_known(side[name]) for side in (before, after) if name in side)]
    figures = [side[name] for name in certain for side in (before, after) if name in side]
    marks, low, high = bands(figures) if figures else ([], 0.0, 1.0)
    waiting = iter(marks)
    drawn = {name: [next(waiting) if name in side else None for side in (before, after)] for name in certain}
    ordered = [*certain, *(name for name in names if name not in certain)]
    return [_Score(name, before.get(name), after.get(name), drawn.get(name, ())) for name in ordered], (low, high)


def _held_out(run: RunData) -> Chart | None:
    """The held-out score over the run."""
    series = held_out_series(run.rows, run.summary)
    if series is None or len(series.steps) < 2:
        return None
    how = "On what the run does not learn from, with 95 % intervals where they were computed. This is the result."
    return line_chart("Held-out score", how, score_name(run.summary), [series])


def _chart(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> Chart:
    series = []
    for name, label in figure.curves:
        known = [(row["step"], float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
        steps, values = zip(*known, strict=True)
        held_out, spread = name.startswith("eval/"), intervals(rows, name)
        series.append(Series(label if len(figure.curves) > 1 else "", steps, values, spread, marked=held_out))
    return line_chart(figure.title, figure.how, figure.unit, series)


def _examples(run: RunData) -> Coloring | None:
    shown = [(run.last, 3), (run.first, 2), *((each, 2) for each in run.others)]
    steps = [(rollouts, count) for rollouts, count in shown if rollouts is not None]
    return coloring(steps) if steps else None


def _lengths(run: RunData) -> Chart | None:
    counts = {
        f"step {rollouts.step}": [row.length for row in rollouts.rows]
        for rollouts in (run.first, run.last)
        if rollouts is not None and rollouts.rows
    }
    if not counts:
        return None
    how = "A heap at the right edge is cut off by the token limit."
    return histogram("Lengths of completions", how, "tokens", counts)


def _link(run: RunData) -> str:
    if run.entry is None:
        return ""
    paper = run.entry.paper
    if paper.arxiv:
        return f"https://arxiv.org/abs/{paper.arxiv}"
    link = f"https://doi.org/{paper.url[4:]}" if paper.url.startswith("doi:") else paper.url
    return link if link.startswith("https://") else ""


def _changed(run: RunData) -> list[Difference]:
    """Where the record is not that of the catalogue."""
    if run.entry is None or run.record is None or type(run.record) is not type(run.entry.record):
        return []
    return differences(run.entry.record, run.record)


def _unusual(run: RunData) -> list[Difference]:
    """Settings that are not what they are by default."""
    return [] if run.settings is None else differences(type(run.settings)(), run.settings, "settings")

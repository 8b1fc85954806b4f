"""`comparison.html`: what a comparison found, on one page that loads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melior.comparing.curves import charts, finished, folder_of, reward_curves, score_curves
from melior.comparing.matrix import matrix
from melior.comparing.running import read_comparison
from melior.errors import UserError
from melior.loops.summary import count_text, number_text, time_text
from melior.records.config import read_config
from melior.records.differences import Difference, differences
from melior.report.charts import Band
from melior.report.palette import DASHES, PALETTE
from melior.report.rendering import MISSING, can_render, template
from melior.storage.writing import write_atomic
from melior.updates.step_norm import StepNorm

NAME = "comparison.html"
PERCENT = 0.05


@dataclass(frozen=True)
class Told:
    """A row of the table as it is shown; `mark` and `gap` are its intervals on the scales of all rows."""

    row: Mapping[str, Any]
    final: str
    area: str
    difference: str
    mark: Any
    gap: Any


def write_page(out: Path, to: Path | None = None) -> Path:
    """Writes the page of a comparison's folder, whole or not at all.

    Args:
        out: the folder; the comparison may be unfinished.
        to: the file; by default `comparison.html` in the folder.

    Raises:
        UserError: no comparison, or jinja2 is not installed.
        RunError: it is damaged, or the disk refuses.
    """
    path = to if to is not None else out / NAME
    write_atomic(path, page(read_comparison(out).data, out))
    return path


def page_of_comparison(out: Path, say: Callable[[str], None]) -> Path | None:
    """The page at the end of a comparison, which must never be what a comparison fails of."""
    if not can_render():
        say(MISSING)
        return None
    try:
        return write_page(out)
    except Exception as error:  # the runs and their table are safe, and more than their page
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"the page could not be written ({reason}); the comparison itself is complete: melior report {out}")
        return None


def page(data: Mapping[str, Any], out: Path) -> str:
    """The page as one HTML document."""
    text = template("comparison.html.j2").render(**_content(data, out))
    return text.encode("utf-8", "replace").decode("utf-8")


# ---- inside


def _content(data: Mapping[str, Any], out: Path) -> dict[str, Any]:
    rows, axis = data["table"], data["axis"]
    labels = [row["label"] for row in rows]
    finals = {label: [_number(cell["final"]) for cell in cells] for label, cells in finished(data).items()}
    scores = "The mean of the runs; shaded its 95 % interval. What the runs do not learn from, so this is the result."
    told, scales, nil = _told(rows)
    return {
        "data": data,
        "palette": PALETTE,
        "dashes": DASHES,
        "title": f"{len(labels)} methods on {_task(data)}"
        if len(labels) > 4
        else f"{', '.join(labels)} on {_task(data)}",
        "model": str(data["request"]["settings"].get("model", "")),
        "first": labels[0],
        "labels": labels,
        "seeds": ", ".join(map(str, data["request"]["seeds"])),
        "budget": _budget(data),
        "verdict": _verdict(rows, len(data["request"]["seeds"])),
        "told": told,
        "scales": scales,
        "nil": nil,
        "curves": charts("Held-out score", scores, "score", axis, score_curves(data)),
        "rewards": charts(
            "Reward", "Mean of what was sampled in training.", "reward", "step", reward_curves(data, out)
        ),
        "matrix": matrix(finals),
        "costs": [_costs(row) for row in rows],
        "differences": _differences(data, out),
        "tuning": data["tuning"],
        "failures": [(row["label"], each) for row in rows for each in row["failures"]],
        "request": json.dumps(data["request"], indent=1),
        "runs": [_run(cell) for cell in data["cells"]],
    }


def _task(data: Mapping[str, Any]) -> str:
    given = data["request"]["settings"]
    name = str(given.get("env") or given.get("data") or given.get("task") or "arithmetic")
    return "/".join(Path(name).parts[-2:]) if "/" in name else name


def _budget(data: Mapping[str, Any]) -> str:
    budget, steps = data["request"]["budget"], data["request"]["steps"]
    if budget:
        return f"{count_text(budget[1])} {budget[0]}"
    return f"{steps if steps is not None else data['end'] or 0:g} steps"


def _verdict(rows: Sequence[Mapping[str, Any]], seeds: int) -> tuple[str, str, str]:
    """(word, sentence, kind): no bolder than the intervals."""
    first, others = rows[0]["label"], rows[1:]
    known = [row for row in others if row["difference"] and row["difference"][1] is not None]
    above = [row["label"] for row in known if row["difference"][1] > 0]
    below = [row["label"] for row in known if row["difference"][2] < 0]
    if not known:
        return "Not settled", f"There are no intervals of the differences to {first}: too few runs finished.", "open"
    said = [f"better than {first}: {', '.join(above)}"] if above else []
    said += [f"worse: {', '.join(below)}"] if below else []
    rest = len(known) - len(above) - len(below)
    said += [f"not told apart from it: {rest}"] if rest else []
    holm = [row["label"] for row in known if row["p"] is not None and row["p"] <= PERCENT]
    tests = f"After Holm's correction p is at most {PERCENT:g} for {', '.join(holm) if holm else 'none'}."
    how = f"By the 95 % interval of the final score's difference, paired by seed ({seeds} seeds)"
    text = f"{how}, {'; '.join(said)}. {tests}"
    if not above and not below:
        return "Not settled", text, "open"
    return ("Settled for some", text, "good") if holm else ("Indicated", text, "open")


def _told(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Told], tuple[str, str], float]:
    """The rows with their intervals drawn on one scale for scores and one for differences, and what these span."""
    finals, final_span = _drawn([row["final"] for row in rows])
    gaps, gap_span = _drawn([row["difference"] for row in rows], also=[0.0])
    nil, _ = _drawn([[0.0] * 3, *(row["difference"] for row in rows)], also=[0.0])
    told = [
        Told(row, _interval(row["final"]), _interval(row["area"]), _interval(row["difference"], signed=True), mark, gap)
        for row, mark, gap in zip(rows, finals, gaps, strict=True)
    ]
    return told, (final_span, gap_span), nil[0].value


def _drawn(figures: Sequence[Sequence[float | None] | None], also: Sequence[float] = ()) -> tuple[list[Any], str]:
    """Where each interval lies on the scale of all and of `also`, None if not known; and the scale's ends in words."""
    known = [[float(edge) for edge in f if edge is not None] for f in figures if f and None not in f]
    if not known:
        return [None] * len(figures), ""
    edges = [*also, *(edge for figure in known for edge in figure)]
    low, high = min(edges), max(edges)
    if low == high:
        low, high = low - 0.5, high + 0.5
    place = _place(low, high)
    waiting = iter([Band(*(place(edge) for edge in figure)) for figure in known])
    ends = f"from {number_text(low)} to {number_text(high)}"
    return [next(waiting) if f and None not in f else None for f in figures], ends


def _place(low: float, high: float) -> Callable[[float], float]:
    """A number's place between two ends, in percent; the outermost 3 % stay free for the dots."""
    return lambda value: round(3 + 94 * (value - low) / (high - low), 2)


def _costs(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["label"],
        f"{row['runs']} of {row['planned']}",
        str(row["planned"] - row["runs"]),
        _or_dash(row["seconds"], time_text),
        _or_dash(row["tokens"], count_text),
        _or_dash(row["steps"], lambda value: f"{value:.0f}"),
        _or_dash(row["rows"], lambda value: f"{value:.0f}"),
        _or_dash(row["step_norm"], number_text),
    )


def _run(cell: Mapping[str, Any]) -> tuple[str, ...]:
    spent = (_or_dash(cell["tokens"], count_text), _or_dash(cell["seconds"], time_text))
    return (cell["label"], str(cell["seed"]), cell["status"], number_text(cell["final"]), *spent, cell["folder"])


def _differences(data: Mapping[str, Any], out: Path) -> list[tuple[str, list[Difference]]]:
    """(label, where its record differs from the first-named's) of every method whose record can be read."""
    records: dict[str, Any] = {}
    for label in [row["label"] for row in data["table"]]:
        cells = [cell for cell in data["cells"] if cell["label"] == label]
        for cell in cells:
            try:
                records[label] = _bare(read_config(folder_of(cell, out)).record)
                break
            except UserError:  # a run that never began, or another trainer's log
                continue
    first = data["table"][0]["label"]
    if first not in records:
        return []
    return [(label, differences(records[first], record)) for label, record in records.items() if label != first]


def _bare(record: Any) -> Any:
    """The method without what sets the length of its steps, which is told elsewhere."""
    update = getattr(record, "update", None)
    return record.but(record.name, update=update.update) if isinstance(update, StepNorm) else record


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _interval(figure: Sequence[float | None] | None, signed: bool = False) -> str:
    if figure is None or figure[0] is None:
        return "–"
    value, low, high = (None if each is None else f"{each:{'+' if signed else ''}.3f}" for each in figure)
    return f"{value} [{low}, {high}]" if low is not None and high is not None else str(value)


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None or math.isnan(value) else text(value)

"""Runs as one picture: their held-out curves with intervals, an SVG file that stands alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.report.charts import Chart, Frame, Series, line_chart
from melior.report.completions import printable
from melior.report.data import RunData, read_run
from melior.report.held_out import held_out_series, measured_on, score_name
from melior.report.palette import DASHES, PALETTE
from melior.report.rendering import template
from melior.storage.writing import write_atomic

WIDTH, MARGIN = 760, 20
LEFT, HEIGHT, ABOVE, BELOW = 68, 280, 64, 48  # of the axes, and what stands above and below them
LONGEST_TITLE = 66  # characters
LINE, LETTER = 22, 6.7  # height of a line of the legend, width of a letter in it
# Settings that change no curve, or that the axes show.
_ASIDE = (
    "steps", "report", "log_to", "keep", "keep_best", "keep_rollouts", "save_every", "eval_every", "rows_per_micro",
    "reward_workers", "gradient_checkpointing", "device",
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """A line of the legend: where it stands, which curve, and its text."""

    x: float
    y: float
    curve: int
    text: str


def write_picture(runs: Sequence[Path | str], out: Path | str) -> Path:
    """Write the held-out curves of runs as one SVG picture, whole or not at all.

    It loads nothing, follows the reader's light or dark scheme on paper of its own, and says in words what it shows.

    Args:
        runs: run folders; a run may be going on.
        out: the file, NAME.svg.

    Raises:
        UserError: no run folder, a run without a held-out score, runs whose scores are different figures, more runs
            than there are colors, a file that is no SVG, or jinja2 is not installed.
        RunError: a folder is damaged, or the disk refuses.
    """
    path = Path(out)
    if path.suffix != ".svg":
        raise UserError(f"the picture is SVG, so its file must end in .svg: {path}")
    if len(runs) > len(PALETTE):
        raise UserError(f"a picture of {len(runs)} runs could not be read; give {len(PALETTE)} at most")
    write_atomic(path, picture([read_run(run) for run in runs]))
    return path


def picture(runs: Sequence[RunData]) -> str:
    """The picture as an SVG document."""
    names = {score_name(run.summary) for run in runs}
    if len(names) > 1:
        raise UserError(f"these runs are measured by different figures ({', '.join(sorted(names))}); draw them apart")
    series = [_series(run, label) for run, label in zip(runs, _labels(runs), strict=True)]
    keys = _keys([f"{each.label}: {each.values[0]:.3g} → {each.values[-1]:.3g}" for each in series])
    top = ABOVE + keys[-1].y + LINE
    frame = Frame(WIDTH, int(top + HEIGHT + BELOW), LEFT, WIDTH - MARGIN, int(top), int(top + HEIGHT))
    chart = line_chart(_title(runs), "", next(iter(names)), series, frame)
    return template("picture.svg.j2").render(
        chart=chart, keys=keys, above=ABOVE, under=_under(runs, chart), palette=PALETTE, dashes=DASHES
    )


def _series(run: RunData, label: str) -> Series:
    series = held_out_series(run.rows, run.summary, label)
    if series is None:
        raise UserError(f"{run.path} has no held-out score to draw; was anything held out, and has it been measured?")
    return series


def _labels(runs: Sequence[RunData]) -> list[str]:
    """What tells each run from the others: its method and settings where they differ, else its folder."""
    # A setting that a run's release did not have yet had no other value there.
    known = [name for name in runs[0].plain if all(name in run.plain for run in runs)]
    differing = [name for name in known if name not in _ASIDE]
    differing = [name for name in differing if len({_text(run.plain.get(name)) for run in runs}) > 1]
    if len(runs) == 1:
        return [f"seed {runs[0].plain.get('seed', '-')}"]
    methods = len({run.method for run in runs}) > 1
    labels = []
    for run in runs:
        told = [run.method] if methods else []
        told += [f"{name} {_text(run.plain.get(name))}" for name in differing]
        labels.append(printable(", ".join(told)))
    often = Counter(labels)
    return [
        label if label and often[label] == 1 else printable(run.path.name)
        for label, run in zip(labels, runs, strict=True)
    ]


def _text(value: Any) -> str:
    """A setting in short: of a path its name."""
    if isinstance(value, str) and "/" in value:
        return Path(value).name
    return f"{value:g}" if isinstance(value, float) else str(value)


def _title(runs: Sequence[RunData]) -> str:
    methods, tasks = ({getattr(run, name) for run in runs} for name in ("method", "task"))
    method = methods.pop() if len(methods) == 1 else "Held-out score"
    title = printable(f"{method} on {tasks.pop()}" if len(tasks) == 1 else method)
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 2] + " …"


def _under(runs: Sequence[RunData], chart: Chart) -> str:
    """What all runs share, in a line under the title."""
    models = {_text(run.plain.get("model", "")) for run in runs if "env" not in run.plain}
    counts = {measured_on(run.summary) for run in runs}
    shared = [*(models if len(models) == 1 else ()), *(f"held out: {each}" for each in counts if len(counts) == 1)]
    banded = any(curve.band for curve in chart.curves)
    whiskers = any(low != high for curve in chart.curves for _, _, low, high in curve.marks)
    shared += ["95 % intervals " + ("shaded" if banded else "drawn")] if banded or whiskers else []
    return printable("; ".join(each for each in shared if each))


def _keys(texts: Sequence[str]) -> list[Key]:
    """The legend, in as many lines as it takes."""
    found: list[Key] = []
    x, y = float(MARGIN), 0.0
    for number, text in enumerate(texts):
        wide = 34 + len(text) * LETTER + 22
        if found and x + wide > WIDTH - MARGIN:
            x, y = float(MARGIN), y + LINE
        found.append(Key(round(x, 1), y, number, text))
        x += wide
    return found

"""What Weights & Biases exports of a run: charts as CSV, its history as CSV, JSON or Parquet, its summary."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.inspect.logs import names, tensorboard
from melior.inspect.logs.log import RunLog, by_step
from melior.records.yaml_text import load_yaml

LOOKS_FOR = "exports of Weights & Biases (history or charts as .csv, history as .json, .jsonl or .parquet)"
SUMMARY = "wandb-summary.json"
# Where the step of a row stands, the trainer's own count before that of wandb, which also counts other calls of log.
STEPS = ("train/global_step", "training/global_step", "_step", "Step", "global_step", "step")
MARKS = ("_step", "_timestamp", "_runtime", "train/global_step", "training/global_step")  # only a history has these
BOOKKEEPING = {*STEPS, *MARKS, "train/epoch", "training/epoch", "epoch", ""}
CHART = re.compile(r"(?P<run>.+) - (?P<figure>.+?)(?P<end>__MIN|__MAX)?")

Rows = list[dict[str, Any]]


@dataclass
class _Found:
    """What a path holds of a run on Weights & Biases."""

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    axes: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)


def read(path: Path) -> RunLog | None:
    """The run of an exported file, or of a folder of them, whose charts are put together.

    Of a local run folder (`wandb/run-*`) only the summary can be read, which is its last step: the history there is
    in a format of wandb's own, and is exported with `wandb.Api().run(PATH).history()`.

    Raises:
        UserError: charts of several runs or over different steps, or a local run folder without a summary.
    """
    found = _Found()
    for file in _files(path):
        _take(file, _table(file, found), found)
    own = sorted(path.glob("*.wandb"))
    if own and not found.rows:
        raise UserError(f"{own[0]} is in a format of wandb's own; export the history: wandb.Api().run(PATH).history()")
    found.unread += [f"{file.name} (a format of wandb's own)" for file in own]
    if not found.rows:
        return None
    if len(found.runs) > 1:
        shown = ", ".join(sorted(found.runs)[:5])
        raise UserError(f"{path} holds charts of {len(found.runs)} runs ({shown}); export one run alone")
    if len(found.axes) > 1:
        raise UserError(
            f"{path} holds charts over {' and over '.join(sorted(found.axes))}; export all over one of them"
        )
    translated, unknown = [], set()
    for step, figures in tensorboard.merged(found.rows):
        known, strange = names.tracked(figures)
        translated.append((step, known))
        unknown |= strange
    steps, metrics = by_step(translated)
    settings = _settings(path, found)
    unread = (*found.unread, *names.gathered(unknown - BOOKKEEPING))
    return RunLog(path, "wandb", steps, metrics, settings, unread=unread)


def _files(path: Path) -> list[Path]:
    """The exports in a folder; a summary only where there is nothing more."""
    if path.is_file():
        return [path]
    kinds = ("*.csv", "*.json", "*.jsonl", "*.parquet")
    inner = path / "files" if (path / "files").is_dir() else path
    found = [file for kind in kinds for file in sorted(inner.glob(kind)) if not file.name.startswith("wandb-")]
    return found or [file for file in [inner / SUMMARY] if file.is_file()]


def _table(file: Path, found: _Found) -> Rows:
    """The rows of a file, [] for one that is no table; what is damaged is named."""
    try:
        if file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as lines:
                return list(csv.DictReader(lines))
        if file.suffix == ".parquet":
            return _parquet(file, found)
        if file.suffix == ".jsonl":
            return list(_json_lines(file, found))
        return _json(json.loads(file.read_text(encoding="utf-8"))) if file.suffix == ".json" else []
    except (OSError, ValueError, csv.Error) as error:
        found.unread.append(f"{file.name} ({' '.join(str(error).split())[:80]})")
        return []


def _parquet(file: Path, found: _Found) -> Rows:
    if importlib.util.find_spec("pyarrow") is None:
        found.unread.append(f"{file.name} (reading it needs: pip install 'melior[lm]')")
        return []
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _json_lines(file: Path, found: _Found) -> Iterable[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            else:
                found.unread.append(f"{file.name} line {number} (not JSON, or not whole)")


def _json(content: Any) -> Rows:
    """Rows of a list of objects, of pandas' {column: {row: value}}, or of one object such as a summary."""
    if isinstance(content, list):
        return [row for row in content if isinstance(row, dict)]
    if not isinstance(content, dict) or not content:
        return []
    if all(isinstance(column, dict) for column in content.values()):
        rows: dict[str, dict[str, Any]] = {}
        for name, column in content.items():
            for place, value in column.items():
                rows.setdefault(place, {})[name] = value
        return list(rows.values())
    return [content]


def _take(file: Path, table: Rows, found: _Found) -> None:
    columns = dict.fromkeys(name for row in table for name in row if isinstance(name, str))
    if any(name.endswith("__MIN") and CHART.fullmatch(name) for name in columns):
        _chart(file, list(columns), table, found)
        return
    axis = next((name for name in STEPS if name in columns), None)
    if axis is None or not any(mark in columns for mark in MARKS):
        return
    without = 0
    for row in table:
        step = _number(row.get(axis))
        figures = {name: number for name, value in row.items() if (number := _number(value)) is not None}
        if isinstance(step, float) and step.is_integer():
            found.rows.append((int(step), figures))
        else:
            without += bool(figures.keys() - BOOKKEEPING)
    if without:
        found.unread.append(f"{file.name}: {without} rows without {axis}")


def _chart(file: Path, columns: list[str], table: Rows, found: _Found) -> None:
    """The lines of a chart: columns `RUN - FIGURE`, each with a __MIN and a __MAX, over the first column."""
    axis = columns[0]
    if axis not in STEPS:
        found.unread.append(f"{file.name} (over {axis!r}, which is no step)")
        return
    found.axes.add(axis)
    lines = {}
    for name in columns[1:]:
        match = CHART.fullmatch(name)
        if match and not match["end"]:
            found.runs.add(match["run"])
            lines[name] = match["figure"]
    for row in table:
        step = _number(row.get(axis))
        if step is None or not step.is_integer():
            continue
        figures = {figure: n for name, figure in lines.items() if (n := _number(row.get(name))) is not None}
        found.rows.append((int(step), figures))


def _settings(path: Path, found: _Found) -> dict[str, Any]:
    """What `config.yaml` beside the export says ({name: {value: ...}}), or `config.json`, by our names."""
    folder = path if path.is_dir() else path.parent
    for file in (folder / "files" / "config.yaml", folder / "config.yaml", folder / "config.json"):
        if not file.is_file():
            continue
        try:
            given = load_yaml(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UserError) as error:
            found.unread.append(str(error))
            continue
        if isinstance(given, Mapping):
            plain = {k: v["value"] if isinstance(v, Mapping) and "value" in v else v for k, v in given.items()}
            return names.settings(plain)
    return {}


def _number(value: Any) -> float | None:
    """A cell as a number; None for an empty one and for what is none. wandb writes "NaN" and "Infinity" as text."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and value.strip():
        try:
            return float(value)
        except ValueError:
            return None
    return None

"""Runs of verl: its file logger's JSON lines, its rollout dumps, TensorBoard events, the Hydra configuration."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.inspect.logs import names, tensorboard
from melior.inspect.logs.completions import measured
from melior.inspect.logs.log import Rollouts, Row, RunLog, by_step
from melior.records.yaml_text import load_yaml

LOOKS_FOR = "metrics or rollout dumps of verl (JSON lines of {step, data}, a folder of STEP.jsonl)"
DUMP = re.compile(r"(\d+)\.jsonl")
PLAIN = ("step", "input", "output", "gts", "score")  # keys of a dumped row that are no further figure of it
DEPTHS = ("", "*/", "*/*/")  # how far below the path files are looked for


@dataclass
class _Found:
    """What a path holds of a verl run."""

    metrics: list[Path] = field(default_factory=list)
    dumps: dict[int, Path] = field(default_factory=dict)
    events: list[Path] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(path: Path) -> RunLog | None:
    """The run of a metrics file, of a folder of rollout dumps, or of a folder with either, at most two levels down.

    Raises:
        UserError: metrics or rollouts of several runs.
    """
    found = _look(path)
    if not found.metrics and not found.dumps:
        return None
    rows = _metrics(found)
    if found.events and tensorboard.installed():
        events = tensorboard.read_events(found.events)
        rows = [*events.rows, *rows]
        found.unread += events.unread
    elif found.events:
        found.unread.append("TensorBoard events (reading them needs: pip install 'melior[report]')")
    translated, unknown = [], set()
    for step, figures in tensorboard.merged(rows):
        known, strange = names.verl(figures)
        translated.append((step, known))
        unknown |= strange
    steps, metrics = by_step(translated)
    rollouts = Rollouts(list(found.dumps), lambda step: _rows(found.dumps[step]))
    steps, metrics = by_step([*translated, *measured(rollouts, metrics, ("reward", "pass_rate", "mixed_share"))])
    settings = _settings(path, found)
    unread = (*found.unread, *names.gathered(unknown - {"training/global_step", "training/epoch"}))
    return RunLog(path, "verl", steps, metrics, settings, rollouts, unread)


def _look(path: Path) -> _Found:
    found = _Found()
    files = [path] if path.is_file() else [file for depth in DEPTHS for file in sorted(path.glob(f"{depth}*.jsonl"))]
    folders: dict[Path, dict[int, Path]] = {}
    for file in files:
        match = DUMP.fullmatch(file.name)
        if match and file.parent in folders:  # one look at a folder of dumps is enough
            folders[file.parent][int(match[1])] = file
            continue
        first = _first(file) if file.suffix == ".jsonl" else None
        if match and _is_dump(first):
            folders[file.parent] = {int(match[1]): file}
        elif _is_metrics(first):
            found.metrics.append(file)
    _one_run(path, found, folders)
    if (found.metrics or found.dumps) and path.is_dir():
        found.events = tensorboard.event_files(path, one_run=True)
    return found


def _one_run(path: Path, found: _Found, folders: dict[Path, dict[int, Path]]) -> None:
    """Leave out dumps of validations, and refuse what belongs to several runs."""
    if len(found.metrics) > 1:
        shown = ", ".join(str(file.relative_to(path)) for file in found.metrics[:5])
        raise UserError(f"{path} holds metrics of {len(found.metrics)} runs of verl; name one: {shown}")
    if len(folders) > 1:
        held_out = [folder for folder in folders if "val" in folder.name.lower() or "test" in folder.name.lower()]
        for folder in held_out:
            found.unread.append(f"{folder.name} (completions of validations)")
            del folders[folder]
    if len(folders) > 1:
        shown = ", ".join(str(folder.relative_to(path)) for folder in list(folders)[:5])
        raise UserError(f"{path} holds rollouts of {len(folders)} runs of verl; name one: {shown}")
    for files in folders.values():
        found.dumps = files
        newest = files[max(files)]
        bad = [number for number, row in _lines(newest) if row is None]
        found.unread += [f"{newest.name} line {number} (not JSON, or not whole)" for number in bad[:3]]


def _metrics(found: _Found) -> list[tuple[int, Mapping[str, Any]]]:
    rows: list[tuple[int, Mapping[str, Any]]] = []
    for file in found.metrics:
        for number, line in _lines(file):
            if line is not None and _is_metrics(line):
                rows.append((int(line["step"]), line["data"]))
            else:
                found.unread.append(f"{file.name} line {number} (not JSON, or not whole)")
    return rows


def _settings(path: Path, found: _Found) -> dict[str, Any]:
    """The configuration that Hydra leaves with a run, by our names, where the path holds it."""
    folder = path if path.is_dir() else path.parent
    for file in (folder / ".hydra" / "config.yaml", folder / "config.yaml"):
        if not file.is_file():
            continue
        try:
            given = load_yaml(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UserError) as error:
            found.unread.append(str(error))
            continue
        if isinstance(given, Mapping) and "actor_rollout_ref" in given:
            return names.settings(given)
    return {}


def _rows(file: Path) -> list[Row]:
    """The completions of a dump. Rows of one prompt need not stand together: batches are reordered for balance."""
    groups: dict[str, int] = {}
    return [_row(row, groups) for _, row in _lines(file) if row is not None]


def _row(row: Mapping[str, Any], groups: dict[str, int]) -> Row:
    # A `uid` is PROMPT_ROLLOUT_OUTPUT; where there is none, rows with the same prompt are one group.
    uid = row.get("uid")
    key = uid.rsplit("_", 2)[0] if isinstance(uid, str) and uid.count("_") >= 2 else str(row.get("input"))
    scores = {name: _unquoted(row[name]) for name in ("score", "acc") if name in row}
    further = {name: value for name, value in row.items() if name not in PLAIN}
    components = {k: v for k, v in names.numbers({**further, **scores}).items() if math.isfinite(v)}
    return Row(
        prompt=None if row.get("input") is None else str(row["input"]),
        text=None if row.get("output") is None else str(row["output"]),
        reward=components.get("score"),
        components=components,
        group=groups.setdefault(key, len(groups)),
        outcome=components.get("acc", components.get("score")),
    )


def _unquoted(value: Any) -> Any:
    """A number or truth value that verl wrote as text, as it does with NumPy's; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return value == "True" if value in ("True", "False") else float(value)
    except ValueError:
        return value


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(number, object) of every line that is not empty; None for one that is no whole JSON object."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                yield number, row if isinstance(row, dict) else None


def _first(file: Path) -> dict[str, Any] | None:
    """The first of the first few lines that can be read."""
    return next((row for _, row in islice(_lines(file), 3) if row is not None), None)


def _is_metrics(line: dict[str, Any] | None) -> bool:
    return line is not None and isinstance(line.get("step"), int) and isinstance(line.get("data"), Mapping)


def _is_dump(line: dict[str, Any] | None) -> bool:
    return line is not None and {"input", "output", "score"} <= line.keys()

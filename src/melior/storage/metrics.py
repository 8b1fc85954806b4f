"""metrics.jsonl: one JSON object a step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melior.errors import RunError
from melior.storage.writing import json_text, saving, write_atomic

NAME = "metrics.jsonl"


class MetricsWriter:
    """Appends rows to a metrics file, whole lines only.

    NaN and infinities are written as null, since JSON has no word for them; other floats keep their last bit.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row, which has a "step". RunError when the disk refuses; the file is then what it was before."""
        if "step" not in row:
            raise ValueError(f"a row of metrics needs a step; this one has {sorted(row)}")
        line = (json_text(row) + "\n").encode()
        with saving(str(self.path)), open(self.path, "ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
            except BaseException:
                file.truncate(start)
                raise

    def sync(self) -> None:
        """Wait until all rows are on the disk itself."""
        if self.path.exists():
            with saving(str(self.path)), open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def cut(self, step: int) -> None:
        """Drop the rows of later steps, and a last line that was only half written."""
        if self.path.exists():
            kept = [line for line, row in _lines(self.path) if row["step"] <= step]
            write_atomic(self.path, "".join(f"{line}\n" for line in kept))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run folder's metrics, oldest first; [] when there are none.

    A last line that was only half written is left out. RunError naming the line for any other damage.
    """
    path = Path(folder) / NAME
    return [row for _, row in _lines(path)] if path.exists() else []


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            whole = isinstance(row, dict) and isinstance(row.get("step"), int)
        except ValueError:
            whole = False
        if whole:
            rows.append((line, row))
        elif number < len(lines):  # what follows the last line break is empty, or was being written
            raise RunError(f"{path}, line {number}: not a row of metrics")
    return rows

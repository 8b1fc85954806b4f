"""The folder of one run: made, locked, opened again, and the files in it that are not checkpoints or rollouts."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from melior.errors import RunError, UserError
from melior.storage import lock
from melior.storage.lock import FolderLock
from melior.storage.metrics import MetricsWriter, read_metrics
from melior.storage.writing import TEMPORARY, json_text, write_atomic

CONFIG, FINGERPRINT, SUMMARY = "config.yaml", "fingerprint.txt", "summary.json"


class RunFolder:
    """A run folder: `config.yaml`, `fingerprint.txt`, `metrics.jsonl`, `summary.json`, and what others put there.

    `create` and `open` lock it against a second run, until `close` or the end of a `with` block; `view` only reads.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, held: FolderLock | None = None) -> None:
        self.path = path
        self._held = held
        self._metrics = MetricsWriter(path)

    # ---- making and opening

    @classmethod
    def create(cls, path: Path | str, config: str, fingerprint: str) -> RunFolder:
        """A new run folder that holds this configuration (YAML text) and fingerprint.

        The folder may exist when it is empty. UserError when it is not, when another run is using it, or when it
        cannot be made.
        """
        path = Path(path)
        refuse_occupied(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror}; give another --out") from error
        held = FolderLock(path)
        try:
            _refuse_contents(path)
            folder = cls(path, held)
            folder.write_text(CONFIG, config)
            folder.write_text(FINGERPRINT, fingerprint)
        except BaseException:
            held.release()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """The folder of an earlier run, to go on with. UserError when it is none or another run is using it."""
        folder = cls.view(path)
        folder._held = FolderLock(folder.path)
        return folder

    @classmethod
    def view(cls, path: Path | str) -> RunFolder:
        """The folder of a run, to read from; it may be running. UserError when it is none."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"there is no run folder {path}{_runs_in(path.parent)}")
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run folder: it has no {CONFIG}{_runs_in(path)}")
        return cls(path)

    def close(self) -> None:
        """Give the folder free for another run."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- writing

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one row (with its "step") to `metrics.jsonl`; see `MetricsWriter`."""
        self._own()
        self._metrics.append(row)

    def sync_metrics(self) -> None:
        """Put the rows so far on the disk itself; called before a checkpoint that counts on them."""
        self._metrics.sync()

    def cut_metrics(self, step: int) -> None:
        """Drop the rows of later steps (and a half-written last line), to go on from a checkpoint."""
        self._own()
        self._metrics.cut(step)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`; NaN becomes null."""
        self.write_text(SUMMARY, json_text(summary, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder, whole or not at all."""
        self._own()
        write_atomic(self.path / name, text)

    def point(self, name: str, target: Path) -> None:
        """Let a link in the folder lead to something else in it; where links are not to be had there is none."""
        self._own()
        aside = self.path / f"{TEMPORARY}{name}"
        try:
            aside.unlink(missing_ok=True)
            aside.symlink_to(target.relative_to(self.path), target_is_directory=True)
            aside.replace(self.path / name)
        except OSError:
            aside.unlink(missing_ok=True)

    # ---- reading

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`, oldest first."""
        return read_metrics(self.path)

    def read_summary(self) -> dict[str, Any] | None:
        """`summary.json`, None while the run has not got to it."""
        path = self.path / SUMMARY
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from error

    @property
    def config(self) -> str:
        """The resolved configuration, as YAML text."""
        return self._read(CONFIG)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the resolved method."""
        return self._read(FINGERPRINT)

    # ---- inside

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name} cannot be read: {error}") from error

    def _own(self) -> None:
        if self._held is None:
            raise RuntimeError(f"{self.path} is not held by this run: it was closed, or opened to read only")


def default_path(name: str, now: datetime, root: Path | str = "runs") -> Path:
    """ROOT/NAME-20261130-205500 for a run that was given no folder; a number is added while the folder exists."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    first = Path(root) / f"{plain}-{now:%Y%m%d-%H%M%S}"
    numbered = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([first], numbered) if not path.exists())


def refuse_occupied(path: Path) -> None:
    """UserError when `RunFolder.create` would refuse this folder, so that it is said before a model is loaded."""
    if (path / lock.NAME).exists():  # looked at first: that a run is going on says more than what lies there
        FolderLock(path).release()
    _refuse_contents(path)


def _refuse_contents(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder; give another --out")
    if not path.is_dir() or all(inner.name == lock.NAME for inner in path.iterdir()):
        return
    if (path / CONFIG).exists():
        raise UserError(f"{path} already holds a run; go on with it by --resume {path}, or give another --out")
    raise UserError(f"{path} is not empty; give another --out, or --resume the folder of an earlier run")


def _runs_in(folder: Path) -> str:
    """A hint that names the newest runs in a folder of runs."""
    found = [config.parent for config in folder.glob(f"*/{CONFIG}")]
    newest = sorted(found, key=lambda run: run.stat().st_mtime)[-3:]
    return f"; the newest runs in {folder} are {', '.join(run.name for run in newest)}" if newest else ""

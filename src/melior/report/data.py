"""A run folder as one plain record, from which its report is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.method import Entry
from melior.records.catalogue import entries
from melior.records.config import read_config
from melior.records.yaml_text import load_yaml
from melior.report.completions import Rollouts, read_completions
from melior.settings import RunSettings
from melior.storage.folder import RunFolder
from melior.storage.rollouts import POLICY, rollout_learners, rollout_steps


@dataclass(frozen=True)
class RunData:
    """What a run folder holds.

    Attributes:
        path: the folder.
        config: `config.yaml` as text.
        method: the record's name.
        plain: the settings as they stand in the file.
        record, settings: as objects; None where their code is not to be had any more, and `problem` says why.
        entry: the catalogue's row of the method, if it has one.
        fingerprint: of the record when the run was started.
        rows: of `metrics.jsonl`.
        summary: `summary.json`, {} while the run has not got to it.
        first, last: the completions of the first and the last step that are kept; `first` is None when there is but
            one, both are None when none are kept.
        others: the last ones of further learners, and of rows that a curriculum did not keep.
    """

    path: Path
    config: str
    method: str
    plain: Mapping[str, Any]
    record: Any
    settings: RunSettings | None
    problem: str
    entry: Entry | None
    fingerprint: str
    rows: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    first: Rollouts | None
    last: Rollouts | None
    others: Sequence[Rollouts] = ()

    @property
    def task(self) -> str:
        """What is learnt, in short: of a path its last two names."""
        task = str(self.plain.get("env") or self.plain.get("data") or self.plain.get("task") or "its task")
        return "/".join(Path(task).parts[-2:]) if "/" in task else task


def read_run(path: Path | str) -> RunData:
    """Everything that a report shows. UserError when the folder is no run folder; RunError when it is damaged."""
    folder = RunFolder.view(path)
    raw = load_yaml(folder.config)
    raw = raw if isinstance(raw, Mapping) else {}
    record, settings, problem = _objects(folder.path)
    plain = raw.get("settings")
    name = getattr(record, "name", "") or _name(raw.get("record"))
    first, last, others = _rollouts(folder.path)
    return RunData(
        path=folder.path,
        config=folder.config,
        method=name,
        plain=plain if isinstance(plain, Mapping) else {},
        record=record,
        settings=settings,
        problem=problem,
        entry=_entry(record, name),
        fingerprint=str(raw.get("fingerprint", "")),
        rows=folder.read_metrics(),
        summary=folder.read_summary() or {},
        first=first,
        last=last,
        others=others,
    )


def _objects(path: Path) -> tuple[Any, RunSettings | None, str]:
    try:
        config = read_config(path)
    except UserError as error:  # a part in a file that was moved, say: the figures can still be shown
        return None, None, str(error)
    return config.record, config.settings, config.changed()


def _name(record: Any) -> str:
    if isinstance(record, Mapping):
        return str(record.get("method") or record.get("name") or record.get("part") or "run")
    return str(record or "run")


def _entry(record: Any, name: str) -> Entry | None:
    known = entries()
    same = (each for each in known.values() if record is not None and each.record == record)
    return next(same, None) or known.get(name)


def _rollouts(path: Path) -> tuple[Rollouts | None, Rollouts | None, list[Rollouts]]:
    steps = rollout_steps(path)
    try:
        last = read_completions(path, steps[-1]) if steps else None
        first = read_completions(path, steps[0]) if len(steps) > 1 else None
        further = [name for name in rollout_learners(path) if name != POLICY]
        others = [read_completions(path, rollout_steps(path, name)[-1], name) for name in further]
    except UserError:  # pyarrow is not installed here
        return None, None, []
    return first, last, others

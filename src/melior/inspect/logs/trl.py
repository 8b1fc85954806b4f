"""Runs of TRL's online trainers (GRPO, RLOO): trainer_state.json, completions as Parquet, TensorBoard events."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from melior.inspect.logs import names, tensorboard
from melior.inspect.logs.completions import measured
from melior.inspect.logs.log import Rollouts, Row, RunLog, by_step
from melior.inspect.logs.reward_weights import found_weights

STATE = "trainer_state.json"
LOOKS_FOR = f"an output folder of TRL ({STATE}, checkpoint-*/{STATE}, completions/completions_*.parquet)"
COMPLETIONS = re.compile(r"completions_(\d+)\.parquet")
PLAIN = ("step", "prompt", "completion", "advantage")  # columns of the completions that are no reward and no extra
WEIGHED = 16  # steps whose completions tell what the rewards were weighted by
BOOKKEEPING = {"step", "epoch"}  # figures that say when, not how it went


@dataclass
class _Found:
    """What a path holds of a TRL run."""

    states: list[Path] = field(default_factory=list)  # the last one that can be read counts
    completions: dict[int, Path] = field(default_factory=dict)
    events: list[Path] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(path: Path) -> RunLog | None:
    """The run of an output folder, of a checkpoint, of a trainer_state.json or of a folder of completions.

    Figures come from the state of the last checkpoint and, where there are events, from those too, which also hold
    what came after that checkpoint. Settings are in the events only: `training_args.bin` is a pickle and stays shut.
    """
    found = _look(path)
    if not found.states and not found.completions:
        return None
    state = _state(found)
    settings: dict[str, Any] = {}
    rows: list[tuple[int, Mapping[str, Any]]] = []
    if found.events and tensorboard.installed():
        events = tensorboard.read_events(found.events)
        rows = [
            (step, {names.unprefixed(k): v for k, v in row.items()}) for step, row in tensorboard.merged(events.rows)
        ]
        settings |= tensorboard.arguments(events)
        found.unread += events.unread
    elif found.events:
        found.unread.append("TensorBoard events (reading them needs: pip install 'melior[report]')")
    rows += [(int(row["step"]), row) for row in _history(state, found)]
    translated, unknown = [], set()
    for step, figures in tensorboard.merged(rows):
        known, strange = names.trl(figures)
        translated.append((step, known))
        unknown |= strange
    steps, metrics = by_step(translated)
    evaluated = {step for step, row in rows if any(name.startswith("eval_") for name in row)}
    rollouts = _rollouts(found, steps, metrics, evaluated)
    steps, metrics = by_step([*translated, *measured(rollouts, metrics, ("reward", "mixed_share"))])
    settings = {**_of_state(state), **_of_completions(rollouts), **settings}
    unread = (*found.unread, *names.gathered(unknown - BOOKKEEPING))
    return RunLog(path, "trl", steps, metrics, settings, rollouts, unread)


def _look(path: Path) -> _Found:
    found = _Found()
    if path.is_file():
        if path.name == STATE:
            found.states = [path]
        elif match := COMPLETIONS.fullmatch(path.name):
            found.completions = {int(match[1]): path}
        return found
    checkpoints = sorted(
        (folder for folder in path.glob("checkpoint-*") if folder.name[11:].isdigit()),
        key=lambda folder: int(folder.name[11:]),
    )
    states = [folder / STATE for folder in (*checkpoints, path)]
    found.states = [state for state in states if state.is_file()]
    for file in [*path.glob("completions/*.parquet"), *path.glob("*.parquet")]:
        if match := COMPLETIONS.fullmatch(file.name):
            found.completions[int(match[1])] = file
    if found.states or found.completions:
        found.events = sorted(
            [*path.glob(f"runs/*/{tensorboard.PATTERN}"), *path.glob(tensorboard.PATTERN)], key=lambda file: file.name
        )
        if any((state.parent / "training_args.bin").exists() for state in found.states):
            found.unread.append("training_args.bin (a pickle, which is not opened)")
    return found


def _state(found: _Found) -> Mapping[str, Any]:
    """The state that got furthest; one that is being written is skipped and named."""
    read: list[Mapping[str, Any]] = []
    for file in reversed(found.states):
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found.unread.append(f"{_short(file)} ({' '.join(str(error).split())})")
            continue
        if isinstance(state, Mapping):
            read.append(state)
            if len(read) == 2:  # the one of the folder itself and that of its last checkpoint
                break
    return max(read, key=lambda state: state.get("global_step") or 0, default={})


def _history(state: Mapping[str, Any], found: _Found) -> list[Mapping[str, Any]]:
    entries = state.get("log_history")
    entries = entries if isinstance(entries, list) else []
    good = [entry for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("step"), int)]
    if len(good) < len(entries):
        found.unread.append(f"{STATE}: {len(entries) - len(good)} entries of log_history that have no step")
    return good


def _of_state(state: Mapping[str, Any]) -> dict[str, Any]:
    steps = state.get("max_steps")
    return {"steps": steps} if isinstance(steps, int) and steps > 0 else {}


def _of_completions(rollouts: Rollouts) -> dict[str, Any]:
    """Prompts in a batch and completions of each, as the newest completions show them."""
    groups = [row.group for row in rollouts.rows(rollouts.steps[-1])] if rollouts.steps else []
    prompts = len(set(groups))
    if not prompts or len(groups) % prompts:
        return {}
    return {"prompts": prompts, "n": len(groups) // prompts}


def _rollouts(found: _Found, steps: np.ndarray, metrics: Mapping[str, np.ndarray], evaluated: set[int]) -> Rollouts:
    if found.completions and importlib.util.find_spec("pyarrow") is None:
        found.unread.append("completions (reading them needs: pip install 'melior[lm]')")
        return Rollouts()
    # An evaluation puts its completions into the same file, over those that were learnt from.
    lost = sorted(evaluated & found.completions.keys())
    kept = {step: file for step, file in found.completions.items() if step not in evaluated}
    if lost:
        shown = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        found.unread.append(f"completions of steps {shown} (an evaluation wrote over them)")
    if kept and _table(kept[max(kept)]) is None:
        found.unread.append(f"{kept.pop(max(kept)).name} (not whole, or no Parquet)")
    return _Completions(kept, steps, metrics).rollouts()


class _Completions:
    """The files of completions. What the rewards were weighted by is found when rows are first asked for."""

    def __init__(self, files: Mapping[int, Path], steps: np.ndarray, metrics: Mapping[str, np.ndarray]) -> None:
        self._files, self._steps, self._metrics = files, steps, metrics
        self._rewards = [name[7:] for name in metrics if name.startswith("reward/")]
        self._weights: list[float] | None = None
        self._weighed = False

    def rollouts(self) -> Rollouts:
        """The rows, read a step at a time."""
        return Rollouts(list(self._files), self._weighted)

    def _weighted(self, step: int) -> list[Row]:
        if not self._weighed:
            plain = Rollouts(list(self._files), self._rows)
            batches = {step: plain.rows(step) for step in plain.spread(WEIGHED)}
            self._weights = found_weights(self._rewards, batches, self._steps, self._metrics)
            self._weighed = True
        rows = self._rows(step)
        return rows if self._weights is None else [self._summed(row, self._weights) for row in rows]

    def _summed(self, row: Row, weights: Sequence[float]) -> Row:
        if not row.components:  # no reward function scored it
            return row
        weighted = (w * row.components.get(name, 0.0) for name, w in zip(self._rewards, weights, strict=True))
        return replace(row, reward=math.fsum(weighted))

    def _rows(self, step: int) -> list[Row]:
        table = _table(self._files[step]) or []
        groups = group_by_turn([repr(row.get("prompt")) for row in table])
        return [_row(row, group, self._rewards) for row, group in zip(table, groups, strict=True)]


def _table(file: Path) -> list[dict[str, Any]] | None:
    """The rows of a Parquet file; None for one that is not whole."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError):
        return None


def _row(row: Mapping[str, Any], group: int, rewards: Sequence[str]) -> Row:
    # Without a log to name the reward functions, every further number is taken for a reward.
    columns = rewards or [name for name in row if name not in PLAIN]
    return Row(
        prompt=text_of(row.get("prompt")),
        text=text_of(row.get("completion")),
        components={name: float(row[name]) for name in columns if _is_number(row.get(name))},
        advantage=float(row["advantage"]) if _is_number(row.get("advantage")) else None,
        group=group,
    )


def group_by_turn(prompts: Sequence[str]) -> list[int]:
    """Which prompt of the batch each completion belongs to, when those of one prompt stand together.

    A prompt that is drawn twice in a row makes two groups: a group is as long as the greatest common measure of all.
    """
    lengths = [len(list(turn)) for _, turn in groupby(prompts)]
    size = math.gcd(*lengths) if lengths else 1
    if size == 1:
        return [place for place, length in enumerate(lengths) for _ in range(length)]
    return [place // size for place in range(len(prompts))]


def text_of(said: Any) -> str | None:
    """A prompt or completion as text: as it is, or what its chat messages say, one a line."""
    if said is None or isinstance(said, str):
        return said
    if isinstance(said, Mapping):
        return text_of(said.get("content", said.get("text")))
    parts = [text_of(part) for part in said] if isinstance(said, list | tuple) else [str(said)]
    return "\n".join(part for part in parts if part)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"

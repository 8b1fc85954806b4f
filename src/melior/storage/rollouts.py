"""Every step's rollouts as Parquet: what was sampled, how likely it was, what it earned, who got the credit."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import torch

from melior.errors import UserError
from melior.prompts import Prompt
from melior.storage.writing import TEMPORARY, saving
from melior.trajectories import Trajectories

POLICY = "policy"  # the learner that the method itself is
DROPPED = "-dropped"  # after a learner's name: the rows that its curriculum did not keep
FILE = re.compile(r"step-(\d{6,})(\..+)?\.parquet")
ENCODED = {b"melior": b"json"}  # marks the columns whose texts are JSON
FIGURES = ("behaviour_logp", "proximal_logp", "mask", "advantage", "step_reward", "reward", "outcome")


class RolloutWriter:
    """Writes RUN/rollouts/step-000012.parquet, one row a completion; that of a further learner is
    `step-000012.NAME.parquet`.

    Columns: `group`, `length`, `prompt_ids`, `prompt_text`, `token_ids`, `text`, `behaviour_logp`, `proximal_logp`,
    `mask`, `advantage`, `step_reward`, `reward`, `outcome`, `reward/NAME` of each reward function (null: does not
    apply), `scores/SCORER/QUANTITY`, `entropy` (of the policy when it first learnt from the row), and all further
    columns, features and objects by their own names (`column/NAME` when the name is one of the above). What belongs to
    single actions is a list as long as the row, without padding. Objects that are neither text nor numbers are JSON.

    Attributes:
        keep: steps that are kept, the newest; 0 keeps all, -1 writes none.
        note: a sentence for the user when nothing will be written for lack of pyarrow, else None.
    """

    def __init__(self, run_folder: Path, keep: int = 0) -> None:
        self.folder, self.keep = Path(run_folder) / "rollouts", keep
        there = importlib.util.find_spec("pyarrow") is not None
        self.note = None
        if keep >= 0 and not there:
            self.note = "rollouts are not kept on disk: pyarrow is not installed (pip install 'melior[lm]')"
        self._writes = keep >= 0 and there

    def write(self, step: int, batch: Trajectories, learner: str = "policy") -> Path | None:
        """Write a step's rollouts of one learner, whole or not at all; returns the file.

        None when none is wanted.
        RunError when the disk refuses.
        """
        if not self._writes:
            return None
        import pyarrow
        import pyarrow.parquet

        names = {name: column for name, column in _columns(batch).items() if column is not None}
        fields = [
            pyarrow.field(name, column.type, metadata=ENCODED if encoded else None)
            for name, (column, encoded) in names.items()
        ]
        table = pyarrow.Table.from_arrays([column for column, _ in names.values()], schema=pyarrow.schema(fields))
        path = self.folder / _file_name(step, learner)
        temporary = path.with_name(TEMPORARY + path.name)
        with saving(str(path)):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                pyarrow.parquet.write_table(table, temporary, compression="zstd")
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        self._prune()
        return path

    def cut(self, step: int) -> None:
        """Remove the rollouts of later steps and half-written files, to go on from a checkpoint."""
        for path, written_at in _files(self.folder):
            if written_at > step:
                path.unlink()
        for path in self.folder.glob(f"{TEMPORARY}*"):
            path.unlink()

    def _prune(self) -> None:
        files = _files(self.folder)
        kept = sorted({step for _, step in files})[-self.keep :]
        for path, step in files:
            if step not in kept:
                path.unlink()


def rollout_steps(run_folder: Path, learner: str = "policy") -> list[int]:
    """The steps whose rollouts of this learner are on disk, ascending."""
    folder = Path(run_folder) / "rollouts"
    return sorted(step for path, step in _files(folder) if path.name == _file_name(step, learner))


def rollout_learners(run_folder: Path) -> list[str]:
    """Whose rollouts are on disk: the policy first, then the others by name."""
    found = {
        unquote(match[2][1:]) if match[2] else POLICY for match in map(FILE.fullmatch, _names(run_folder)) if match
    }
    return sorted(found, key=lambda name: (name != POLICY, name))


def read_rollouts(run_folder: Path, step: int, learner: str = "policy") -> list[dict[str, Any]]:
    """The rows of a step's rollouts, JSON columns decoded. UserError when they are not there, naming what is."""
    folder = Path(run_folder) / "rollouts"
    path = folder / _file_name(step, learner)
    if not path.is_file():
        steps, others = rollout_steps(run_folder, learner), rollout_learners(run_folder)
        there = f"there are those of steps {_shown(steps)}" if steps else "there are none"
        if not steps and others:
            there = f"there are those of {', '.join(others)}"
        raise UserError(f"{folder} has no rollouts of step {step} of '{learner}'; {there}")
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"reading {path} needs pyarrow: pip install 'melior[lm]'")
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(path).read()
    rows: list[dict[str, Any]] = table.to_pylist()
    encoded = [field.name for field in table.schema if field.metadata and ENCODED.items() <= field.metadata.items()]
    for row in rows:
        for name in encoded:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def _file_name(step: int, learner: str) -> str:
    return f"step-{step:06d}.parquet" if learner == POLICY else f"step-{step:06d}.{quote(learner, safe='')}.parquet"


def _names(run_folder: Path) -> list[str]:
    return [path.name for path, _ in _files(Path(run_folder) / "rollouts")]


def _files(folder: Path) -> list[tuple[Path, int]]:
    if not folder.is_dir():
        return []
    return [(path, int(match[1])) for path in folder.iterdir() if (match := FILE.fullmatch(path.name))]


def _shown(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{steps[0]}, {steps[1]}, ... {steps[-1]}"


Column = tuple[Any, bool]  # a pyarrow array, and whether its texts are JSON


def _columns(batch: Trajectories) -> dict[str, Column]:
    """Name -> column, in the order of the docstring above."""
    lengths = batch.length.cpu()

    def tensor(value: torch.Tensor, per_action: bool | None = None) -> Column:
        along = value.dim() > 1 and value.shape[1] == batch.mask.shape[1]
        return _array(value, lengths if (along if per_action is None else per_action) else None), False

    columns: dict[str, Column] = {"group": tensor(batch.group), "length": tensor(lengths)}
    columns |= _prompt("prompt", batch.prompt, tensor)
    columns |= _prompt("sampled_prompt", batch.sampled_prompt, tensor)
    texts = {name: batch.objects[name] for name in ("prompt_text", "text") if name in batch.objects}
    columns |= {name: _object_column(values) for name, values in texts.items()}
    if batch.tokens is not None:
        columns["token_ids"] = tensor(batch.tokens)
    columns |= {name: tensor(value) for name in FIGURES if (value := getattr(batch, name)) is not None}
    for name, value in batch.components.items():
        columns[f"reward/{name}"] = _array(value, None, nan_is_null=True), False
    for scorer, quantities in batch.scores.items():
        columns |= {f"scores/{scorer}/{name}": tensor(value) for name, value in quantities.items()}
    further = {name: tensor(value) for name, value in batch.columns.items() if name != "length"}
    further |= {name: tensor(value, per_action=False) for name, value in batch.features.items()}
    further |= {
        name: _object_column(values)
        for name, values in batch.objects.items()
        # A Prompt is what the columns above were made from.
        if name not in texts and not (values and isinstance(values[0], Prompt))
    }
    return columns | {f"column/{name}" if name in columns else name: column for name, column in further.items()}


def _prompt(name: str, prompt: Any, tensor: Any) -> dict[str, Column]:
    import pyarrow

    if isinstance(prompt, tuple):
        ids = [[int(token) for token in row] for row in prompt]
        return {f"{name}_ids": (pyarrow.array(ids, pyarrow.list_(pyarrow.int64())), False)}
    if isinstance(prompt, Mapping):
        return {f"{name}/{key}": tensor(value) for key, value in prompt.items()}
    return {} if prompt is None else {name: tensor(prompt)}


def _array(value: torch.Tensor, lengths: torch.Tensor | None, nan_is_null: bool = False) -> Any:
    """[B,...] -> a column of B numbers or nested lists; with `lengths`, only so many of [B,T,...] in each row."""
    import pyarrow

    value = value.detach().cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    if lengths is not None:
        present = torch.arange(value.shape[1]) < lengths[:, None]
        ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.clamp(max=value.shape[1]).cumsum(0)])
        return pyarrow.ListArray.from_arrays(pyarrow.array(ends.int().numpy()), _array(value[present], None))
    if value.dim() > 1:
        starts = torch.arange(value.shape[0] + 1) * value.shape[1]
        return pyarrow.ListArray.from_arrays(pyarrow.array(starts.int().numpy()), _array(value.flatten(0, 1), None))
    return pyarrow.array(value.numpy(), from_pandas=nan_is_null)


def _object_column(values: Sequence[Any]) -> Column:
    """Texts, truth values, whole numbers and floats as they are (None as null); anything else as JSON."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    plain = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    kind = kinds.pop() if len(kinds) == 1 else str if not kinds else None
    if kind in plain:
        try:
            return pyarrow.array(list(values), plain[kind]), False
        except (pyarrow.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass  # a number beyond 64 bits or half a surrogate pair: JSON can hold them
    return pyarrow.array([_json(value) for value in values], pyarrow.string()), True


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError):  # keys that are no text, or an object that contains itself
        return json.dumps(repr(value))

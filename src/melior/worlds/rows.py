"""Where a text run's rows come from: a task's generator, or data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from melior.data import PromptOrder, load_rows, split_rows
from melior.errors import UserError
from melior.settings import LanguageSettings
from melior.tasks import Task

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskRows:
    """A task's endless training rows."""

    task: Task
    seed: int

    def take(self, position: int, n: int) -> Sequence[tuple[int, Row]]:
        """See `melior.worlds.text.Rows`."""
        return [(index, self.task.row("train", index, self.seed)) for index in range(position, position + n)]


class DataRows:
    """Rows of a data set, every one once an epoch, in an order keyed by (seed, epoch)."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        self.rows, self._order = rows, PromptOrder(rows, seed)

    def take(self, position: int, n: int) -> Sequence[tuple[int, Row]]:
        """See `melior.worlds.text.Rows`."""
        return [(index, self.rows[index]) for index in self._order.take(position, n)]


@dataclass(frozen=True)
class Source:
    """The rows of a run.

    Attributes:
        train: training rows by position.
        held_out: rows of evaluations.
        sample: some rows, to check prompts, columns and references before anything runs.
        notes: what was decided on the user's behalf.
    """

    train: TaskRows | DataRows
    held_out: Sequence[Row]
    sample: Sequence[Row]
    notes: tuple[str, ...] = ()


def open_source(settings: LanguageSettings, task: Task | None, data: Any = None, eval_data: Any = None) -> Source:
    """The rows that the settings name, or those given as objects."""
    if data is None and not settings.data:
        if task is None:
            raise UserError("nothing to learn from: give a task or data")
        held_out = task.rows("test", settings.eval_prompts)
        train = TaskRows(task, settings.seed)
        return Source(train, held_out, [row for _, row in train.take(0, 8)])
    rows = _load(settings.data if data is None else data, settings)
    notes = tuple(getattr(rows, "notes", ()))
    if eval_data is not None or settings.eval_data:
        held_out = _load(settings.eval_data if eval_data is None else eval_data, settings)
        learn: Sequence[Row] = rows
    elif not settings.eval_prompts:
        learn, held_out = rows, []
    elif settings.eval_fraction > 0 and len(rows) > 1:
        learn, held_out = split_rows(rows, settings.eval_fraction, 0)
    else:
        learn, held_out = rows, rows
        notes = (*notes, "no rows are held out: the evaluation uses the training rows")
    return Source(DataRows(learn, settings.seed), held_out, [*learn, *held_out], notes)


def _load(source: Any, settings: LanguageSettings) -> Any:
    return load_rows(
        source,
        settings.prompt_column or "prompt",
        template=settings.prompt_template or None,
        answer_column=settings.answer_column or None,
    )

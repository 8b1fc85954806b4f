"""Prompts from anywhere: `load_rows` reads, finds the prompt, checks every row, and keeps all columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from melior.data.readers import read_rows
from melior.data.row import Row, check_prompt
from melior.data.template import PromptTemplate
from melior.errors import UserError, near

PROMPT_COLUMNS = ("question", "problem", "instruction", "query", "input")


class Rows(list[Row]):
    """A list of rows, and `notes`: sentences to print once about how they were read."""

    def __init__(self, rows: Iterable[Row] = (), notes: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.notes = tuple(notes)


def load_rows(
    source: Any, column: str = "prompt", template: str | None = None, answer_column: str | None = None
) -> Rows:
    """Rows whose `prompt` is a text or a list of chat messages, with every other column kept.

    `source` is a path (.jsonl, .json, .parquet), a hub id (`org/name`, `org/name:split`, `org/name/config:split`), or
    in memory a list of dicts, a `datasets.Dataset`, a pandas frame or any iterable of mappings.

    The prompt is the column `column`; or `template` filled from the columns ("Question: {question}\\nAnswer:"). With
    neither, rows without a `prompt` column use the only one of question, problem, instruction, query and input that
    they have, and a note says so. `answer_column` (dots reach into nested columns: `reward_model.ground_truth`) is
    copied to `answer`. Where that replaces a column of the same name, the old one is kept as `original_prompt` or
    `original_answer`. The source's own rows are not changed.

    Raises UserError naming the file and the line, row or item.
    """
    if template is not None and column != "prompt":
        raise UserError("a prompt column and a prompt template were both given; a template names its columns itself")
    rows = read_rows(source)
    if not rows:
        raise UserError(f"{source if isinstance(source, str | Path) else 'the data'} holds no rows")
    notes: list[str] = []
    if template is not None:
        parsed = PromptTemplate(template)
        prompts = [parsed.fill(row, row.place) for row in rows]
    else:
        column, note = _prompt_column(rows, column)
        notes += [note] if note else []
        prompts = [_cell(row, column, "--prompt-column or --prompt-template") for row in rows]
    answers = [_nested(row, answer_column) for row in rows] if answer_column else []
    origin = None if template is not None else column
    for row, prompt in zip(rows, prompts, strict=True):
        prompt = _as_list(prompt)
        check_prompt(prompt, row.place, origin or "prompt")
        _put(row, "prompt", prompt, origin)
    for row, answer in zip(rows, answers, strict=False):
        _put(row, "answer", answer, answer_column)
    return Rows(rows, notes)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The columns that every row has (a reward may rely on these); empty for no rows."""
    shared: set[str] | None = None
    for row in rows:
        shared = set(row) if shared is None else shared & row.keys()
    return shared or set()


def _prompt_column(rows: list[Row], column: str) -> tuple[str, str | None]:
    """The column that holds the prompts, and a note when it is not the one asked for."""
    if column != "prompt" or any("prompt" in row for row in rows):
        return column, None
    known = [name for name in PROMPT_COLUMNS if any(name in row for row in rows)]
    if len(known) > 1:
        both = "\\n".join(f"{{{name}}}" for name in known)
        raise UserError(
            f"{rows[0].place}: no column 'prompt', and each of {', '.join(known)} could be it; "
            f"choose with --prompt-column {known[0]}, or combine them with --prompt-template '{both}'"
        )
    if not known:
        return column, None
    return known[0], f"prompts are read from the column {known[0]!r} (there is no column 'prompt')"


def _cell(row: Row, column: str, option: str) -> Any:
    if column in row:
        return row[column]
    hint = near(column, row)
    hint = hint if hint.startswith("; did you mean") else ""  # the columns are listed anyway
    raise UserError(f"{row.place}: no column {column!r} (columns: {', '.join(row) or 'none'}); set {option}{hint}")


def _nested(row: Row, column: str) -> Any:
    """The column, or when no column has this name, what its dotted path leads to."""
    name, *path = [column] if column in row else column.split(".")
    value = _cell(row, name, "--answer-column")
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            keys = list(value) if isinstance(value, Mapping) else []
            raise UserError(f"{row.place}: {column!r} leads nowhere, {name!r} has no {key!r}{near(key, keys)}")
        name, value = f"{name}.{key}", value[key]
    return value


def _as_list(prompt: Any) -> Any:
    """Chat messages as a list of plain dicts without the null keys that a table's schema adds to them."""
    if not isinstance(prompt, list | tuple):
        return prompt
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"}
        if isinstance(message, Mapping)
        else message
        for message in prompt
    ]


def _put(row: Row, column: str, value: Any, source: str | None) -> None:
    """Set a column from another one; what stood there under the same name is kept, since rewards may read it."""
    kept = f"original_{column}"
    if column in row and source != column:
        if kept in row:
            raise UserError(f"{row.place}: the columns {column!r} and {kept!r} are both taken; rename one of them")
        row[kept] = row[column]
    row[column] = value

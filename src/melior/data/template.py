"""A prompt made from a row's columns: plain fields only, so that a template can reach nothing else."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from melior.errors import UserError, near


class PromptTemplate:
    r"""Text with {column} fields; {{ and }} are braces, and \n is a new line (which shells do not make of it).

    Write \\n for a backslash and an n. Fields are column names and nothing more: no attributes, indices, conversions
    or formats.
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"\\(\\?)n", lambda match: r"\n" if match[1] else "\n", text)
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise UserError(
                f"the prompt template {text!r} is malformed ({error}); write {{{{ and }}}} for braces that are text"
            ) from error
        for _, name, form, conversion in parsed:
            if name is not None and (not name or form or conversion):
                field = "{" + name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
                raise UserError(
                    f"the prompt template's field {field} is not a plain column name; write {{column}}, "
                    "and {{ and }} for braces that are text"
                )
        self.pieces = [(literal, name) for literal, name, _, _ in parsed]
        if all(name is None for _, name in self.pieces):
            raise UserError(f"the prompt template {text!r} names no column; write for example 'Question: {{question}}'")

    def fill(self, row: Mapping[str, Any], place: str) -> str:
        """The template with the row's values; UserError for a column that the row lacks or that is null."""
        return "".join(literal + ("" if name is None else _value(row, name, place)) for literal, name in self.pieces)


def _value(row: Mapping[str, Any], name: str, place: str) -> str:
    if name not in row:
        raise UserError(f"{place}: the prompt template asks for a column {name!r} that is not there{near(name, row)}")
    if row[name] is None:
        raise UserError(f"{place}: the prompt template asks for the column {name!r}, which is null in this row")
    return str(row[name])

"""A template reaches columns and nothing else."""

from __future__ import annotations

import pytest

from melior.data import load_rows
from melior.errors import UserError

ROW = {"question": "What is {x}?", "level": 3, "extra info": "hint", "a.b": "dotted", "gone": None, "prompt": "old"}


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Question: {question}\nAnswer:", "Question: What is {x}?\nAnswer:"),
        (r"Question: {question}\nAnswer:", "Question: What is {x}?\nAnswer:"),
        (r"{question} \\not \text \boxed{{}}", r"What is {x}? \not \text \boxed{}"),
        ("{level}/{extra info}/{a.b}", "3/hint/dotted"),
        ("Again: {prompt}", "Again: old"),
    ],
)
def test_fields_are_filled_from_any_columns(template, prompt):
    row = load_rows([ROW], template=template)[0]
    assert row == ROW | {"prompt": prompt, "original_prompt": "old"}


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{qestion}", r"row 1 of the data: .*'qestion' that is not there; did you mean 'question'\?"),
        ("{question.__class__}", r"asks for a column 'question\.__class__' that is not there"),
        ("{question[0]}", r"asks for a column 'question\[0\]' that is not there"),
        ("{0}", "asks for a column '0' that is not there"),
        ("{question!r}", r"field \{question!r\} is not a plain column name"),
        ("{question:>10}", r"field \{question:>10\} is not a plain column name"),
        ("{question:{level}}", "is not a plain column name"),
        ("{}", "is not a plain column name"),
        ("{question", "is malformed"),
        ("question}", "is malformed"),
        ("Answer:", "names no column"),
        ("{gone}", "'gone', which is null in this row"),
    ],
)
def test_whatever_else_is_refused(template, what):
    with pytest.raises(UserError, match=what):
        load_rows([ROW], template=template)


def test_template_and_column_exclude_each_other():
    with pytest.raises(UserError, match="both given"):
        load_rows([ROW], column="question", template="{question}")


def test_a_template_that_renders_nothing_is_an_empty_prompt():
    with pytest.raises(UserError, match=r"row 1 of the data: the prompt .* is blank"):
        load_rows([{"question": " "}], template="{question}\n")

"""What the user may give as a reward, and one clear sentence for what not."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy
import pytest

from melior.errors import UserError
from melior.rewards.functions import RewardFunction, check_columns, reference_of, resolve, with_unique_names

FILE = """
from dataclasses import dataclass

def score(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

class Judge:
    def __call__(self, completions):
        return [1.0] * len(completions)

judge = Judge()
LIMIT = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_file_a_module_and_a_callable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = resolve(f"{file}:score", weight=0.5)
    assert (given.name, given.weight, given.style, given.isolated) == ("score", 0.5, "trl", False)
    assert given.call(completions=["a", "b"], answer=["a", "c"]) == [1.0, 0.0]
    assert given.call.__code__.co_filename == str(file)  # what tracebacks and breakpoint() show
    assert resolve(f"{file}:compute_score").style == "verl"
    assert resolve(f"{file}:judge").name == "Judge"
    monkeypatch.chdir(file.parent)
    assert resolve("mine:score").spec == "mine:score"
    assert resolve(lambda completions: [0.0]).name == "lambda"
    assert resolve(functools.partial(given.call, answer=[1])).name == "score"


def test_a_callable_knows_the_module_that_a_worker_can_load_it_from() -> None:
    assert resolve(json.dumps).spec == "json:dumps"
    assert resolve(lambda completions: [0.0]).spec == ""


def test_a_file_is_read_afresh(file: Path) -> None:
    resolve(f"{file}:score")
    file.write_text("def score(completions): return [2.0]")
    assert resolve(f"{file}:score").call(["x"]) == [2.0]


def test_a_file_may_have_the_name_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("import json\ndef score(completions): return [json.loads('1')]")
    assert resolve(f"{tmp_path}/json.py:score").call(["x"]) == [1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{folder}/mime.py:score", r"there is no file .*mime.py; did you mean 'mine.py'"),
        ("{folder}/mine.py:scroe", r"mine.py has no 'scroe'; did you mean .*'score'"),
        ("{folder}/mine.py:LIMIT", "is of type int and cannot be called"),
        ("{folder}/mine.py:Judge", "is a class; give an instance"),
        ("{folder}/mine.py", "name the function after a colon"),
        ("{folder}/broken.py:score", "broken.py cannot be imported: NameError: name 'undefined' is not defined"),
        ("{folder}/syntax.py:score", "syntax.py cannot be imported: SyntaxError"),
        ("no_such_module_here:score", "there is no module 'no_such_module_here'"),
        ("formt:think,answer", r"there is no module 'formt' .*; did you mean 'format'\?"),
        ("exakt", r"neither a built-in nor path.py:NAME nor module:NAME; did you mean 'exact'\?"),
        ("json:no_such", "json has no 'no_such'"),
        ("exact:answer", "exact takes no argument; a reference column is named as exact@COLUMN"),
        ("numeric@", "name the reference column after @"),
        ("regex", "write regex:PATTERN"),
        ("regex@answer:x", "regex compares with no column"),
        ("regex:(", "is not a regular expression"),
        ("format:a,a", "different tag names"),
        ("length:long", "needs a number"),
        ("length:0", "needs a number"),
    ],
)
def test_mistakes_are_one_sentence(file: Path, spec: str, message: str) -> None:
    (file.parent / "broken.py").write_text("x = undefined")
    (file.parent / "syntax.py").write_text("def score(:")
    with pytest.raises(UserError, match=message) as caught:
        resolve(spec.format(folder=file.parent))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_is_finite(weight: float) -> None:
    with pytest.raises(UserError, match="finite"):
        resolve("exact", weight)


@pytest.mark.parametrize(
    ("spec", "text", "reference", "value"),
    [
        ("exact", "18 ", "18", 1.0),
        ("numeric@ref", "it is 18", "18", 1.0),
        ("numeric", "it is 18", ["17", "18"], 1.0),  # several right answers
        ("exact", "b", numpy.array(["a", "b"]), 1.0),  # as Parquet may bring them
        ("regex:a:b", "xa:by", None, 1.0),
        ("format:think,answer", "<think></think><answer></answer>", None, 1.0),
        ("length:3", "abcd", None, 0.0),
        ("length:3words", "a b c", None, 1.0),
    ],
)
def test_built_ins(spec: str, text: str, reference: object, value: float) -> None:
    assert resolve(spec).call(text, reference) == value


def test_only_math_is_isolated_and_scores_what_takes_too_long() -> None:
    assert (resolve("math").isolated, resolve("math").on_timeout) == (True, "score")
    assert (resolve("regex:x").isolated, resolve("regex:x").on_timeout) == (False, "raise")


def test_equal_names_get_numbers() -> None:
    functions = with_unique_names([resolve("regex:a"), resolve("regex:b"), resolve("exact")])
    assert [function.name for function in functions] == ["regex", "regex_2", "exact"]


# ------------------------------------------------------------------------------------------ columns


def verl_scorer(data_source, solution_str, ground_truth, extra_info=None): ...


def asks(completions, anwser, **kwargs): ...


@pytest.mark.parametrize(
    ("function", "columns", "message"),
    [
        (
            resolve(asks),
            ["question", "answer"],
            r"'asks' has a parameter 'anwser'.*columns are answer, question; did you",
        ),
        (resolve(lambda completion: 0), ["answer"], r"'completion', .*did you mean 'completions'"),
        (resolve(verl_scorer), ["question"], "'verl_scorer' has a parameter 'ground_truth'"),
        (resolve("exact"), ["question"], "reference answer in a column answer or solution or ground_truth"),
        (
            resolve("exact@anser"),
            ["answer"],
            r"needs a column 'anser'; its columns are answer; did you mean 'answer'\?",
        ),
    ],
)
def test_a_column_that_is_not_there(function: RewardFunction, columns: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_columns(function, columns)


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (resolve(asks), ["anwser"]),
        (resolve(lambda prompts, completions, completion_ids, trainer_state, limit=3: []), []),
        (resolve(verl_scorer), ["reward_model"]),
        (resolve("exact"), ["solution"]),
        (resolve("math@target"), ["target"]),
        (resolve("length:3"), []),
    ],
)
def test_columns_that_suffice(function: RewardFunction, columns: list[str]) -> None:
    check_columns(function, columns)


def test_where_the_reference_is_found() -> None:
    row = {"answer": None, "solution": "2", "ground_truth": "3", "other": "4"}
    assert reference_of(row, None) == "2"
    assert reference_of(row, "other") == "4"
    assert reference_of({**row, "reward_model": {"ground_truth": "5"}}, None) == "5"
    assert reference_of(row, None, ("ground_truth", "answer")) == "3"
    assert reference_of({}, None) is None

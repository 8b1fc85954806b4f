"""Rows, splits and the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melior.errors import UserError
from melior.tasks import MAKERS, TASKS, get_task, split_of
from melior.tasks.task import Task

WITH_HELD_OUT = [name for name, task in TASKS.items() if not task.fixed]


@pytest.mark.parametrize("name", TASKS)
def test_references_earn_full_marks_in_every_reward(name: str) -> None:
    task = TASKS[name]
    rows = task.rows("train", 200) + task.rows("test", 50)
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    prompts = columns.pop("prompt")
    for reward in task.rewards.values():
        assert reward(prompts, columns["answer"], [[0]] * len(rows), **columns, trainer_state=None) == [1.0] * len(rows)
        assert reward(prompts, ["no idea"] * len(rows), [[0]] * len(rows), **columns).count(0.0) in (0, len(rows))
    outcome = task.rewards[task.outcome]
    assert outcome(prompts, ["no idea"] * len(rows), [[0]] * len(rows), **columns) == [0.0] * len(rows)


@pytest.mark.parametrize("name", TASKS)
def test_references_fit_the_recommended_length_with_an_end_token(name: str) -> None:
    task = TASKS[name]
    spare = 0 if name == "lock" else 1  # the tabular policy has no end token, and a code is as long as it must be
    assert max(len(row["answer"]) for row in task.rows("train", 500)) + spare <= task.settings["max_tokens"]


@pytest.mark.parametrize("name", WITH_HELD_OUT)
def test_no_held_out_prompt_is_ever_trained_on(name: str) -> None:
    task = TASKS[name]
    held_out = {row["prompt"] for seed in (0, 1) for row in task.rows("test", 150, seed)}
    trained = {row["prompt"] for seed in (0, 1, 2) for row in task.rows("train", 1000, seed)}
    assert len(held_out) > 150 and not held_out & trained
    assert {split_of(prompt) for prompt in held_out} == {"test"}


@pytest.mark.parametrize("name", TASKS)
def test_held_out_rows_are_distinct(name: str) -> None:
    prompts = [row["prompt"] for row in TASKS[name].rows("test", 200)]
    assert len(set(prompts)) == len(prompts) == (16 if name == "lock" else 200)


def test_a_small_task_gives_all_its_held_out_rows_and_says_when_one_is_missing() -> None:
    task = get_task("arithmetic:digits=1")
    rows = task.rows("test", 10_000)
    signs = [(a, b, sign) for a in range(10) for b in range(10) for sign in "+-" if sign == "+" or a >= b]
    assert {row["prompt"] for row in rows} == {p for a, b, s in signs if split_of(p := f"{a}{s}{b}=") == "test"}
    with pytest.raises(UserError, match=f"has {len(rows)} held-out rows; row {len(rows)} was asked for"):
        task.row("test", len(rows))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_row_does_not_depend_on_how_many_are_drawn(name: str, split: str) -> None:
    task = TASKS[name]
    rows = task.rows(split, 12, seed=3)
    assert rows == [task.row(split, index, seed=3) for index in range(12)]
    assert rows[:5] == task.rows(split, 5, seed=3)


@pytest.mark.parametrize("name", TASKS)
def test_seeds_give_different_training_rows(name: str) -> None:
    task = TASKS[name]
    assert task.rows("train", 20, seed=0) != task.rows("train", 20, seed=1)


def test_rows_are_the_same_in_another_process() -> None:
    program = (
        "import json; from melior.tasks import TASKS;"
        "print(json.dumps({name: task.rows('train', 5, 7) + task.rows('test', 5, 7) for name, task in TASKS.items()}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    here = {name: task.rows("train", 5, 7) + task.rows("test", 5, 7) for name, task in TASKS.items()}
    assert json.loads(output.stdout) == here


def test_the_catalogue_of_tasks_needs_neither_torch_nor_transformers() -> None:
    program = "import sys, melior.tasks; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


@given(st.text())
def test_every_prompt_has_one_split(prompt: str) -> None:
    assert split_of(prompt) in ("train", "test")


def test_about_a_fifth_is_held_out() -> None:
    held_out = sum(split_of(f"{a}+{b}=") == "test" for a in range(100) for b in range(100))
    assert 1800 < held_out < 2200


def test_names_carry_their_options() -> None:
    for name in ("lock:P=4,L=3", "arithmetic:digits=3", "countdown:numbers=4", "sorting:length=8", "lock:seed=2"):
        assert get_task(name).name == name
        assert get_task(get_task(name).name).rows("train", 3) == get_task(name).rows("train", 3)
    assert get_task("lock:P=16,L=6,V=4").name == "lock"
    assert get_task("lock:P=4", P=5).name == "lock:P=5"
    assert get_task("arithmetic") is TASKS["arithmetic"]
    assert list(MAKERS) == list(TASKS) == [task.name for task in TASKS.values()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arithmetics", "unknown task 'arithmetics'; did you mean 'arithmetic'"),
        ("lock:Q=3", "task 'lock' has no option 'Q'; choose from L, P, V, seed"),
        ("format-arithmetic:digits=3", "takes no options"),
        ("lock:P", "cannot read the options of task 'lock:P'"),
        ("lock:P=4,", "cannot read the options"),
        ("lock:P=few", "option P='few' is not a whole number"),
        ("lock:P=0", "P=0 is outside 1 to 100000"),
        ("lock:V=27", "V=27 is outside 1 to 26"),
        ("arithmetic:digits=9", "digits=9 is outside 1 to 6"),
        ("countdown:numbers=1", "numbers=1 is outside 2 to 6"),
        ("sorting:length=99", "length=99 is outside 2 to 36"),
    ],
)
def test_a_wrong_name_or_option_is_a_clear_error(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        get_task(name)


def test_an_unknown_split_or_outcome_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="unknown split 'tests' of a task; did you mean 'test'"):
        TASKS["sorting"].rows("tests", 1)
    with pytest.raises(UserError, match="task 'mine' has no reward called 'right'"):
        Task("mine", "", lambda rng: {"prompt": "a", "answer": "b"}, {}, "right")

"""The solutions that the bundled model was pre-trained on: how often they are wrong, and in which way."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest

from melior.tasks import TASKS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pretrain_bundled_model.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("pretrain_bundled_model", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["arithmetic", "countdown", "sorting", "format-arithmetic"])
def test_without_noise_they_are_the_references(script: Any, name: str) -> None:
    rows = TASKS[name].rows("train", 300)
    assert [script.SOLUTIONS[name](random.Random(0), row, 0.0) for row in rows] == [row["answer"] for row in rows]


@pytest.mark.parametrize("name", list(TASKS))
def test_with_noise_they_fail_about_as_often_as_meant(script: Any, name: str) -> None:
    task, noise = TASKS[name], script.NOISE[name]
    rng, rows = random.Random(0), TASKS[name].rows("train", 2000)
    solutions = [script.SOLUTIONS[name](rng, row, noise) for row in rows]
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    passed = task.rewards[task.outcome](columns.pop("prompt"), solutions, None, **columns)
    unread = 2 * noise / 5  # one of the five broken forms hides a right answer
    expected = {
        "arithmetic": (1 - noise) ** 2,
        "countdown": 1 - noise,
        "sorting": 1 - noise,
        "format-arithmetic": (1 - noise) ** 2 * (1 - unread),
        "lock": 0.0,
    }[name]
    assert sum(passed) / len(rows) == pytest.approx(expected, abs=0.04)


def test_a_wrong_step_is_carried_on(script: Any) -> None:
    for seed in range(200):
        steps, value = script.flawed_steps(random.Random(seed), "27+58", 1.0)
        ones, tens = (int(step.split("=")[1]) for step in steps)
        assert ones != 15 and tens != 7 + int(ones >= 10) and value == 10 * tens + ones % 10
        assert steps[1].startswith("2+5+1=" if ones >= 10 else "2+5=")


def test_batches_are_the_same_for_the_same_seed_and_hold_no_held_out_prompt(script: Any) -> None:
    tokenizer = script.build_tokenizer()
    first, again, other = (next(script.batches(tokenizer, 64, 4, seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert [len(part) for part in first] == [16] * 4
    held_out = {row["prompt"] for name, task in TASKS.items() if name != "lock" for row in task.rows("test", 400)}
    for ids, labels in (example for part in first for example in part):
        prompt = tokenizer.decode([token for token, label in zip(ids, labels, strict=True) if label == script.IGNORED])
        assert prompt not in held_out
        assert ids[-1] == labels[-1] == tokenizer.eos_token_id

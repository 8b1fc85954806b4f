"""Data sets of reasoning-gym as tasks."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy
import pytest

# Some of its dependencies are compiled where they are installed, so the test extra does without it.
pytest.importorskip("reasoning_gym")

from melior.errors import UserError
from melior.loops.language import build
from melior.records.catalogue import resolve
from melior.settings import LanguageSettings
from melior.tasks import get_task, split_of
from melior.tasks.reasoning_gym import HASH_ORDERED, ITEMS

SUMS = "reasoning-gym:chain_sum,min_terms=2,max_terms=2,min_digits=1,max_digits=1"
SLOW = ("arc_agi", "futoshiki", "intermediate_integration", "knight_swap", "zebra_puzzles")
UNREFERENCED = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")


def names() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite", *HASH_ORDERED, *SLOW})


def judged(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    prompts = columns.pop("prompt")
    return get_task(rows[0]["task"]).rewards["score"](prompts, completions, [[0]] * len(rows), **columns)


@pytest.mark.parametrize("name", names())
def test_a_reference_scores_one_and_other_text_less(name: str) -> None:
    rows = get_task(f"reasoning-gym:{name}").rows("train", 2)
    answers = [row["answer"] for row in rows]
    if name in UNREFERENCED:
        assert answers == [None, None]
    else:
        assert judged(rows, [f" {answer}\n" for answer in answers]) == [1.0, 1.0]
        assert judged(rows, [f"So: <answer>{answer}</answer>." for answer in answers]) == [1.0, 1.0]
    # The halting game takes any text without "True" for the answer "no".
    assert name == "game_of_life_halting" or all(0 <= value < 1 for value in judged(rows, ["no idea"] * 2))  # type: ignore[operator]


def test_partial_credit_is_the_packages_own() -> None:
    rows = get_task(SUMS).rows("train", 1)
    import reasoning_gym

    dataset = reasoning_gym.create_dataset("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1, seed=0)
    entry = dataset[rows[0]["item"]]
    assert entry["question"] == rows[0]["prompt"] and entry["answer"] == rows[0]["answer"]
    for text in ("", f"{entry['answer']}.0", "x", f"It is {entry['answer']}"):
        assert judged(rows, [text]) == [dataset.score_answer(text, entry)]


def test_a_verifier_that_raises_gives_zero() -> None:
    rows = get_task("reasoning-gym:prime_factorization").rows("train", 1)
    assert judged(rows, ["no idea"]) == [0.0]


def test_what_may_be_evaluated_is_judged_in_a_worker_process() -> None:
    name = "reasoning-gym:binary_matrix,max_n=3"
    run = build(resolve("grpo"), LanguageSettings(task=name, max_tokens=8, eval_prompts=2))
    rows = get_task(name).rows("train", 2)
    with run.world.rewards as rewards:  # type: ignore[attr-defined]
        result = rewards(rows, [row["prompt"] for row in rows], [rows[0]["answer"], "exit()"], [[0], [0]])
    assert result.components == {"score": [1.0, 0.0]} and result.metrics["reward/score_failures"] == 1.0
    assert not get_task(SUMS).isolated


def test_no_held_out_prompt_is_ever_trained_on() -> None:
    task = get_task(SUMS)
    held_out = [row["prompt"] for row in task.rows("test", 1000)]
    trained = {row["prompt"] for seed in (0, 1) for row in task.rows("train", 500, seed)}
    assert 20 < len(held_out) == len(set(held_out)) < 60  # one in five of the 200 sums and differences
    assert not trained & set(held_out) and {split_of(prompt) for prompt in held_out} == {"test"}
    assert task.row("train", 10**9) == task.row("train", 10**9) != task.row("train", 10**9, seed=1)


def test_a_data_set_of_one_prompt_is_refused_rather_than_searched_for_ever() -> None:
    task = get_task("reasoning-gym:n_queens,n=4,min_remove=4,max_remove=4")
    splits = {split_of(task.generate(random.Random(seed))["prompt"]) for seed in range(20)}
    assert len(splits) == 1
    with pytest.raises(UserError, match=r"too few different prompts: none of 1000 drawn is a (training|held-out) one"):
        task.rows("test" if splits == {"train"} else "train", 1)


def test_rows_are_the_same_in_another_process() -> None:
    chosen = [SUMS, "reasoning-gym:list_functions", "reasoning-gym:pool_matrix", "reasoning-gym:acre"]
    program = (
        "import json; from melior.tasks import get_task;"
        f"print(json.dumps([get_task(name).rows('train', 3, 7) for name in {chosen!r}]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(output.stdout) == [get_task(name).rows("train", 3, 7) for name in chosen]


def test_global_random_states_and_the_output_stay_as_they_were() -> None:
    # In a process of its own, since the suite's shape checks draw from the global generator.
    program = """
import random, numpy
from melior.tasks import get_task
before, numpys = random.getstate(), numpy.random.get_state()[1].tolist()
for name in ("pool_matrix", "list_functions", "bf"):
    task = get_task(f"reasoning-gym:{name}")
    rows = task.rows("train", 3, seed=5)
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    assert task.rewards["score"](columns.pop("prompt"), columns["answer"], **columns) == [1.0] * 3
print(random.getstate() == before, numpy.random.get_state()[1].tolist() == numpys)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "True True\n"


def test_names_carry_their_options_in_one_order() -> None:
    assert get_task("reasoning-gym:chain_sum,max_terms=3,min_terms=2").name == "reasoning-gym:chain_sum,max_terms=3"
    task = get_task("reasoning-gym:word_sorting,transformation=uppercase,max_words=4")
    assert task.name == "reasoning-gym:word_sorting,max_words=4,transformation=uppercase"
    assert get_task("reasoning-gym:chain_sum,allow_negation=true").name.endswith("allow_negation=true")
    for name in (task.name, SUMS):
        assert get_task(get_task(name).name).rows("train", 3) == get_task(name).rows("train", 3)
    assert get_task("reasoning-gym:chain_sum", max_terms=3).name == "reasoning-gym:chain_sum,max_terms=3"


def test_the_recommended_length_holds_the_references() -> None:
    assert get_task(SUMS).settings["max_tokens"] == 64
    assert get_task("reasoning-gym:sudoku").settings["max_tokens"] >= 161


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reasoning-gym", "name one of the [0-9]+ data sets of reasoning-gym, such as 'reasoning-gym:chain_sum'"),
        ("reasoning-gim:chain_sum", "unknown task 'reasoning-gim'; did you mean 'reasoning-gym:NAME'"),
        ("reasoning-gym:chain_sun", "no data set 'chain_sun'; did you mean 'chain_sum'"),
        ("reasoning-gym:chain_sum,max_term=3", "no option 'max_term'; did you mean 'max_terms'"),
        ("reasoning-gym:chain_sum,max_terms=few", "option max_terms must be a whole number, got 'few'"),
        ("reasoning-gym:chain_sum,max_terms", "cannot read the options"),
        ("reasoning-gym:chain_sum,max_terms=1", "cannot be made: max_terms must be >= min_terms"),
        ("reasoning-gym:chain_sum,seed=3", "takes no seed: rows follow the run's seed"),
        ("reasoning-gym:basic_arithmetic,operators=+", "'operators' holds several values"),
        ("reasoning-gym:arc_agi,board_format_opts=x", "'board_format_opts' holds several values"),
        ("reasoning-gym:composite", "would need a list of data sets"),
    ],
)
def test_a_wrong_name_or_option_is_a_clear_error(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        get_task(name)


def test_items_that_follow_the_hash_seed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(UserError, match="set the environment variable PYTHONHASHSEED=0"):
        get_task(f"reasoning-gym:{HASH_ORDERED[0]}")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "reasoning_gym" else there(n, *a))
    with pytest.raises(UserError, match=r"pip install 'melior\[reasoning-gym\]'"):
        get_task("reasoning-gym:gcd")


def test_item_numbers_fit_numpys_seeds() -> None:
    numpy.random.RandomState(ITEMS - 1)

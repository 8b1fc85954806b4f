"""Held-out prompts are never trained on, whatever the order of the rows."""

from __future__ import annotations

import random

import pytest

from melior.data import load_rows, split_rows
from melior.errors import UserError

ROWS = [{"prompt": f"prompt {i % 40}", "i": i} for i in range(100)]


def test_duplicates_never_straddle_and_nothing_is_lost():
    train, held_out = split_rows(ROWS, 0.25, seed=0)
    trained, held = {r["prompt"] for r in train}, {r["prompt"] for r in held_out}
    assert len(held) == 10 and len(trained) == 30 and not trained & held
    assert sorted(r["i"] for r in train + held_out) == list(range(100))
    assert [r["i"] for r in held_out] == sorted(r["i"] for r in held_out)


def test_the_order_of_the_rows_does_not_matter_and_the_seed_does():
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    held = {r["i"] for r in split_rows(ROWS, 0.25, seed=0)[1]}
    assert {r["i"] for r in split_rows(shuffled, 0.25, seed=0)[1]} == held
    assert {r["i"] for r in split_rows(ROWS, 0.25, seed=1)[1]} != held


def test_the_split_is_the_same_on_every_machine():
    rows = [{"prompt": str(i)} for i in range(8)]
    assert [r["prompt"] for r in split_rows(rows, 0.25, seed=0)[1]] == ["0", "1"]


def test_new_rows_do_not_reshuffle():
    held = {r["prompt"] for r in split_rows(ROWS, 0.25, seed=0)[1]}
    later = {r["prompt"] for r in split_rows([*ROWS, {"prompt": "new"}], 0.25, seed=0)[1]}
    assert len(held - later) <= 1


def test_messages_are_split_by_content_and_rows_keep_their_place():
    rows = load_rows([{"prompt": [{"role": "user", "content": str(i // 2)}]} for i in range(8)])
    train, held_out = split_rows(rows, 0.5, seed=0)
    assert len(train) == len(held_out) == 4
    assert {r.place for r in train + held_out} == {f"row {i} of the data" for i in range(1, 9)}


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 0), (1e-9, 1), (0.999, 3)])
def test_each_side_keeps_a_prompt_unless_nothing_is_held_out(fraction, held_out):
    rows = [{"prompt": str(i)} for i in range(4)]
    assert [len(part) for part in split_rows(rows, fraction, seed=0)] == [4 - held_out, held_out]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 20.0])
def test_bad_fractions(fraction):
    with pytest.raises(UserError, match="at least 0 and below 1"):
        split_rows(ROWS, fraction, seed=0)


def test_one_prompt_cannot_be_split():
    with pytest.raises(UserError, match=r"1 different prompt\(s\) cannot be split"):
        split_rows([{"prompt": "a"}] * 5, 0.5, seed=0)

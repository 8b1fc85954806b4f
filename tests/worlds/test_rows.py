"""Where training rows and held-out rows come from."""

from __future__ import annotations

import pytest

from melior.errors import UserError
from melior.settings import LanguageSettings
from melior.tasks import get_task
from melior.worlds.rows import open_source
from runs import sums, write_rows


def opened(data=None, eval_data=None, task=None, **settings):
    return open_source(LanguageSettings(task="", **settings), task, data, eval_data)


def test_a_task_has_endless_rows_and_a_set_held_out():
    task = get_task("arithmetic")
    source = opened(task=task, eval_prompts=5, seed=3)
    first = source.train.take(0, 4)
    assert [index for index, _ in first] == [0, 1, 2, 3]
    assert source.train.take(2, 2) == first[2:]
    assert len(source.held_out) == 5 and len(source.train.take(10**6, 3)) == 3
    assert opened(task=task, seed=4).train.take(0, 4) != first
    assert opened(task=task, eval_prompts=5, seed=4).held_out == source.held_out


def test_every_row_comes_once_an_epoch_in_an_order_of_the_seed():
    source = opened(sums(10), eval_fraction=0.0, seed=1)
    epochs = [[index for index, _ in source.train.take(start, 10)] for start in (0, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and epochs[0] != epochs[1]
    assert [index for index, _ in source.train.take(7, 5)] == epochs[0][7:] + epochs[1][:2]


def test_rows_held_out_are_not_trained_on_whatever_the_seed():
    for seed in (0, 1):
        source = opened(sums(10), eval_fraction=0.3, seed=seed)
        trained = {row["prompt"] for _, row in source.train.take(0, 30)}
        assert (
            len(trained) == 7
            and {row["prompt"] for row in source.held_out} == {row["prompt"] for row in sums(10)} - trained
        )
    assert [row["prompt"] for row in opened(sums(10), eval_fraction=0.3).held_out] == [
        row["prompt"] for row in source.held_out
    ]


def test_rows_given_for_evaluation_leave_all_others_for_training(tmp_path):
    other = write_rows(tmp_path / "other.jsonl", sums(3))
    for source in (opened(sums(10), eval_data=str(other)), opened(sums(10), sums(3))):
        assert len(source.held_out) == 3 and len({index for index, _ in source.train.take(0, 10)}) == 10
        assert len(source.sample) == 13


def test_without_held_out_rows_it_is_said_that_training_rows_are_used():
    source = opened(sums(4), eval_fraction=0.0)
    assert source.notes == ("no rows are held out: the evaluation uses the training rows",)
    assert len(source.held_out) == 4


def test_nothing_to_learn_from_is_a_sentence():
    with pytest.raises(UserError, match="give a task or data"):
        opened()

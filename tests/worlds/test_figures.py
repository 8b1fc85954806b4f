"""What is logged of a scored batch and of an evaluation, on batches that can be counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from melior.worlds.figures import batch_figures, held_out_figures
from toys import table_batch

NAN = math.nan


def judged(outcome, group, lengths=None, **components):
    batch = table_batch(outcome, [[0, 1]] * len(outcome), group)
    lengths = torch.tensor(lengths or [2] * len(outcome))
    truncated = lengths == 2
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in components.items()}
    return batch.column(length=lengths, truncated=truncated).with_(components=tensors)


def test_rates_and_shares_of_a_batch():
    batch = judged([1, 0, 0.5, 0.5, 1, 1], [7, 7, 3, 3, 9, 9], [1, 2, 1, 1, 1, 2], right=[1, 0, NAN, NAN, 1, 1])
    figures = batch_figures(batch, pass_at=1.0)
    assert figures["pass_rate"] == 0.5 and figures["mixed_share"] == pytest.approx(1 / 3)
    assert figures["reward"] == pytest.approx(4 / 6) and figures["reward/right"] == 0.75
    assert figures["reward_std"] == pytest.approx((sum((x - 4 / 6) ** 2 for x in (1, 0, 0.5, 0.5, 1, 1)) / 6) ** 0.5)
    assert figures["length_mean"] == pytest.approx(8 / 6) and figures["length_max"] == 2
    assert figures["truncated_share"] == pytest.approx(1 / 3)
    assert batch_figures(batch, pass_at=0.5)["pass_rate"] == pytest.approx(5 / 6)


def test_what_applies_to_no_row_is_left_out():
    batch = judged([NAN, NAN], [0, 0], right=[NAN, NAN])
    figures = batch_figures(batch, 1.0)
    assert not {"reward", "reward_std", "reward/right", "pass_rate"} & set(figures)
    assert figures["mixed_share"] == 0


def test_a_group_in_which_one_answer_was_not_judged_is_mixed_by_the_others():
    assert batch_figures(judged([1, NAN, 1, 0, NAN, 1], [0, 0, 0, 1, 1, 1]), 1.0)["mixed_share"] == 0.5


def test_held_out_figures_by_hand():
    """Two prompts of four completions: 1 of 4 and 3 of 4 pass, so pass@2 = (1/2 + 1) / 2."""
    batch = judged([1, 0, 0, 0, 1, 1, 0, 1], [5, 5, 5, 5, 2, 2, 2, 2])
    figures = held_out_figures(batch, (1, 2, 4), 1.0)
    assert [figures[f"pass@{k}"][0] for k in (1, 2, 4)] == [0.5, 0.75, 1.0]
    assert figures["mean@4"][0] == 0.5 and figures["score"] == 0.5 and figures["prompts"] == 2
    for name in ("pass@1", "pass@2", "pass@4", "mean@4"):
        value, low, high = figures[name]
        assert low <= value <= high


def test_partial_outcomes_have_a_mean_of_their_own():
    figures = held_out_figures(judged([0.5, 1.0], [0, 1]), (1,), 1.0)
    assert figures["pass@1"][0] == 0.5 and figures["mean@1"][0] == 0.75


def test_an_outcome_that_does_not_apply_counts_neither_for_nor_against():
    figures = held_out_figures(judged([1, NAN, 0, NAN, NAN, NAN], [0, 0, 1, 1, 2, 2]), (1,), 1.0)
    assert figures["pass@1"][0] == 0.5 and figures["prompts"] == 2

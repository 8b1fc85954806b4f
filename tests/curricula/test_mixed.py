"""Dynamic sampling keeps whole groups whose raw outcomes differ."""

from __future__ import annotations

import torch

from melior.curricula import MixedGroups
from melior.methods.group_relative import DAPO
from melior.trajectories import Trajectories

NAN = float("nan")


def keep(outcome: list[float], group: list[int]) -> list[bool]:
    batch = Trajectories(
        mask=torch.ones(len(group), 1, dtype=torch.bool),
        group=torch.tensor(group),
        outcome=torch.tensor(outcome, dtype=torch.float32),
        reward=torch.arange(len(group)).float(),  # shaped rewards differ; they must not decide
    )
    kept = MixedGroups().keep(batch)
    return kept.tolist()


def test_unanimous_groups_go_and_mixed_ones_stay_whole():
    assert keep([1, 0, 1, 1, 0, 0, 1], [5, 2, 5, 2, 9, 9, 4]) == [False, True, False, True, False, False, False]


def test_outcomes_that_do_not_apply_decide_nothing():
    assert keep([1, NAN, 0, NAN, NAN, 1, NAN], [0, 0, 0, 1, 1, 2, 2]) == [True, True, True, False, False, False, False]


def test_equal_fractions_are_equal():
    assert keep([0.1, 0.1, 0.1, 0.3, 0.1], [0, 0, 0, 1, 1]) == [False, False, False, True, True]


def test_dapo_refills_at_most_ten_times():
    assert DAPO.record.curriculum == MixedGroups(refill=10) and MixedGroups().refill == 10

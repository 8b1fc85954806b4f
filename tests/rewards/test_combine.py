"""The reward stage's sum, what does not apply, and DAPO's soft overlong penalty."""

from __future__ import annotations

import pytest
import torch

from melior.methods.group_relative import DAPO
from melior.rewards import OverlongPenalty, Sum
from melior.rewards.combine import overlong_penalty
from melior.trajectories import Trajectories

NAN = float("nan")


def batch_of(**components: list[float]) -> Trajectories:
    b = len(next(iter(components.values()), []))
    return Trajectories(
        mask=torch.ones(b, 2, dtype=torch.bool),
        group=torch.zeros(b, dtype=torch.long),
        components={name: torch.tensor(value, dtype=torch.float64) for name, value in components.items()},
    )


def test_rule_9_what_does_not_apply_is_left_out_and_a_row_with_nothing_has_no_reward():
    batch = batch_of(right=[1.0, NAN, NAN], form=[0.5, 0.25, NAN]).with_(weights={"right": 2.0})
    reward = Sum()(batch).reward
    assert reward[:2].tolist() == [2.5, 0.25] and reward[2].isnan()


def test_components_stay_raw():
    batch = batch_of(right=[1.0]).with_(weights={"right": 3.0})
    assert Sum()(batch).components["right"].tolist() == [1.0]


def test_a_batch_without_components_is_an_error():
    with pytest.raises(ValueError, match="no reward components"):
        Sum()(batch_of())


def test_dapo_soft_overlong_penalty():
    """0 up to L - C tokens, then linear to -1 at L, -1 beyond; the paper's L 20480 and C 4096."""
    length = torch.tensor([1, 16384, 16385, 18432, 20479, 20480, 30000])
    limit, buffer = torch.full((7,), 20480), torch.full((7,), 4096)
    penalty = overlong_penalty(length, limit, buffer)
    expected = [0, 0, -1 / 4096, -0.5, -4095 / 4096, -1, -1]
    assert penalty.tolist() == pytest.approx(expected)


def test_the_penalty_is_added_by_weight_and_its_buffer_defaults_to_a_fifth():
    batch = batch_of(right=[1.0, 1.0, NAN]).column(length=torch.tensor([8, 10, 10]), limit=torch.tensor([10, 10, 10]))
    assert (Sum() | OverlongPenalty(buffer=4))(batch).reward[:2].tolist() == [0.5, 0.0]
    assert (Sum() | OverlongPenalty(buffer=4, weight=0.5))(batch).reward[:2].tolist() == [0.75, 0.5]
    defaulted = DAPO.record.reward(batch).reward
    assert defaulted[:2].tolist() == [1.0, 0.0] and defaulted[2].isnan()
    assert OverlongPenalty()(Sum()(batch.column(limit=torch.tensor([3, 3, 3])))).reward[0].item() == 0.0


def test_the_penalty_counts_what_was_generated_and_not_what_is_trained_on():
    batch = batch_of(right=[1.0]).column(length=torch.tensor([2]), limit=torch.tensor([2]))
    masked = batch.only(torch.zeros(1, 2, dtype=torch.bool))
    assert (Sum() | OverlongPenalty())(masked).reward.item() == 0.0

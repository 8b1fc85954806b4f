"""The critic's error."""

from __future__ import annotations

import pytest
import torch

from melior.objectives import TokenMean, ValueLoss
from melior.objectives.value import value_error
from melior.parts import Evaluation
from melior.trajectories import Trajectories


def test_half_the_squared_error_and_the_pessimistic_clipped_one():
    value, target, old = (
        torch.tensor(x, dtype=torch.float64) for x in ([1.0, 1.0, 0.1], [0.0, 2.0, 2.0], [0.5, 0.5, 0.0])
    )
    assert value_error(value, target).tolist() == pytest.approx([0.5, 0.5, 1.805])
    clipped = value_error(value, target, old, 0.2)
    assert clipped.tolist() == pytest.approx([0.5, 1.3**2 / 2, 1.805])  # held at 0.7, 0.7 and 0.1
    assert value_error(value, target, None, 0.2).tolist() == value_error(value, target).tolist()


def test_the_clipped_error_stops_where_the_held_value_is_worse():
    value = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    loss = value_error(value, torch.tensor([2.0]).double(), torch.tensor([0.5]).double(), 0.2)
    assert torch.autograd.grad(loss.sum(), value)[0].item() == 0.0


def test_the_term_reads_returns_and_the_value_at_sampling_time():
    batch = Trajectories(
        mask=torch.tensor([[True, True, False]]),
        group=torch.zeros(1, dtype=torch.long),
        columns={"returns": torch.tensor([[1.0, 3.0, torch.nan]]), "value": torch.tensor([[0.0, 0.0, torch.nan]])},
    )
    value = torch.tensor([[1.0, 1.0, 7.0]], dtype=torch.float64, requires_grad=True)
    now = Evaluation(torch.zeros(1, 3, dtype=torch.float64), {"value": value})
    loss = TokenMean()(ValueLoss()(now, batch), batch)
    assert loss.item() == 1.0
    assert torch.autograd.grad(loss, value)[0].tolist() == [[0.0, -1.0, 0.0]]
    assert TokenMean()(ValueLoss(clip=0.5)(now, batch), batch).item() == pytest.approx((0.125 + 3.125) / 2)


def test_explained_variance():
    def figures(value: list[float], target: list[float]) -> dict[str, float]:
        batch = Trajectories(
            mask=torch.ones(1, len(value), dtype=torch.bool),
            group=torch.zeros(1, dtype=torch.long),
            columns={"returns": torch.tensor([target])},
        )
        now = Evaluation(torch.zeros(1, len(value)), {"value": torch.tensor([value])})
        return {name: float(x) for name, x in ValueLoss().metrics(now, batch).items()}

    assert figures([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])["explained_variance"] == 1.0
    assert figures([0.0, 0.0, 0.0], [1.0, 2.0, 3.0])["explained_variance"] == pytest.approx(0.0)
    assert "explained_variance" not in figures([1.0, 2.0], [5.0, 5.0])

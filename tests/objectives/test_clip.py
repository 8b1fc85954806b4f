"""Worked numbers of PPO's clipped surrogate and of its critic's error."""

from __future__ import annotations

import math

import pytest
import torch

from melior.diagnostics import k3
from melior.objectives import Clip, PolicyGradient, TokenMean
from melior.objectives.policy_gradient import clipped_surrogate
from melior.objectives.value import value_error
from melior.parts import Evaluation
from melior.trajectories import Trajectories


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "slope"),
    [
        (1.0, 0.5, -0.5, -1.0),
        (1.0, 1.5, -1.2, 0.0),
        (-1.0, 0.5, 0.8, 0.0),
        (-1.0, 1.0, 1.0, 1.0),
        (-1.0, 1.5, 1.5, 1.0),
    ],
)
def test_loss_and_slope(advantage: float, ratio: float, loss: float, slope: float) -> None:
    rho = torch.tensor([ratio], requires_grad=True)
    found = clipped_surrogate(rho, torch.tensor([advantage]), 0.2, 0.2)
    found.sum().backward()
    assert rho.grad is not None
    torch.testing.assert_close(found.detach(), torch.tensor([loss]))
    torch.testing.assert_close(rho.grad, torch.tensor([slope]))


def test_the_bound_itself_still_counts_as_inside() -> None:
    rho = torch.tensor([1.2], dtype=torch.float64)
    torch.testing.assert_close(clipped_surrogate(rho, torch.ones(1).double(), 0.2, 0.2), torch.tensor([-1.2]).double())


def batch_of(advantage: torch.Tensor, proximal: torch.Tensor | None) -> Trajectories:
    shape = advantage.shape
    return Trajectories(
        mask=torch.ones(shape, dtype=torch.bool),
        group=torch.arange(shape[0]),
        proximal_logp=proximal,
        advantage=advantage,
    )


def test_before_any_step_the_gradient_is_the_plain_policy_gradient() -> None:
    torch.manual_seed(0)
    logp = torch.randn(4, 3, requires_grad=True)
    batch = batch_of(torch.randn(4, 3), None)
    for term in (Clip(), PolicyGradient()):
        logp.grad = None
        TokenMean()(term(Evaluation(logp), batch), batch).backward()
        assert logp.grad is not None
        torch.testing.assert_close(logp.grad, -batch.advantage / 12)


def test_clipped_steps_are_counted_on_the_side_where_they_stopped() -> None:
    ratio = torch.tensor([[0.5, 0.5, 1.5, 1.5]])
    batch = batch_of(torch.tensor([[-1.0, 1.0, 1.0, -1.0]]), torch.zeros(1, 4))
    figures = Clip().metrics(Evaluation(ratio.log()), batch)
    assert float(figures["clip_low"]) == 0.25
    assert float(figures["clip_high"]) == 0.25


def test_estimates_of_the_divergence_from_ratios() -> None:
    log_ratio = torch.tensor([1.1, 0.9, 1.3], dtype=torch.float64).log()
    expected = sum(r - 1 - math.log(r) for r in (1.1, 0.9, 1.3)) / 3
    assert expected == pytest.approx(0.0158954, abs=1e-7)
    assert float((log_ratio.exp() - 1 - log_ratio).mean()) == pytest.approx(float(k3(log_ratio)), abs=1e-12)
    assert float(k3(log_ratio)) == pytest.approx(0.0158954, abs=1e-7)
    assert float(-log_ratio.mean()) == pytest.approx(-0.0841046, abs=1e-7)


@pytest.mark.parametrize(("value", "loss"), [(1.0, 0.5), (1.5, 0.18), (0.6, 0.98)])
def test_clipped_value_loss(value: float, loss: float) -> None:
    """V = 1.5 is held at 1.4, whose error of 0.18 exceeds its own; V = 0.6 is not helped by being held at 1.0."""
    found = value_error(torch.tensor([value]), torch.tensor([2.0]), torch.tensor([1.2]), 0.2)
    torch.testing.assert_close(found, torch.tensor([loss]))

"""Surrogates with a detached weight, with none, and over segments; CISPO, dual clip and widths. (Clip: test_clip.)"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.objectives import NLL, CappedWeight, Clip, PolicyGradient, SegmentRatio, Surrogate, TokenRatio
from melior.objectives.policy_gradient import clipped_surrogate
from melior.objectives.ratios import log_ratio, segment_sum
from melior.parts import Evaluation
from melior.trajectories import Trajectories

RATIO = st.floats(0.05, 4.0)
ADVANTAGE = st.floats(-3.0, 3.0)


def case(
    log_ratios: list[list[float]], advantage: list[list[float]], mask: list[list[int]] | None = None, **columns: object
):
    """An evaluation and a batch with these log-ratios."""
    d = torch.tensor(log_ratios, dtype=torch.float64)
    m = torch.ones_like(d, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    old = torch.full_like(d, -2.0)
    batch = Trajectories(
        mask=m,
        group=torch.arange(len(d)),
        proximal_logp=old,
        advantage=torch.tensor(advantage, dtype=torch.float64).expand_as(d) * m,
        columns={name: torch.tensor(value) for name, value in columns.items()},
    )
    return Evaluation((old + d).requires_grad_()), batch


@given(RATIO, ADVANTAGE, st.floats(0.01, 0.9), st.floats(0.01, 0.9))
@settings(deadline=None, max_examples=80)
def test_the_clipped_surrogate_is_its_definition(ratio, advantage, low, high):
    r, a = torch.tensor([ratio], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    expected = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    assert clipped_surrogate(r, a, low, high).item() == pytest.approx(expected, abs=1e-14)


@given(RATIO, ADVANTAGE)
@settings(deadline=None, max_examples=60)
def test_the_clip_is_pessimistic_and_its_gradient_stops_outside(ratio, advantage):
    r = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([advantage], dtype=torch.float64)
    loss = clipped_surrogate(r, a, 0.2, 0.2)
    assert loss.item() >= -ratio * advantage - 1e-14
    slope = torch.autograd.grad(loss.sum(), r)[0].item()
    stopped = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
    assert slope == pytest.approx(0.0 if stopped else -advantage)


def test_bounds_are_exact_in_float64():
    loss = clipped_surrogate(torch.tensor([5.0]).double(), torch.tensor([1.0]).double(), 0.2, 0.28)
    assert loss.item() == -(1 + 0.28)


def test_a_dual_clip_bounds_the_loss_of_negative_advantages_only():
    ratio = torch.tensor([10.0, 2.0, 10.0], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([-1.0, -1.0, 1.0], dtype=torch.float64)
    loss = clipped_surrogate(ratio, advantage, 0.2, 0.2, dual=3.0)
    assert loss.tolist() == [3.0, 2.0, -1.2]
    assert torch.autograd.grad(loss.sum(), ratio)[0].tolist() == [0.0, 1.0, 0.0]


def test_a_width_column_scales_both_bounds_action_by_action():
    now, batch = case([[1.0, 1.0], [-1.0, -1.0]], [[1.0], [-1.0]], width=[[1.0, 2.0], [1.0, 2.0]])
    loss = Clip(0.1, 0.2, width="width")(now, batch)
    torch.testing.assert_close(loss, torch.tensor([[-1.2, -1.4], [0.9, 0.8]], dtype=torch.float64))
    figures = Clip(0.1, 0.2, width="width").metrics(now, batch)
    assert (figures["clip_low"].item(), figures["clip_high"].item()) == (0.5, 0.5)


def test_clip_fractions_count_what_truly_stops():
    now, batch = case([[1.0, 1.0, 1.0, 9.0]], [[1.0, -1.0, 1.0, 1.0]], [[1, 1, 1, 0]])
    figures = Clip().metrics(now, batch)
    assert figures["clip_high"].item() == pytest.approx(2 / 3) and figures["clip_low"].item() == 0.0


def test_at_ratio_one_all_surrogates_have_the_score_functions_gradient():
    now, batch = case([[0.0, 0.0]], [[0.7, -1.3]])
    expected = torch.autograd.grad(PolicyGradient()(now, batch).sum(), now.logp)[0]
    for term in (Clip(), Surrogate(), CappedWeight(), Clip(dual=3.0)):
        slope = torch.autograd.grad(term(now, batch).sum(), now.logp)[0]
        torch.testing.assert_close(slope, expected, rtol=1e-14, atol=0)


def test_without_a_proximal_policy_the_ratio_is_one_and_its_gradient_that_of_logp():
    now, batch = case([[0.3, -0.4]], [[1.0]])
    fresh = batch.with_(proximal_logp=None)
    ratio = log_ratio(now, fresh)
    assert ratio.tolist() == [[0.0, 0.0]]
    assert torch.autograd.grad(ratio.sum(), now.logp)[0].tolist() == [[1.0, 1.0]]


def test_a_masked_ratio_is_zero_before_the_exponential():
    now, batch = case([[0.1, 5000.0]], [[1.0]], [[1, 0]])
    loss = Surrogate()(now, batch)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), now.logp)[0].isfinite().all()


def test_ratios_are_formed_in_float32_at_least():
    now = Evaluation(torch.tensor([[-1.0]], dtype=torch.bfloat16))
    batch = Trajectories(
        mask=torch.ones(1, 1, dtype=torch.bool),
        group=torch.zeros(1, dtype=torch.long),
        proximal_logp=torch.tensor([[-1.001]]),
    )
    assert log_ratio(now, batch).dtype == torch.float32
    assert log_ratio(now, batch).item() == pytest.approx(0.001, rel=1e-3)


# ---- "cispo": a capped, detached weight


def test_cispo_keeps_every_tokens_gradient():
    now, batch = case([[2.0, 0.1, -3.0]], [[1.0, -2.0, 1.0]])
    slope = torch.autograd.grad(CappedWeight(high=1.0)(now, batch).sum(), now.logp)[0]
    expected = -torch.tensor([[2.0, -2 * torch.tensor(0.1).exp(), torch.tensor(-3.0).exp()]], dtype=torch.float64)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=0)
    assert CappedWeight(high=1.0).metrics(now, batch)["clip_high"].item() == pytest.approx(1 / 3)


# ---- "gspo" and other units


def test_gspo_forms_one_ratio_an_answer():
    now, batch = case([[0.3, 0.1, 9.0], [-0.2, 0.0, 0.0]], [[1.0], [1.0]], [[1, 1, 0], [1, 1, 1]])
    rho = SegmentRatio("row")(now, batch)
    torch.testing.assert_close(rho, torch.tensor([[0.2, 0.2, 0.0], [-0.2 / 3] * 3], dtype=torch.float64))
    total = SegmentRatio("row", "sum")(now, batch)
    torch.testing.assert_close(total, torch.tensor([[0.4, 0.4, 0.0], [-0.2] * 3], dtype=torch.float64))


def test_a_ratio_of_a_turn_leaves_other_rows_with_the_same_turn_number_alone():
    now, batch = case(
        [[0.3, 0.1, 0.5, 0.7], [1.0, 3.0, 5.0, 7.0]],
        [[1.0], [1.0]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
        turn=[[0, 0, 1, 1], [0, 0, 1, 1]],
    )
    rho = SegmentRatio("turn")(now, batch)
    torch.testing.assert_close(rho, torch.tensor([[0.2, 0.2, 0.5, 0.0], [2.0, 2.0, 6.0, 6.0]], dtype=torch.float64))


def test_segment_sums_by_arbitrary_ids():
    values = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 1]]).bool()
    out = segment_sum(values, mask, torch.tensor([[5, -1, 5], [5, 5, 5]]))
    assert out.tolist() == [[5, 2, 5], [40, 0, 40]]


def test_a_segment_ratio_spreads_its_gradient_over_the_segment():
    now, batch = case([[0.0, 0.0, 0.0, 0.0]], [[2.0]], [[1, 1, 1, 0]])
    slope = torch.autograd.grad(Surrogate(SegmentRatio())(now, batch).sum(), now.logp)[0]
    torch.testing.assert_close(slope, torch.tensor([[-2.0, -2.0, -2.0, 0.0]], dtype=torch.float64))
    assert TokenRatio() == Surrogate().ratio


# ---- imitation


def test_a_weighted_likelihood():
    now, batch = case([[0.0, 0.0]], [[1.0]], [[1, 0]], weight=[[3.0, torch.nan]])
    loss = NLL("weight")(now, batch)
    assert loss[0, 0].item() == 6.0
    assert torch.autograd.grad(loss.sum(), now.logp)[0].tolist() == [[-3.0, 0.0]]

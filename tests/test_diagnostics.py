"""Figures about an evaluation that every step logs."""

from __future__ import annotations

import pytest
import torch

from melior.diagnostics import diagnostics, effective_sample_size, k3, sampler_gap
from melior.objectives import Clip
from melior.parts import Evaluation
from melior.trajectories import Trajectories
from toys import TinyNetwork, language_batch, learner_of


def test_effective_sample_size():
    assert effective_sample_size(torch.zeros(5)).item() == 1.0
    assert effective_sample_size(torch.tensor([800.0, 0.0, 0.0, 0.0])).item() == pytest.approx(0.25)
    weights = torch.tensor([1.0, 2.0, 3.0])
    assert effective_sample_size(weights.log()).item() == pytest.approx(36 / (3 * 14))
    assert effective_sample_size(torch.zeros(0)).item() == 1.0


def test_k3_is_an_unbiased_estimate_of_the_divergence_of_what_was_sampled():
    p, q = torch.tensor([0.9, 0.1]).double(), torch.tensor([0.5, 0.5]).double()
    samples = torch.tensor([0] * 9 + [1])  # from p, in exact proportion
    torch.testing.assert_close(k3((q / p).log()[samples]), (p * (p / q).log()).sum())
    assert k3(torch.zeros(0)).item() == 0.0


def test_the_sampler_gap_is_over_trained_tokens_only():
    trainer, sampler = torch.zeros(1, 101), -torch.arange(101.0)[None]
    mask = torch.arange(101)[None] < 100
    gap = sampler_gap(trainer, sampler, mask)
    assert (gap["gap_mean"].item(), gap["gap_p95"].item(), gap["gap_max"].item()) == (49.5, 94.0, 99.0)
    assert sampler_gap(trainer, sampler, torch.zeros_like(mask)) == {}


def test_divergences_are_of_the_older_policy_and_masked_tokens_do_not_count():
    mask = torch.tensor([[True, True, False]])
    batch = Trajectories(
        mask=mask,
        group=torch.zeros(1, dtype=torch.long),
        behaviour_logp=torch.tensor([[-1.0, -1.0, -1.0]]),
        proximal_logp=torch.tensor([[-2.0, -2.0, -2.0]]),
    )
    figures = diagnostics(Evaluation(torch.tensor([[-1.5, -1.5, 40.0]])), batch)
    half = torch.tensor(0.5)
    assert figures["kl_proximal"].item() == pytest.approx((half.exp() - 1.5).item(), rel=1e-5)
    assert figures["kl_sampler"].item() == pytest.approx(((-half).exp() - 0.5).item(), rel=1e-5)
    assert figures["ess"].item() == 1.0 and figures["gap_max"].item() == 1.0


@pytest.mark.parametrize("rows", [2, 0])
def test_every_gradient_reports_them_for_every_micro_batch(rows):
    batch = language_batch()
    loss = learner_of(TinyNetwork(), rows=rows).gradient(1.0 * Clip(), batch)
    expected = diagnostics(learner_of(TinyNetwork()).evaluate(batch), batch)
    for name, value in expected.items():
        torch.testing.assert_close(loss.metrics[name], value)
    assert {"entropy", "kl_proximal", "kl_sampler", "ess", "gap_p95", "clip_low", "rows_skipped"} <= set(loss.metrics)
    assert not any(value.requires_grad for value in loss.metrics.values())


def test_a_batch_without_trained_tokens_has_figures_too():
    batch = language_batch().only(torch.zeros(11, 1, dtype=torch.bool))
    loss = learner_of(TinyNetwork(), rows=3).gradient(1.0 * Clip(), batch)
    assert all(value.isfinite() for value in loss.metrics.values()) and loss.value == 0

"""Divergences: values, and the gradients that differ although values agree (trap 4)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heads import TemperedLogp
from melior.advantages import TerminalReward
from melior.methods.group_relative import GRPO
from melior.methods.policy_gradient import PPO_LM
from melior.objectives import Clip, Divergence, EntropyBonus, ReferenceKL, TokenMean
from melior.objectives.divergence import kl_estimate
from melior.objectives.heads import entropy, reverse_kl
from melior.objectives.ratios import TokenRatio
from melior.parts import Evaluation
from melior.policies.table import Table
from melior.trajectories import Trajectories
from toys import learner_of, random_table, run_of, table_batch

PI, REF = torch.tensor([0.7, 0.3], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)


def expected_gradient(estimator: str) -> torch.Tensor:
    """The exact expectation over samples of the estimator's own gradient with respect to the logits."""
    logits = PI.log().clone().requires_grad_()
    logp = logits.log_softmax(0)
    loss = (PI * kl_estimate(REF.log() - logp, estimator)).sum()  # the sampling weights are constants
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("k1", [0.0, 0.0]), ("k2", [0.177933, -0.177933]), ("k3", [0.2, -0.2]), ("k3+", [0.177933, -0.177933])],
)
def test_trap_4_the_gradients_of_the_estimators(estimator, gradient):
    torch.testing.assert_close(
        expected_gradient(estimator), torch.tensor(gradient, dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_trap_4_the_truth_they_are_compared_with():
    logits = PI.log().clone().requires_grad_()
    p = logits.softmax(0)
    reverse = (p * (p.log() - REF.log())).sum()
    torch.testing.assert_close(torch.autograd.grad(reverse, logits)[0], expected_gradient("k2"), rtol=0, atol=1e-12)
    logits = PI.log().clone().requires_grad_()
    forward = (REF * (REF.log() - logits.log_softmax(0))).sum()
    torch.testing.assert_close(torch.autograd.grad(forward, logits)[0], expected_gradient("k3"), rtol=0, atol=1e-12)


def test_trap_4_with_the_ratio_the_gradient_is_true_away_from_the_sampled_policy_too():
    old, logits = torch.tensor([0.4, 0.6]).double(), PI.log().clone().requires_grad_()
    batch = table_batch([0.0, 0.0], [[0], [1]], [0, 0]).with_(proximal_logp=old.log()[:, None])
    batch = batch.scored("reference", logp=REF.log()[:, None])
    loss = ReferenceKL("k3", ratio=TokenRatio())(Evaluation(logits.log_softmax(0)[:, None]), batch)
    (gradient,) = torch.autograd.grad((old[:, None] * loss).sum(), logits)
    torch.testing.assert_close(gradient, torch.tensor([0.177933, -0.177933]).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close((old[:, None] * loss).sum(), (PI * (PI.log() - REF.log())).sum())


def test_the_values_agree_in_expectation():
    truth = (PI * (PI.log() - REF.log())).sum()
    for estimator in ("k1", "k3", "k3+"):
        torch.testing.assert_close((PI * kl_estimate(REF.log() - PI.log(), estimator)).sum(), truth)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_k2_and_k3_are_never_negative(differences):
    d = torch.tensor(differences, dtype=torch.float64)
    for estimator in ("k2", "k3", "k3+"):
        assert bool((kl_estimate(d, estimator) >= 0).all())
    torch.testing.assert_close(kl_estimate(d, "k3+"), kl_estimate(d, "k3"), rtol=1e-12, atol=1e-12)


def test_k3_near_the_reference_is_half_the_square_also_in_float32():
    d = torch.tensor([1e-4, -1e-4, 0.0])
    torch.testing.assert_close(kl_estimate(d, "k3"), d.square() / 2, rtol=1e-3, atol=0)


def test_the_term_reads_the_named_scorer_and_nothing_where_masked():
    batch = Trajectories(
        mask=torch.tensor([[True, False]]),
        group=torch.zeros(1, dtype=torch.long),
        scores={"teacher": {"logp": torch.tensor([[-1.0, torch.nan]], dtype=torch.float64)}},
    )
    logp = torch.tensor([[-2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    loss = ReferenceKL("k3", scorer="teacher")(Evaluation(logp), batch)
    assert loss[0, 0].item() == pytest.approx(torch.e - 2) and loss[0, 1].item() == 0
    assert torch.autograd.grad(loss.sum(), logp)[0].tolist() == [[pytest.approx(1 - torch.e), 0.0]]


def test_the_full_divergence_and_its_top_k():
    p, q = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.2, 0.2, 0.6]]).double()
    full = 0.5 * torch.tensor(2.5).log() + 0.3 * torch.tensor(1.5).log() + 0.2 * torch.tensor(1 / 3).log()
    assert reverse_kl(p.log(), q.log()).item() == pytest.approx(full.item(), rel=1e-6)
    assert reverse_kl(p.log(), q.log(), k=1).item() == pytest.approx(0.5 * torch.tensor(2.5).double().log().item())
    assert reverse_kl(p.log(), q.log(), k=9).item() == pytest.approx(full.item(), rel=1e-6)


def test_tokens_of_probability_zero_add_nothing():
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    assert entropy(logits).item() == pytest.approx(torch.tensor(2.0).log().item())
    assert torch.autograd.grad(entropy(logits).sum(), logits)[0][0, :2].isfinite().all()
    assert reverse_kl(logits, torch.zeros(1, 3).double()).item() == pytest.approx(torch.tensor(1.5).log().item())


def test_the_divergence_term_is_the_expectation_of_the_sampled_one():
    policy, reference = random_table(1, 1, 4, index=()), random_table(1, 1, 4, seed=2, index=())
    every = table_batch([0.0] * 4, [[0], [1], [2], [3]], [0] * 4)
    learner = learner_of(policy)
    learner.readers = {"reference": reference}.__getitem__
    value = learner.gradient(1.0 * Divergence(), every).value
    batch = every.scored("reference", logp=reference.evaluate(every).logp.detach())
    p = policy.evaluate(every).logp.detach().exp()
    sampled = (p * ReferenceKL("k1")(policy.evaluate(every), batch)).sum()
    torch.testing.assert_close(value, sampled.detach())


def test_an_entropy_bonus_raises_entropy():
    table = random_table(1, 1, 4, index=())
    learner = learner_of(table, lr=0.5)
    batch = table_batch([0.0], [[0]], [0])
    before = entropy(table.logits.detach().view(1, 4)).item()
    loss = learner.gradient(1.0 * EntropyBonus(), batch)
    assert loss.value.item() == pytest.approx(-before)
    learner.step()
    assert entropy(table.logits.detach().view(1, 4)).item() > before


def test_log_probability_at_another_temperature():
    logits = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64)
    value = TemperedLogp(2.0)(logits, torch.tensor([1]), {}, logits)
    torch.testing.assert_close(value, (logits / 2).log_softmax(-1)[:, 1])


def test_trap_10_the_trainers_log_probability_is_that_of_the_tempered_distribution():
    table = Table(1, 1, 4, index=(), temperature=0.6, dtype=torch.float64)
    probability = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    with torch.no_grad():
        table.logits.copy_(probability.log().view(1, 1, 1, 4))
    batch = table_batch([0.0] * 4, [[0], [1], [2], [3]], [0] * 4)
    raw = probability.log()
    tempered = table.evaluate(batch).logp.detach().squeeze(1)
    torch.testing.assert_close(
        (tempered - raw).exp(), torch.tensor([1.283, 0.716, 0.389, 0.245]).double(), atol=5e-4, rtol=0
    )
    assert table.frozen().temperature == 0.6
    sampled = table.decoder([(0,)], 1).start()[0] / table.temperature
    torch.testing.assert_close(sampled.log_softmax(0), tempered)


# ---- trap 5: a coefficient is used


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3+"])
def test_trap_5_a_kl_coefficient_in_the_loss_changes_the_gradient(estimator):
    gradients = []
    for weight in (0.04, 0.1):
        run = run_of(GRPO.record.but("mine", objective=Clip() + weight * ReferenceKL(estimator)), random_table(2, 2, 3))
        with torch.no_grad():
            run.learner().policy.logits.add_(
                torch.linspace(-1, 1, run.learner().policy.logits.numel()).view_as(run.learner().policy.logits)
            )
        batch = run.credit(table_batch([1.0, 0.0], [[0, 1], [2, 0]], [0, 0]))
        run.learner().gradient(run.method.objective, batch)
        gradients.append(run.learner().grad_vector())
    assert (gradients[0] - gradients[1]).norm() > 1e-3


def test_trap_5_a_kl_coefficient_in_the_reward_changes_the_advantage_and_the_gradient():
    gradients, advantages = [], []
    for beta in (0.05, 0.5):
        advantage = TerminalReward(beta) | PPO_LM.record.advantage.parts[1] | PPO_LM.record.advantage.parts[2]
        run = run_of(PPO_LM.record.but("mine", advantage=advantage), random_table(2, 2, 3))
        with torch.no_grad():
            run.learner().policy.logits.mul_(-1)
        batch = run.credit(table_batch([1.0, 0.0], [[0, 1], [2, 0]], [0, 0]))
        run.learner().gradient(run.method.objective, batch)
        advantages.append(batch.advantage)
        gradients.append(run.learner().grad_vector())
    assert not torch.equal(*advantages) and (gradients[0] - gradients[1]).norm() > 1e-3


def test_token_mean_of_a_divergence_counts_trained_tokens_only():
    batch = Trajectories(
        mask=torch.tensor([[True, True, False, False, True]]),  # trap 13: an environment's tokens in between
        group=torch.zeros(1, dtype=torch.long),
        scores={"reference": {"logp": torch.zeros(1, 5, dtype=torch.float64)}},
    )
    now = Evaluation(torch.tensor([[-1.0, -1.0, -50.0, -50.0, -1.0]], dtype=torch.float64))
    assert TokenMean()(ReferenceKL("k1")(now, batch), batch).item() == pytest.approx(-1.0)
    assert ReferenceKL("k1").metrics(now, batch)["kl_reference"].item() == pytest.approx(-1.0)

"""TPO, the method "tpo": worked targets, the gradient p - q, invariances, and reuse of a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.objectives import TargetMatching
from melior.objectives.target import group_log_softmax
from melior.parts import Evaluation
from melior.policies.table import Table
from melior.records.catalogue import get
from melior.trajectories import Trajectories
from melior.updates import Gradient
from toys import direct_gradient, learner_of, random_table, run_of, table_batch

TPO = get("tpo")


def batch_of(scores: list[float], old: list[float] | None = None, group: list[int] | None = None) -> Trajectories:
    """Single-token candidates; `old` are their probabilities under the policy that sampled them."""
    b = len(scores)
    batch = Trajectories(
        mask=torch.ones(b, 1, dtype=torch.bool),
        group=torch.tensor(group or [0] * b),
        reward=torch.tensor(scores, dtype=torch.float64),
        proximal_logp=None if old is None else torch.tensor(old, dtype=torch.float64).log()[:, None],
    )
    return TPO.advantage(batch)


def fit(batch: Trajectories, logp: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Loss and its gradient with respect to each row's log-probability."""
    leaf = logp.clone().requires_grad_()
    loss = TPO.objective(Evaluation(leaf), batch, TPO.aggregate).value
    return loss.item(), torch.autograd.grad(loss, leaf)[0]


def test_check_1_standardized_scores_and_target_from_a_uniform_policy():
    batch = batch_of([1.0, 0.0, 0.0], [0.2, 0.2, 0.2])
    assert batch.advantage[:, 0].tolist() == pytest.approx([1.4142136, -0.7071068, -0.7071068], abs=1e-7)
    _, gradient = fit(batch, batch.proximal_logp)
    q = 1 / 3 - gradient[:, 0]
    assert q.tolist() == pytest.approx([0.8066165, 0.0966917, 0.0966917], abs=1e-7)


def test_check_1_worked_example():
    batch = batch_of([1.0, 0.0, 0.0], [0.1, 0.2, 0.3])
    loss, gradient = fit(batch, batch.proximal_logp)
    assert loss == pytest.approx(1.4408315, abs=1e-7)
    assert gradient[:, 0].tolist() == pytest.approx([-0.4585810, 0.1834324, 0.2751486], abs=1e-7)
    p = torch.tensor([1 / 6, 1 / 3, 1 / 2], dtype=torch.float64)
    assert (p - gradient[:, 0]).tolist() == pytest.approx([0.6252477, 0.1499009, 0.2248514], abs=1e-7)


def test_before_any_step_the_policy_is_its_own_anchor():
    old = [0.1, 0.2, 0.3]
    known, fresh = batch_of([1.0, 0.0, 0.0], old), batch_of([1.0, 0.0, 0.0])
    logp = torch.tensor(old, dtype=torch.float64).log()[:, None]
    assert fit(fresh, logp)[0] == pytest.approx(fit(known, logp)[0], abs=1e-15)
    torch.testing.assert_close(fit(fresh, logp)[1], fit(known, logp)[1])


SCORES = st.lists(st.integers(0, 4).map(float), min_size=2, max_size=6)


@given(SCORES, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_check_2_the_gradient_is_p_minus_q_and_vanishes_at_the_target(scores, random):
    old = torch.tensor([random.uniform(-6, 0) for _ in scores], dtype=torch.float64)
    now = torch.tensor([random.uniform(-6, 0) for _ in scores], dtype=torch.float64)
    batch = batch_of(scores, old.exp().tolist())
    q = (old.log_softmax(0) + batch.advantage[:, 0]).softmax(0)
    torch.testing.assert_close(fit(batch, now[:, None])[1][:, 0], now.softmax(0) - q, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fit(batch, q.log()[:, None])[1], torch.zeros(len(q), 1).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("a", [10])
def test_check_3_the_exact_update_on_a_one_hot_reward(a):
    """Every action once: the direction is beta (e_y - pi) with beta = p (l - 1) / (1 - p + l p)."""
    y, p = 4, 0.1
    assert torch.tensor(a / (a - 1) ** 0.5).double().exp().item() == pytest.approx(28.0316, abs=1e-4)
    table = Table(1, 1, a, index=(), dtype=torch.float64)  # uniform: p = 0.1
    batch = TPO.advantage(table_batch([float(i == y) for i in range(a)], [[i] for i in range(a)], [0] * a))
    direction = -direct_gradient(table, TPO.objective, batch, TPO.aggregate)
    away = torch.nn.functional.one_hot(torch.tensor(y), a).double() - table.logits.detach().flatten().softmax(0)
    torch.testing.assert_close(direction, 0.7299605 * away, rtol=0, atol=1e-7)
    assert p / (1 + p) == pytest.approx(0.0909091, abs=1e-7) and (p / (1 - p)) ** 0.5 == pytest.approx(
        0.3333333, abs=1e-7
    )


def test_check_3_beta_holds_for_any_policy():
    table = random_table(1, 1, 10, index=())
    batch = TPO.advantage(table_batch([float(i == 4) for i in range(10)], [[i] for i in range(10)], [0] * 10))
    pi = table.logits.detach().flatten().softmax(0)
    p, tilt = pi[4], torch.tensor(10 / 3).double().exp()
    beta = p * (tilt - 1) / (1 - p + tilt * p)
    direction = -direct_gradient(table, TPO.objective, batch, TPO.aggregate)
    torch.testing.assert_close(direction, beta * (torch.eye(10).double()[4] - pi), rtol=1e-6, atol=1e-9)


@given(SCORES, st.integers(-5, 5), st.floats(0.1, 50))
@settings(deadline=None, max_examples=40)
def test_check_4_shift_and_positive_scale_of_the_scores_do_not_matter(scores, shift, scale):
    old = [0.1 + 0.1 * i for i in range(len(scores))]
    first, second = batch_of(scores, old), batch_of([s * scale + shift for s in scores], old)
    for a, b in zip(fit(first, first.proximal_logp), fit(second, second.proximal_logp), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-6, atol=1e-8)


# ---- edges


def test_equal_scores_pull_back_to_the_snapshot():
    batch = batch_of([0.1, 0.1, 0.1], [0.1, 0.2, 0.3])
    assert not batch.advantage.any()
    assert fit(batch, batch.proximal_logp)[1].abs().max() < 1e-15
    moved = fit(batch, batch.proximal_logp + torch.tensor([[1.0], [0.0], [0.0]]).double())[1]
    assert moved[0, 0] > 0.05


def test_a_deviation_too_small_to_divide_by():
    batch = batch_of([1e-7, 0.0])
    assert batch.advantage[:, 0].tolist() == pytest.approx([5e-8, -5e-8])


def test_a_group_of_one_has_loss_zero():
    loss, gradient = fit(batch_of([1.0], [0.3]), torch.tensor([[-2.0]]).double())
    assert loss == 0 and gradient.item() == 0


def test_repeated_candidates_are_entries_of_their_own():
    batch = batch_of([1.0, 1.0, 0.0, 0.0], [0.2, 0.2, 0.3, 0.3])
    _, gradient = fit(batch, batch.proximal_logp)
    assert gradient[0].item() == gradient[1].item() and gradient.sum().item() == pytest.approx(0, abs=1e-15)


def test_whole_log_probabilities_are_summed_and_prompts_averaged():
    """Groups of unequal size in any order; masked tokens are no part of a candidate."""
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(5, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]]).bool()
    group = torch.tensor([8, 3, 8, 3, 8])
    reward = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    batch = TPO.advantage(Trajectories(mask=mask, group=group, reward=reward))
    loss = 0.0
    for g in (3, 8):
        rows = group == g
        total = (logp * mask).sum(1)[rows]
        u = (reward[rows] - reward[rows].mean()) / reward[rows].std(correction=0)
        loss -= float(((total.log_softmax(0) + u).softmax(0) * total.log_softmax(0)).sum()) / 2
    assert fit(batch, logp)[0] == pytest.approx(loss, abs=1e-12)


def test_sums_of_many_log_probabilities_do_not_underflow():
    batch = batch_of([1.0, 0.0], [0.5, 0.5])
    loss, gradient = fit(
        batch.with_(proximal_logp=torch.tensor([[-9000.0], [-9001.0]]).double()),
        torch.tensor([[-9000.0], [-9001.0]]).double(),
    )
    assert loss > 0 and gradient.isfinite().all()
    values = group_log_softmax(torch.tensor([-9000.0, -9001.0, 5.0]), torch.tensor([1, 1, 2]))
    assert values.exp().tolist() == pytest.approx([0.7310586, 0.2689414, 1.0], abs=1e-6)


def test_the_temperature_of_the_target():
    batch = batch_of([1.0, 0.0], [0.5, 0.5])
    for eta in (0.5, 1.0, 4.0):
        leaf = batch.proximal_logp.clone().requires_grad_()
        loss = (1.0 * TargetMatching(eta))(Evaluation(leaf), batch, TPO.aggregate).value
        q = 0.5 - torch.autograd.grad(loss, leaf)[0][:, 0]
        assert q[0].item() == pytest.approx(torch.tensor(2 / eta).double().sigmoid().item(), abs=1e-9)


def test_the_target_is_fixed_for_all_epochs_of_a_batch_and_is_met():
    """Reused long enough, the policy's distribution over the candidates becomes the target, and stays."""
    table = Table(1, 1, 3, index=(), dtype=torch.float64)
    run = run_of(TPO, table)
    learner = learner_of(table, TPO.aggregate, lr=4.0)
    batch = TPO.advantage(table_batch([1.0, 0.0, 0.0], [[0], [1], [2]], [0] * 3))
    q = (table.logits.detach().flatten().log_softmax(0) + batch.advantage[:, 0]).softmax(0)
    stats = Gradient(epochs=60)(learner, batch, TPO.objective, run)
    torch.testing.assert_close(table.logits.detach().flatten().softmax(0), q, rtol=0, atol=1e-5)
    assert stats["updates"] == 60 and TPO.update == Gradient(epochs=4)

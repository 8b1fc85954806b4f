"""2-GRPO, the method "two-grpo": exact expectations by enumeration, and the identities behind it."""

from __future__ import annotations

import itertools
from math import comb, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.advantages import GroupRelative
from melior.objectives import Probe, SequenceMean
from melior.policies.table import Table
from melior.records.catalogue import get
from toys import direct_gradient, draw, learner_of, table_batch

TWO = get("two-grpo")
LOGITS = torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64)
GRADIENT = torch.tensor([0.223621, -0.084426, -0.139195], dtype=torch.float64)
P = LOGITS.softmax(0)[0].item()


def row_advantages(rewards: list[float], **options: object) -> list[float]:
    part = GroupRelative(**options) if options else TWO.advantage
    return part(table_batch(rewards, [[0]] * len(rewards), [0] * len(rewards))).advantage[:, 0].tolist()


def test_check_1_worked_advantages():
    assert row_advantages([1.0, 0.0]) == pytest.approx([0.999998, -0.999998], abs=1e-9)
    assert row_advantages([1.0, 0.0], ddof=1, eps=1e-4) == pytest.approx([0.707007, -0.707007], abs=5e-7)
    assert row_advantages([3.0, 7.0]) == pytest.approx([-1.0, 1.0], abs=1e-6)
    assert row_advantages([0.1, 0.1]) == [0.0, 0.0]


def test_one_of_the_two_invalid_drops_the_pair():
    assert row_advantages([1.0, float("nan")]) == [0.0, 0.0]


def test_it_differs_from_grpo_in_the_group_alone():
    assert TWO.pins == {"n": 2}
    assert TWO.objective == get("dr-grpo").objective and TWO.aggregate == get("grpo").aggregate


def expected_gradient(g: int) -> torch.Tensor:
    """The exact expectation, over all groups of g, of the ascent direction of the method's objective."""
    table = Table(1, 1, 3, index=(), dtype=torch.float64)
    with torch.no_grad():
        table.logits.copy_(LOGITS.view(1, 1, 1, 3))
    method = TWO.but("exact", advantage=GroupRelative(eps=0.0, ddof=0))
    probability, total = LOGITS.softmax(0), torch.zeros(3, dtype=torch.float64)
    for counts in itertools.product(range(g + 1), repeat=2):
        if sum(counts) > g or counts[0] in (0, g):
            continue  # unanimous groups have no gradient
        n = (*counts, g - sum(counts))
        arms = [arm for arm in range(3) for _ in range(n[arm])]
        weight = comb(g, n[0]) * comb(g - n[0], n[1]) * prod(float(probability[a]) ** n[a] for a in range(3))
        batch = method.advantage(table_batch([float(a == 0) for a in arms], [[a] for a in arms], [0] * g))
        total -= weight * direct_gradient(table, method.objective, batch, method.aggregate)
    return total


def test_check_2_the_expected_gradient_is_that_of_the_pass_rate():
    assert pytest.approx(0.337585, abs=1e-6) == P
    logits = LOGITS.clone().requires_grad_()
    exact = torch.autograd.grad(logits.softmax(0)[0], logits)[0]
    torch.testing.assert_close(exact, GRADIENT, rtol=0, atol=1e-6)
    torch.testing.assert_close(expected_gradient(2), exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("g", "factor"), [(4, 1.628268), (8, 1.925456)])
def test_checks_2_and_5_a_larger_group_changes_the_length_and_not_the_direction(g, factor):
    pair, larger = expected_gradient(2), expected_gradient(g)
    assert float(larger.norm() / pair.norm()) == pytest.approx(factor, abs=1e-6)
    assert torch.cosine_similarity(pair, larger, 0).item() == pytest.approx(1.0, abs=1e-12)
    assert factor < (P * (1 - P)) ** -0.5 == pytest.approx(2.114674, abs=1e-6)


def test_check_3_discarded_pairs_and_the_baseline_that_nobody_estimates():
    outcomes = {(1, 1): P * P, (0, 0): (1 - P) ** 2, (1, 0): P * (1 - P), (0, 1): P * (1 - P)}
    advantages = {pair: row_advantages([float(r) for r in pair], eps=0.0, ddof=0)[0] for pair in outcomes}
    discarded = sum(weight for pair, weight in outcomes.items() if advantages[pair] == 0)
    assert discarded == pytest.approx(0.552758, abs=1e-6)
    for first, share, value in ((1, P, 1 - P), (0, 1 - P, -P)):
        mean = sum(weight * advantages[pair] for pair, weight in outcomes.items() if pair[0] == first) / share
        assert mean == pytest.approx(value, abs=1e-12)
    assert pytest.approx(0.662415, abs=1e-6) == 1 - P


@given(st.lists(st.tuples(st.booleans(), st.floats(-3, 3)), min_size=2, max_size=16))
@settings(deadline=None, max_examples=60)
def test_check_4_the_contrast_identity(rows):
    """Mean of A f = sqrt(ph (1 - ph)) * (mean of f over right - mean of f over wrong)."""
    rewards = [float(right) for right, _ in rows]
    f = torch.tensor([value for _, value in rows], dtype=torch.float64)
    right = torch.tensor(rewards).bool()
    advantage = torch.tensor(row_advantages(rewards, eps=0.0, ddof=0), dtype=torch.float64)
    share = sum(rewards) / len(rewards)
    contrast = 0.0
    if 0 < share < 1:
        contrast = (share * (1 - share)) ** 0.5 * float(f[right].mean() - f[~right].mean())
    assert float((advantage * f).mean()) == pytest.approx(contrast, abs=1e-12)


def test_on_policy_it_is_the_contrast_of_two_log_likelihoods():
    table = Table(1, 2, 3, dtype=torch.float64)
    batch = table_batch([1.0, 0.0], [[0, 2], [1, 2]], [0, 0])
    gradient = -direct_gradient(table, TWO.objective, GroupRelative(eps=0.0, ddof=0)(batch), SequenceMean())
    winner, loser = table.evaluate(batch).logp.mean(-1)
    contrast = torch.autograd.grad(winner - loser, table.logits)[0].flatten()
    torch.testing.assert_close(gradient, contrast / 2)


def pass_rate(n: int, steps: int, seed: int) -> float:
    """32 prompts of 10 arms, one right; probability of the right arm after plain gradient steps."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.randint(0, 10, (32,), generator=generator)
    table = Table(32, 1, 10, index=("prompt",), dtype=torch.float64)
    learner = learner_of(table, Probe(), lr=0.5)
    for _ in range(steps):
        batch = draw(table, n, 1, generator)
        batch = batch.with_(reward=(batch.tokens[:, 0] == right[batch.group]).double())
        learner.gradient(TWO.objective, TWO.advantage(batch))
        learner.step()
    return float(table.logits.detach().softmax(-1)[range(32), 0, 0, right].mean())


def test_check_6_at_equal_rollouts_it_is_not_worse_and_at_equal_steps_it_is_behind():
    sixteen, equal_steps, equal_rollouts = pass_rate(16, 40, 0), pass_rate(2, 40, 0), pass_rate(2, 320, 0)
    assert equal_rollouts >= sixteen > equal_steps
    assert (sixteen, equal_steps, equal_rollouts) == pytest.approx((0.976, 0.777, 0.993), abs=0.04)

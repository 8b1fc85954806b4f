"""Sampling between a student and its teacher: the nearest distribution within the bound. Numbers worked by hand."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.engines.sampler import sample
from melior.rollouts.blends import TrustBlend, trust_region_blend
from toys import random_table

S, T = torch.tensor([[0.7, 0.2, 0.1]]).double(), torch.tensor([[0.1, 0.6, 0.3]]).double()


def blend(s: torch.Tensor, t: torch.Tensor, eps: float) -> torch.Tensor:
    return trust_region_blend(s.log(), t.log(), eps).exp()


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p.log() - q.log())).sum(-1)


# ---- check 1: the worked example


@pytest.mark.parametrize(
    ("eps", "expected", "left"),
    [
        (0.01, [0.633978, 0.244015, 0.122007], 0.841549),
        (0.05, [0.549722, 0.300185, 0.150093], 0.625029),
        (0.2, [0.393713, 0.404191, 0.202096], 0.300057),
        (0.5, [0.215606, 0.522929, 0.261465], 0.057805),
        (1.0, [0.1, 0.6, 0.3], 0.0),
    ],
)
def test_the_blend_is_the_nearest_to_the_teacher_within_the_bound(eps, expected, left):
    mu = blend(S, T, eps)
    assert mu[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert float(kl(mu, T)) == pytest.approx(left, abs=1e-6)
    assert float(kl(mu, S)) <= eps + 1e-12


def test_a_teacher_within_the_bound_is_sampled_itself():
    assert float(kl(T, S)) == pytest.approx(0.794160, abs=1e-6)
    assert torch.equal(trust_region_blend(S.log(), T.log(), 0.8), T.log())
    assert torch.equal(trust_region_blend(S.log(), T.log(), math.inf), T.log())
    assert not torch.equal(trust_region_blend(S.log(), T.log(), 0.79), T.log())


# ---- check 2: small budgets


def test_a_small_budget_moves_by_the_square_root_rule():
    eps = 1e-4
    mu, slope = blend(S, T, eps), (T / S).log()
    # beta from the definition log mu = (1 - beta) log S + beta log T + constant
    beta = float(((mu / S).log()[0, 1] - (mu / S).log()[0, 0]) / (slope[0, 1] - slope[0, 0]))
    variance = float((S * slope.square()).sum() - (S * slope).sum().square())
    assert variance == pytest.approx(1.946515, abs=1e-6)
    assert math.sqrt(2 * eps / variance) == pytest.approx(0.010136, abs=1e-6)
    assert beta == pytest.approx(0.010095, abs=1e-6)


# ---- check 3: optimality


@pytest.mark.parametrize("eps", [0.01, 0.2])
def test_no_other_distribution_within_the_bound_is_nearer_to_the_teacher(eps):
    generator = torch.Generator().manual_seed(1)
    best = float(kl(blend(S, T, eps), T))
    noise = torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    mu = (S.log() + 0.6 * noise).softmax(-1)
    mu = mu[kl(mu, S.expand_as(mu)) <= eps][:1000]
    assert len(mu) == 1000
    assert float(kl(mu, T.expand_as(mu)).min()) >= best


# ---- properties and edges


def distributions(size: int = 5) -> st.SearchStrategy[torch.Tensor]:
    logits = st.lists(st.floats(-8, 8), min_size=size, max_size=size)
    return logits.map(lambda values: torch.tensor([values], dtype=torch.float64).log_softmax(-1))


@given(distributions(), distributions(), st.floats(1e-4, 3))
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_and_is_spent_where_it_binds(s, t, eps):
    mu = trust_region_blend(s, t, eps)
    spent = float(kl(mu.exp(), s.exp()))
    assert float(mu.exp().sum()) == pytest.approx(1)
    assert spent <= eps + 1e-9
    if float(kl(t.exp(), s.exp())) > eps + 1e-6:
        assert spent == pytest.approx(eps, rel=1e-6)


def test_no_budget_is_the_student_bit_for_bit():
    assert torch.equal(trust_region_blend(S.log(), T.log(), 0.0), S.log())


def test_equal_distributions_stay():
    torch.testing.assert_close(blend(S, S, 0.1), S)


def test_a_token_that_the_teacher_excludes_may_cost_more_than_the_budget():
    t = torch.tensor([[0.0, 0.6, 0.4]]).double()
    # Leaving token 0 out costs at least -log 0.3 = 1.204.
    assert torch.equal(trust_region_blend(S.log(), t.log(), 1.2), S.log())
    mu = blend(S, t, 1.21)
    assert mu[0, 0] == 0
    assert float((mu[:, 1:] * (mu[:, 1:] / S[:, 1:]).log()).sum()) <= 1.21
    assert mu.isfinite().all()


def test_tokens_without_probability_in_either_never_come():
    s, t = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).double(), torch.tensor([[0.1, 0.6, 0.3, 0.0]]).double()
    mu = blend(s, t, 0.1)
    assert mu[0, 2:].tolist() == [0.0, 0.0]
    assert float(mu.sum()) == pytest.approx(1)
    assert float((mu[:, :2] * (mu[:, :2] / s[:, :2]).log()).sum()) == pytest.approx(0.1)
    apart = torch.tensor([[0.0, 0.0, 0.5, 0.5]]).double()
    assert torch.equal(trust_region_blend(s.log(), apart.log(), 5.0), s.log())


def test_a_row_with_nan_falls_back_to_the_student_and_leaves_the_others_alone():
    broken = T.log().clone()
    broken[0, 1] = torch.nan
    both = trust_region_blend(torch.cat([S.log(), S.log()]), torch.cat([broken, T.log()]), 0.05)
    assert torch.equal(both[:1], S.log())
    torch.testing.assert_close(both[1:], trust_region_blend(S.log(), T.log(), 0.05))


# ---- check 4: the schedule


def test_the_bound_is_annealed_to_zero():
    part = TrustBlend(eps=0.02, anneal=50)
    assert [part.bound(k) for k in (0, 10, 25, 50, 51)] == pytest.approx([0.02, 0.016, 0.01, 0.0, 0.0])
    assert TrustBlend(eps=0.02, anneal=0).bound(0) == 0.0
    assert TrustBlend(eps=0.02, anneal=math.inf).bound(10**6) == 0.02
    assert [TrustBlend(eps=math.inf, anneal=2).bound(k) for k in (0, 1, 2)] == [math.inf, math.inf, 0.0]


def drawn(step: int, blending: bool = True) -> torch.Tensor:
    student, teacher = random_table(2, 6, 4, seed=1), random_table(2, 6, 4, seed=2)
    noise = torch.rand(16, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    part = TrustBlend(eps=0.5, anneal=10) if blending else None
    run = SimpleNamespace(step=step)
    others = {"teacher": teacher} if blending else None
    return sample(student, [(0,), (1,)], 8, noise, temperature=1.0, blend=part, others=others, run=run).tokens


def test_after_the_warm_up_the_same_noise_gives_the_students_own_tokens():
    alone = drawn(0, blending=False)
    assert torch.equal(drawn(10), alone)
    assert not torch.equal(drawn(0), alone)
    part = TrustBlend(eps=0.5, anneal=10)
    assert [part.active(SimpleNamespace(step=k)) for k in (0, 9, 10)] == [True, True, False]


# ---- check 5: the bound on whole rollouts


def test_rollouts_stay_within_length_times_the_bound():
    eps, length, v = 0.05, 4, 3
    student, teacher = (random_table(1, length, v, seed=seed).logits.detach().log_softmax(-1) for seed in (1, 2))
    mu = trust_region_blend(student.view(-1, v), teacher.view(-1, v), eps).view_as(student)
    total = 0.0
    for tokens in itertools.product(range(v), repeat=length):
        path = [(0, t, tokens[t - 1] if t else v, token) for t, token in enumerate(tokens)]
        log_mu, log_s = (sum(float(table[where]) for where in path) for table in (mu, student))
        total += math.exp(log_mu) * (log_mu - log_s)
    assert 0.5 * length * eps < total <= length * eps + 1e-12

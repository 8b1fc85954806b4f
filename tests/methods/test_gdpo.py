"""GDPO, the method "gdpo": worked numbers of the spec, invariances, counts, and its bandit."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.advantages import GroupDecoupled, GroupRelative
from melior.advantages.decoupled import group_decoupled
from melior.objectives import Probe
from melior.policies.table import Table
from melior.records.catalogue import get
from melior.rewards import Sum
from melior.trajectories import Trajectories
from toys import draw, learner_of, rewarded

GDPO = get("gdpo")
NAN = float("nan")


def batch_of(
    rewards: list[tuple[float, ...]], group: list[int] | None = None, mask: list[list[int]] | None = None
) -> Trajectories:
    table = torch.tensor(rewards, dtype=torch.float64)
    b = len(table)
    m = torch.ones(b, 2, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    return Trajectories(
        mask=m,
        group=torch.tensor(group or [0] * b),
        components={f"r{k}": column for k, column in enumerate(table.unbind(1))},
    )


def close(actual: torch.Tensor, expected: list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def summed(batch: Trajectories, eps: float = 1e-4) -> torch.Tensor:
    return (Sum() | GroupRelative(eps=eps))(batch).advantage[:, 0]


def test_check_1_worked_example():
    batch = batch_of([(0, 0), (1, 0), (0, 0), (1, 1)], [0, 0, 1, 1])
    close(summed(batch), [-0.707007, 0.707007, -0.707057, 0.707057])
    close(GroupDecoupled(batch_norm="none")(batch).advantage[:, 0], [-0.707007, 0.707007, -1.414014, 1.414014])
    close(GDPO.advantage(batch).advantage[:, 0], [-0.547680, 0.547680, -1.095360, 1.095360])


def test_check_2_four_rows_of_different_order():
    batch = batch_of([(1, 3), (1, -1), (0, 3), (0, -3)])
    close(GroupDecoupled(batch_norm="none")(batch).advantage[:, 0], [1.699181, 0.365892, -0.032570, -2.032503])
    close(GDPO.advantage(batch).advantage[:, 0], [1.100326, 0.236938, -0.021091, -1.316173])
    weighted = GDPO.advantage(batch.with_(weights={"r1": 0.5})).advantage[:, 0]
    close(weighted, [1.067926, 0.512829, -0.374055, -1.206700])
    close(summed(batch), [0.948653, -0.316218, 0.632436, -1.264871])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=4, max_size=12),
    st.floats(0.01, 100),
    st.integers(0, 1),
)
@settings(deadline=None, max_examples=40)
def test_check_3_the_scale_of_a_component_does_not_matter(rewards, c, which):
    group = [i % 2 for i in range(len(rewards))]
    scaled = [tuple(r * (c if k == which else 1.0) for k, r in enumerate(row)) for row in rewards]
    part = GroupDecoupled(eps=1e-12, batch_norm="none")
    first, second = (part(batch_of([tuple(map(float, r)) for r in x], group)).advantage for x in (rewards, scaled))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def test_check_3_the_scale_of_a_component_matters_for_a_sum():
    rewards = [(1.0, 3.0), (1.0, -1.0), (0.0, 3.0), (0.0, -3.0)]
    ten = [(10 * a, b) for a, b in rewards]
    assert (summed(batch_of(rewards)) - summed(batch_of(ten))).abs().max() > 0.1


@pytest.mark.parametrize(("g", "grpo", "gdpo"), [(2, 2, 3), (3, 4, 6), (4, 7, 14)])
def test_check_4_it_tells_more_reward_tables_apart(g, grpo, gdpo):
    tables = list(itertools.product(itertools.product((0.0, 1.0), repeat=2), repeat=g))
    rewards = [row for table in tables for row in table]
    batch = batch_of(rewards, [i // g for i in range(len(rewards))])
    counts = []
    for advantage in (summed(batch, 1e-12), GroupDecoupled(eps=1e-12, batch_norm="none")(batch).advantage[:, 0]):
        vectors = advantage.view(-1, g).sort(1).values
        counts.append(len({tuple(round(x, 4) + 0.0 for x in row) for row in vectors.tolist()}))
    assert counts == [grpo, gdpo]


def test_check_4_the_epsilon_of_grpo_shows_tables_apart_that_are_not():
    found = []
    for g in (2, 3, 4):
        tables = list(itertools.product(itertools.product((0.0, 1.0), repeat=2), repeat=g))
        batch = batch_of([row for table in tables for row in table], [i // g for i in range(g * len(tables))])
        vectors = summed(batch).view(-1, g).sort(1).values
        found.append(len({tuple(round(x, 4) + 0.0 for x in row) for row in vectors.tolist()}))
    assert found == [3, 6, 10]


def test_check_5_with_one_component_and_no_last_step_it_is_grpo():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(12, generator=generator, dtype=torch.float64)
    batch = batch_of([(float(v),) for v in values], [i % 3 for i in range(12)])
    torch.testing.assert_close(
        GroupDecoupled(batch_norm="none")(batch).advantage[:, 0], summed(batch), rtol=0, atol=1e-12
    )


# ---- edges


def test_a_constant_component_adds_exactly_nothing():
    batch = batch_of([(0.1, 0.0), (0.1, 1.0), (0.1, 0.0)])
    alone = batch_of([(0.0,), (1.0,), (0.0,)])
    assert torch.equal(GDPO.advantage(batch).advantage, GDPO.advantage(alone).advantage)


@pytest.mark.parametrize("norm", ["sequence", "token", "none"])
@pytest.mark.parametrize("rewards", [[(0.1, 0.7)] * 3, [(0.3, 0.2)]])
def test_a_constant_batch_or_a_batch_of_one_has_no_advantage(rewards, norm):
    assert not GroupDecoupled(batch_norm=norm)(batch_of(rewards)).advantage.any()


def test_a_constant_group_beside_another_gets_minus_the_batch_mean_which_is_zero():
    batch = batch_of([(0.1, 1.0), (0.1, 1.0), (1.0, 0.0), (0.0, 0.0)], [0, 0, 1, 1])
    assert GDPO.advantage(batch).advantage[:2].abs().max() < 1e-15


def test_rule_9_a_component_that_does_not_apply():
    """Statistics over the known ones; a missing one adds 0; a row with none takes no part in the whitening."""
    rewards = [(1.0, NAN), (0.0, 2.0), (0.5, 0.0), (NAN, NAN)]
    each = group_decoupled(
        torch.tensor(rewards, dtype=torch.float64), torch.zeros(4, dtype=torch.long), torch.ones(2).double(), 0.0
    )
    close(each[:3], [1.0, -1.0 + 0.5**0.5, -(0.5**0.5)])
    assert each[3].isnan()
    without = GDPO.advantage(batch_of(rewards[:3])).advantage
    out = GDPO.advantage(batch_of(rewards)).advantage
    assert torch.equal(out[:3], without) and not out[3].any()


def test_over_tokens_long_answers_weigh_more():
    mask = [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    batch = batch_of([(0, 0), (1, 0), (0, 0), (1, 1)], [0, 0, 1, 1], mask)
    raw = GroupDecoupled(batch_norm="none")(batch).advantage
    inside = raw[batch.mask]
    assert inside.mean().abs() > 0.1  # not zero where lengths differ
    expected = (inside - inside.mean()) * (inside.var() + 1e-8).rsqrt()
    out = GroupDecoupled(batch_norm="token", batch_eps=1e-8)(batch).advantage
    torch.testing.assert_close(out[batch.mask], expected)
    assert not out[~batch.mask].any()


def test_without_components_it_says_so():
    with pytest.raises(ValueError, match="needs reward components"):
        GDPO.advantage(batch_of([(0.0,)]).with_(components={}))


def bandit(advantage, seed: int) -> float:
    """Probability of the arm that earns both rewards: eight arms, r1 on three, r2 = 0.1 on two, one has both."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.float64)
    second = torch.tensor([0.1, 0, 0, 0.1, 0, 0, 0, 0], dtype=torch.float64)
    table = Table(4, 1, 8, index=("prompt",), dtype=torch.float64)
    learner = learner_of(table, Probe(), lr=0.3)
    for _ in range(100):
        batch = draw(table, 8, 1, generator)
        arm = batch.tokens[:, 0]
        batch = (Sum() | advantage)(rewarded(batch, r1=first[arm], r2=second[arm]))
        learner.gradient(GDPO.objective, batch)
        learner.step()
    return float(table.logits.detach().softmax(-1)[:, 0, 0, 0].mean())


def test_check_6_it_finds_the_arm_with_both_rewards_more_surely():
    assert bandit(GDPO.advantage, 0) > bandit(GroupRelative(), 0) > 0.9

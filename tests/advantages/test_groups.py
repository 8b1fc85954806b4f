"""Statistics of siblings: found by id, any size and order, NaN left out, equal values exactly."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.advantages import GroupRelative, LeaveOneOut, PositiveOnly, Reward, SiblingBaseline
from melior.advantages.group import group_relative, spread
from melior.advantages.groups import (
    group_extremes,
    group_index,
    group_moments,
    group_size,
    group_sum,
    leave_one_out_mean,
)
from melior.trajectories import Trajectories

VALUES = st.floats(-1e3, 1e3, allow_subnormal=False) | st.just(float("nan"))


@st.composite
def grouped(draw: st.DrawFn, values: st.SearchStrategy[float] = VALUES) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and arbitrary ids of groups of any size in any order."""
    rows = draw(st.lists(st.tuples(values, st.sampled_from([-7, 0, 3, 10**12])), min_size=1, max_size=12))
    return torch.tensor([r for r, _ in rows], dtype=torch.float64), torch.tensor([g for _, g in rows])


def members(values: torch.Tensor, group: torch.Tensor, row: int) -> list[float]:
    return [float(v) for v, g in zip(values, group, strict=True) if g == group[row] and not v.isnan()]


@given(grouped())
@settings(deadline=None, max_examples=60)
def test_moments_are_those_of_each_groups_members(case):
    values, group = case
    mean, std = group_moments(values, group)
    for row in range(len(values)):
        own = members(values, group, row)
        if not own:
            assert mean[row].isnan() and std[row] == 0
            continue
        assert float(mean[row]) == pytest.approx(statistics.fmean(own), abs=1e-9)
        expected = statistics.stdev(own) if len(own) > 1 else 0.0
        assert float(std[row]) == pytest.approx(expected, abs=1e-9)


@given(grouped())
@settings(deadline=None, max_examples=40)
def test_sums_sizes_extremes_and_other_means(case):
    values, group = case
    total, size = group_sum(values, group), group_size(values, group)
    low, high = group_extremes(values, group)
    others = leave_one_out_mean(values, group)
    for row in range(len(values)):
        own = members(values, group, row)
        assert float(total[row]) == pytest.approx(sum(own), abs=1e-9) and float(size[row]) == len(own)
        assert (float(low[row]), float(high[row])) == ((min(own), max(own)) if own else (torch.inf, -torch.inf))
        rest = list(own)
        if not values[row].isnan():
            rest.remove(float(values[row]))
        assert float(others[row]) == pytest.approx(statistics.fmean(rest) if rest else 0.0, abs=1e-8)


@given(grouped(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_rule_8_shuffled_rows_give_shuffled_advantages(case, random):
    values, group = case
    order = torch.tensor(random.sample(range(len(values)), len(values)))
    for advantage in (group_relative, lambda r, g: r - leave_one_out_mean(r, g)):
        torch.testing.assert_close(
            advantage(values, group)[order],
            advantage(values[order], group[order]),
            rtol=1e-6,
            atol=1e-9,
            equal_nan=True,
        )


@given(grouped(st.integers(-8, 8).map(float)), st.integers(-64, 64))
@settings(deadline=None, max_examples=40)
def test_a_constant_added_to_all_rewards_changes_nothing(case, shift):
    values, group = case
    torch.testing.assert_close(
        group_relative(values + shift, group), group_relative(values, group), rtol=1e-9, atol=1e-9
    )


@given(grouped(st.floats(-100, 100)), st.sampled_from([None, "std"]))
@settings(deadline=None, max_examples=40)
def test_advantages_of_a_group_sum_to_zero(case, scale):
    values, group = case
    advantage = group_relative(values, group, scale)
    assert float(group_sum(advantage, group).abs().max()) < 1e-6 * (1 + float(advantage.abs().max()))


@given(grouped())
@settings(deadline=None, max_examples=40)
def test_a_nan_is_as_if_the_row_were_not_there(case):
    values, group = case
    known = ~values.isnan()
    for advantage in (group_relative, lambda r, g: r - leave_one_out_mean(r, g)):
        assert torch.equal(advantage(values, group)[known], advantage(values[known], group[known]))
        assert advantage(values, group)[~known].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [0.1, 0.3, 1 / 3, -0.7, 1e-8, 12345.678])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_equal_rewards_have_exactly_no_advantage(reward, size, dtype):
    """Rounding in the mean would otherwise leave a difference that a small epsilon blows up to one."""
    values = torch.full((size + 1,), reward, dtype=dtype)
    values[-1] = torch.nan
    group = torch.zeros(size + 1, dtype=torch.long)
    for eps in (1e-6, 1e-12, 0.0):
        assert not group_relative(values, group, eps=eps)[:-1].any()
    assert not group_relative(values, group, None)[:-1].any()
    assert not (values - leave_one_out_mean(values, group))[:-1].any()


def test_group_ids_are_names_not_positions():
    index, count = group_index(torch.tensor([40, -3, 40, 7]))
    assert count == 3 and index.tolist() == [2, 0, 2, 1]


def test_worked_numbers_of_three_unequal_groups():
    reward = torch.tensor([1.0, 5.0, 0.0, 2.0, 1.0, 4.0], dtype=torch.float64)
    group = torch.tensor([8, 2, 8, 2, 8, 5])
    advantage = group_relative(reward, group, eps=0.0)
    expected = torch.tensor([1, 3, -2, -3, 1, 0], dtype=torch.float64)  # times: 1/3 over std, 1/2 over std
    std = torch.tensor([1 / 3**0.5, 4.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(advantage[[0, 2, 4]], expected[[0, 2, 4]] / 3 / std[0])
    torch.testing.assert_close(advantage[[1, 3]], expected[[1, 3]] / 2 / std[1])
    assert advantage[5] == 0
    torch.testing.assert_close(
        reward - leave_one_out_mean(reward, group), torch.tensor([0.5, 3, -1, -3, 0.5, 4]).double()
    )


def test_rule_8_a_leave_one_out_over_flattened_rows_is_a_different_number():
    """Credit is assigned before a minibatch flattens or cuts rows."""
    batch = rows([1.0, 0.0, 0.0], [0, 0, 0], mask=[[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    before = LeaveOneOut()(batch).steps().advantage.squeeze(1)
    after = LeaveOneOut()(batch.steps()).advantage.squeeze(1)
    torch.testing.assert_close(before, torch.tensor([1, 1, 1, -0.5, -0.5, -0.5], dtype=torch.float64))
    torch.testing.assert_close(after, torch.tensor([0.6, 0.6, 0.6, -0.6, -0.6, -0.6], dtype=torch.float64))


def rows(
    reward: list[float], group: list[int], mask: list[list[int]] | None = None, **columns: list[float]
) -> Trajectories:
    b = len(reward)
    return Trajectories(
        mask=torch.ones(b, 2, dtype=torch.bool) if mask is None else torch.tensor(mask).bool(),
        group=torch.tensor(group),
        reward=torch.tensor(reward, dtype=torch.float64),
        columns={name: torch.tensor(value, dtype=torch.float64) for name, value in columns.items()},
    )


@pytest.mark.parametrize(
    "part", [GroupRelative(), GroupRelative(None), LeaveOneOut(), Reward(), Reward("greedy"), SiblingBaseline("greedy")]
)
def test_every_row_advantage_stands_on_trained_actions_only(part):
    batch = rows([1, 0, 3, torch.nan], [0, 0, 1, 1], [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], greedy=[0.25] * 4)
    advantage = part(batch).advantage
    assert not advantage[~batch.mask].any() and not advantage[3].any() and advantage.isfinite().all()
    assert advantage[0, 0] == advantage[0, 1] != 0


def test_a_value_that_is_not_finite_is_not_hidden():
    spoiled = spread(torch.tensor([torch.inf, torch.nan, 1.0]), torch.ones(3, 2, dtype=torch.bool))
    assert spoiled.tolist() == [[torch.inf] * 2, [0.0] * 2, [1.0] * 2]


def test_a_group_of_one():
    batch = rows([3.0, 1.0, 0.0], [4, 5, 5])
    assert GroupRelative()(batch).advantage[0].tolist() == [0.0, 0.0]
    assert GroupRelative(single="reward")(batch).advantage[0, 0].item() == pytest.approx(3 / (1 + 1e-6), rel=1e-12)
    assert GroupRelative(None, single="reward")(batch).advantage[0, 0].item() == 3.0
    assert LeaveOneOut()(batch).advantage[0, 0].item() == 3.0
    assert GroupRelative().needs_siblings and not GroupRelative(single="reward").needs_siblings


def test_a_deviation_under_the_floor_does_not_divide():
    batch = rows([1e-8, 0.0, 2.0, 0.0], [0, 0, 1, 1])
    advantage = GroupRelative(eps=0.0, ddof=0, floor=1e-6)(batch).advantage[:, 0]
    torch.testing.assert_close(advantage, torch.tensor([5e-9, -5e-9, 1, -1], dtype=torch.float64), rtol=1e-9, atol=0)


def test_the_advantage_of_positive_rows_alone():
    batch = GroupRelative(eps=0.0, ddof=0)(rows([3.0, 1.0, 2.0], [0, 0, 0]))
    assert PositiveOnly()(batch).advantage[:, 0].tolist() == pytest.approx([1.5**0.5, 0, 0])
    assert PositiveOnly(binary=True)(batch).advantage.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_a_siblings_prediction_is_the_baseline():
    batch = rows([1.0, 0.0, 2.0], [0, 0, 1], prediction=[0.2, 0.6, 5.0])
    assert SiblingBaseline()(batch).advantage[:, 0].tolist() == pytest.approx([0.4, -0.2, 2.0])


def test_advantages_keep_the_dtype_and_no_gradient():
    reward = torch.tensor([1.0, 0.0], dtype=torch.float32)
    batch = Trajectories(mask=torch.ones(2, 1, dtype=torch.bool), group=torch.zeros(2, dtype=torch.long), reward=reward)
    advantage = GroupRelative()(batch).advantage
    assert advantage.dtype == torch.float32 and not advantage.requires_grad


def test_the_deviation_of_the_whole_batch_may_scale():
    reward, group = torch.tensor([1.0, 0.0, 4.0, 2.0, float("nan")]).double(), torch.tensor([0, 0, 1, 1, 1])
    spread_of_all = statistics.stdev([1.0, 0.0, 4.0, 2.0])
    own = group_relative(reward, group, "batch", eps=1e-4)
    expected = [a / (spread_of_all + 1e-4) for a in (0.5, -0.5, 1.0, -1.0)]
    assert own[:4].tolist() == pytest.approx(expected, rel=1e-12) and own[4].isnan()
    equal = group_relative(torch.ones(3), torch.tensor([0, 0, 1]), "batch")
    assert equal.tolist() == [0.0, 0.0, 0.0]

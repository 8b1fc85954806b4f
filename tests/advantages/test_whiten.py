"""Whitening over tokens and rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.advantages import GroupRelative, Whiten
from melior.advantages.whiten import whiten
from melior.trajectories import Trajectories


def batch_of(advantage: list[list[float]], mask: list[list[int]]) -> Trajectories:
    m = torch.tensor(mask).bool()
    a = torch.tensor(advantage, dtype=torch.float64) * m
    return Trajectories(mask=m, group=torch.arange(len(mask)), advantage=a)


def test_over_tokens_every_trained_token_counts():
    batch = batch_of([[1, 1, 1], [-2, 9, 9]], [[1, 1, 1], [1, 0, 0]])
    out = Whiten(eps=0.0)(batch).advantage
    inside = torch.tensor([1, 1, 1, -2], dtype=torch.float64)
    torch.testing.assert_close(out[batch.mask], (inside - 0.25) / 1.5)
    assert not out[~batch.mask].any()


def test_over_rows_each_row_counts_once():
    batch = batch_of([[0, 1, 1], [-2, 0, 0], [5, 5, 5]], [[0, 1, 1], [1, 0, 0], [0, 0, 0]])
    out = Whiten(over="rows", eps=0.0, ddof=0)(batch).advantage
    torch.testing.assert_close(out, torch.tensor([[0, 1, 1], [-1, 0, 0], [0, 0, 0]], dtype=torch.float64))


def test_the_clamp_comes_last():
    batch = batch_of([[9, -1, -1, -1, -1, -1, -1, -1, -1, -1]], [[1] * 10])
    raw = Whiten(eps=0.0)(batch).advantage
    assert raw.max() > 2.8
    assert torch.equal(Whiten(2.0, eps=0.0)(batch).advantage, raw.clamp(-2, 2))


@pytest.mark.parametrize("value", [0.1, 1 / 3, -0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_batch_whitens_to_exact_zeros(value, dtype):
    values = torch.full((7,), value, dtype=dtype)
    for eps in (1e-8, 0.0):
        assert not whiten(values, torch.ones(7, dtype=torch.bool), eps).any()


def test_too_few_entries_are_centered_only():
    one = whiten(torch.tensor([3.0, 8.0]), torch.tensor([True, False]))
    assert one.tolist() == [0.0, 0.0]
    assert whiten(torch.tensor([3.0]), torch.tensor([False])).tolist() == [0.0]


def test_a_floor_leaves_small_deviations_undivided():
    values = torch.tensor([1.0, 1.1], dtype=torch.float64)
    out = whiten(values, torch.ones(2, dtype=torch.bool), floor=0.5)
    torch.testing.assert_close(out, torch.tensor([-0.05, 0.05], dtype=torch.float64))


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=12, unique=True), st.floats(-50, 50), st.floats(0.1, 10))
@settings(deadline=None, max_examples=40)
def test_shift_and_scale_do_not_matter(values, shift, scale):
    x = torch.tensor(values, dtype=torch.float64)
    if float(x.std()) < 1e-2:
        return
    everywhere = torch.ones(len(x), dtype=torch.bool)
    out = whiten(x, everywhere, eps=0.0)
    torch.testing.assert_close(whiten(x * scale + shift, everywhere, eps=0.0), out, rtol=1e-6, atol=1e-6)
    assert float(out.mean()) == pytest.approx(0, abs=1e-9) and float(out.std()) == pytest.approx(1)


def test_after_a_group_baseline():
    batch = Trajectories(
        mask=torch.ones(4, 1, dtype=torch.bool),
        group=torch.tensor([0, 1, 0, 1]),
        reward=torch.tensor([1.0, 4.0, 0.0, 0.0], dtype=torch.float64),
    )
    out = (GroupRelative(None) | Whiten(eps=0.0, ddof=0))(batch).advantage[:, 0]
    torch.testing.assert_close(out, torch.tensor([0.5, 2, -0.5, -2], dtype=torch.float64) / 2.125**0.5)


def test_a_lone_entry_is_its_own_mean_unless_it_is_to_be_kept():  # PPO: a minibatch of one is not normalized
    batch = batch_of([[3.0]], [[1]])
    assert Whiten()(batch).advantage.tolist() == [[0.0]]
    assert Whiten(single="keep")(batch).advantage.tolist() == [[3.0]]

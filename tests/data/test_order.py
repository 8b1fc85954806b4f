"""The order of prompts is a function of the position alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melior.data import PromptOrder
from melior.errors import UserError


@given(count=st.integers(1, 30), seed=st.integers(-5, 2**64), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_cut_into_batches_gives_the_same_order(count, seed, cuts):
    order, resumed, position, taken = PromptOrder(count, seed), [], 0, []
    for n in cuts:
        taken += order.take(position, n)
        resumed += PromptOrder(count, seed).take(position, n)
        position += n
    assert taken == resumed == order.take(0, position)


@given(count=st.integers(1, 50), epoch=st.integers(0, 5))
def test_every_epoch_holds_every_row_once(count, epoch):
    assert sorted(PromptOrder(count, 3).take(epoch * count, count)) == list(range(count))


def test_epochs_and_seeds_differ():
    order = PromptOrder(["row"] * 50, 0)
    assert order.take(0, 50) != order.take(50, 50)
    assert order.take(0, 50) != PromptOrder(50, 1).take(0, 50)
    assert order.take(0, 50) != list(range(50))


def test_the_order_is_the_same_on_every_machine():
    assert PromptOrder(6, 0).take(0, 12) == [4, 0, 1, 5, 2, 3, 2, 1, 0, 5, 3, 4]


def test_large_and_negative_seeds_keep_all_their_bits():
    seeds = [2**64 - 1, 2**64 - 2, 2**63, 2**63 + 1, -3]
    assert len({tuple(PromptOrder(50, seed).take(0, 50)) for seed in seeds}) == 5


def test_first_places_are_uniform():
    counts = [0] * 4
    for seed in range(2000):
        counts[PromptOrder(4, seed).take(0, 1)[0]] += 1
    assert all(abs(count - 500) < 100 for count in counts)  # five standard deviations


def test_no_rows():
    with pytest.raises(UserError, match="no rows"):
        PromptOrder(0, 0)
    with pytest.raises(UserError, match="no rows"):
        PromptOrder([], 0)

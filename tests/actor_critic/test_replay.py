"""What is remembered: a ring of transitions that keeps terminations and truncations apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from melior.actor_critic.replay import Replay, Transitions
from melior.errors import RunError
from melior.storage.tree import load_tree, save_tree


def numbered(first: int, count: int) -> Transitions:
    number = torch.arange(first, first + count, dtype=torch.float32)
    return Transitions(
        number[:, None].expand(count, 2),
        -number[:, None],
        10 * number,
        number[:, None].expand(count, 2) + 1,
        number.long() % 3 == 0,
        number.long() % 3 == 1,
    )


def test_the_newest_take_the_place_of_the_oldest() -> None:
    buffer = Replay(5)(2, 1)
    buffer.add(numbered(0, 3))
    assert len(buffer) == 3
    buffer.add(numbered(3, 4))
    assert len(buffer) == 5
    seen = buffer.sample(200, torch.Generator().manual_seed(0)).observation[:, 0]
    assert set(seen.int().tolist()) == {2, 3, 4, 5, 6}


def test_a_transition_stays_together() -> None:
    buffer = Replay(7)(2, 1)
    buffer.add(numbered(0, 10))
    batch = buffer.sample(50, torch.Generator().manual_seed(0))
    number = batch.observation[:, 0]
    assert torch.equal(batch.action[:, 0], -number) and torch.equal(batch.reward, 10 * number)
    assert torch.equal(batch.next_observation[:, 1], number + 1)
    assert torch.equal(batch.terminated, number.long() % 3 == 0)
    assert torch.equal(batch.truncated, number.long() % 3 == 1)


def test_only_what_was_remembered_is_sampled() -> None:
    buffer = Replay(100)(2, 1)
    buffer.add(numbered(5, 2))
    assert set(buffer.sample(100, torch.Generator().manual_seed(0)).reward.tolist()) == {50.0, 60.0}


@pytest.mark.parametrize("count", [3, 9])
def test_it_is_put_away_and_taken_up(count: int, tmp_path: Path) -> None:
    one, other = Replay(5)(2, 1), Replay(5)(2, 1)
    for first in range(0, count, 3):
        one.add(numbered(first, 3))
    save_tree(tmp_path / "buffer", one.state())
    other.load_state(load_tree(tmp_path / "buffer"))
    for buffer in (one, other):
        buffer.add(numbered(100, 1))
    mine, theirs = (buffer.sample(64, torch.Generator().manual_seed(3)) for buffer in (one, other))
    assert torch.equal(mine.reward, theirs.reward) and torch.equal(mine.next_observation, theirs.next_observation)


def test_a_buffer_that_is_too_small_says_so() -> None:
    one = Replay(5)(2, 1)
    one.add(numbered(0, 5))
    with pytest.raises(RunError, match="remembers 5 transitions, and this run has room for 3"):
        Replay(3)(2, 1).load_state(one.state())

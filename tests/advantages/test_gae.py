"""Worked numbers of generalized advantage estimation: terminations, truncations, and the time limit between them."""

from __future__ import annotations

import pytest
import torch

from melior.advantages import GAE, Whiten
from melior.advantages.gae import gae
from melior.trajectories import Trajectories

REWARD = torch.ones(1, 5)
VALUE = torch.tensor([[0.5, 0.6, 0.7, 0.8, 0.9]])
TERMINATED = torch.tensor([[False, True, False, False, False]])
TRUNCATED = torch.tensor([[False, False, False, True, False]])
# The value of the observation that truly followed; 0.4 is that of the one before the reset at the truncation.
NEXT = torch.tensor([[0.6, 0.0, 0.8, 0.4, 0.3]])
RIGHT = torch.tensor([[1.4702, 0.4, 1.652538, 0.596, 0.397]])


def test_terminations_end_the_value_and_truncations_only_the_trace() -> None:
    found = gae(REWARD, VALUE, NEXT, TERMINATED | TRUNCATED, 0.99, 0.95)
    torch.testing.assert_close(found, RIGHT, atol=1e-6, rtol=0)


def test_a_truncation_taken_for_a_termination_gives_other_numbers() -> None:
    found = gae(REWARD, VALUE, torch.where(TRUNCATED, 0.0, NEXT), TERMINATED | TRUNCATED, 0.99, 0.95)
    torch.testing.assert_close(found, torch.tensor([[1.4702, 0.4, 1.2801, 0.2, 0.397]]), atol=1e-6, rtol=0)


def test_adding_the_last_value_to_the_reward_and_ending_there_is_the_same() -> None:
    augmented = REWARD + 0.99 * torch.where(TRUNCATED, NEXT, 0.0)
    found = gae(augmented, VALUE, torch.where(TRUNCATED, 0.0, NEXT), TERMINATED | TRUNCATED, 0.99, 0.95)
    torch.testing.assert_close(found, gae(REWARD, VALUE, NEXT, TERMINATED | TRUNCATED, 0.99, 0.95), atol=1e-6, rtol=0)


def test_a_time_limit_with_value_10_beyond_it() -> None:
    found = gae(
        torch.ones(1, 1), torch.zeros(1, 1), torch.full((1, 1), 10.0), torch.ones(1, 1, dtype=torch.bool), 0.99, 0.95
    )
    torch.testing.assert_close(found, torch.tensor([[10.9]]))


def steps(mask: torch.Tensor | None = None) -> Trajectories:
    return Trajectories(
        mask=torch.ones(1, 5, dtype=torch.bool) if mask is None else mask,
        group=torch.zeros(1, dtype=torch.long),
        step_reward=REWARD,
        columns={"value": VALUE, "next_value": NEXT, "cut": TERMINATED | TRUNCATED},
    )


def test_the_part_also_writes_the_returns_that_the_critic_learns() -> None:
    batch = GAE(0.99, 0.95)(steps())
    assert batch.advantage is not None
    torch.testing.assert_close(batch.advantage, RIGHT, atol=1e-6, rtol=0)
    torch.testing.assert_close(batch.columns["returns"], RIGHT + VALUE, atol=1e-6, rtol=0)


def test_a_masked_step_that_only_began_an_episode_has_no_advantage_and_leaks_into_none() -> None:
    mask = torch.tensor([[True, True, False, True, True]])
    batch = steps(mask).column(cut=TERMINATED | TRUNCATED | ~mask)
    advantage = GAE(0.99, 0.95)(batch).advantage
    assert advantage is not None
    assert float(advantage[0, 2]) == 0
    torch.testing.assert_close(advantage[0, [0, 1, 3, 4]], RIGHT[0, [0, 1, 3, 4]], atol=1e-6, rtol=0)


def test_whitened_with_the_sample_deviation() -> None:
    batch = Whiten()(GAE(0.99, 0.95)(steps()))
    assert batch.advantage is not None
    expected = torch.tensor([[0.930089, -0.825271, 1.229163, -0.503789, -0.830192]])
    torch.testing.assert_close(batch.advantage, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_lambda_goes_from_one_step_errors_to_whole_returns(lam: float) -> None:
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    reward, value = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.1, 0.2, 0.3]])
    nexts = torch.tensor([[0.2, 0.3, 0.4]])
    found = gae(reward, value, nexts, nothing, 0.5, lam)
    errors = reward + 0.5 * nexts - value
    whole = torch.tensor([[1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 0.4)), 2 + 0.5 * (3 + 0.5 * 0.4), 3 + 0.5 * 0.4]]) - value
    torch.testing.assert_close(found, errors if lam == 0 else whole)

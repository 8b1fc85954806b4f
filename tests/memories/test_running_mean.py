"""The remembered mean reward as REINFORCE's baseline."""

from __future__ import annotations

import math

import pytest
import torch

from melior.advantages import Reward
from melior.memories import RunningMean
from melior.methods.policy_gradient import REINFORCE
from toys import random_table, run_of, table_batch


def test_the_mean_is_of_earlier_steps_and_weighs_the_newest_most():
    memory = RunningMean(decay=0.5)
    state = memory.init(None)
    seen = []
    for rewards in ([1, 1], [0, 1], [0, 0]):
        batch = table_batch(rewards, [[0]] * 2, [0, 0])
        seen.append(memory.recall(state, batch).columns["running_mean"].tolist())
        state = memory.observe(state, batch, {})
    # 0 before anything; 1; then (1 * 0.25 + 0.5 * 0.5) / 0.75
    assert seen == [[0, 0], [1, 1], pytest.approx([2 / 3, 2 / 3])]


def test_rows_without_a_reward_are_left_out():
    memory = RunningMean()
    state = memory.observe(memory.init(None), table_batch([1, math.nan], [[0]] * 2, [0, 0]), {})
    assert state["total"] / state["weight"] == 1.0
    assert memory.observe(state, table_batch([math.nan], [[0]], [0]), {}) == state


def test_it_is_a_baseline_of_reinforce():
    method = REINFORCE.record.but("mine", memory={"baseline": RunningMean()}, advantage=Reward(baseline="running_mean"))
    batch = table_batch([1, 0], [[0, 1], [1, 1]], [0, 0])
    run = run_of(method, random_table(1, 2, 3), batch)
    assert torch.equal(run.credit(batch).advantage[:, 0], batch.reward)
    run.state["baseline"] = method.memory["baseline"].observe(run.state["baseline"], batch, {})
    assert run.credit(batch).advantage[:, 0].tolist() == [0.5, -0.5]

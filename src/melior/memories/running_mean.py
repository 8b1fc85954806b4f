"""The mean reward of past steps, the oldest baseline of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from melior.parts import Memory, Stats
from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.run import Run


@dataclass(frozen=True)
class RunningMean(Memory[Mapping[str, float]]):
    """An exponential mean of the rewards of earlier steps, as the column "running_mean" [B].

    Each step's mean reward enters with weight 1 - decay after its update, so a baseline never contains the rewards it
    is subtracted from. The mean is over the weights seen so far (not pulled to zero at the start); before the first
    step it is 0. Rows without a reward are left out.

    For example `reinforce.but("mine", memory={"baseline": RunningMean()}, advantage=Reward(baseline="running_mean"))`.

    Attributes:
        decay: weight of the past, at least 0 and under 1; 0 remembers only the last step.
    """

    decay: float = 0.9

    def init(self, run: Run) -> Mapping[str, float]:
        return {"total": 0.0, "weight": 0.0}

    def recall(self, state: Mapping[str, float], batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        mean = state["total"] / state["weight"] if state["weight"] else 0.0
        return batch.column(running_mean=torch.full_like(batch.reward, mean))

    def observe(self, state: Mapping[str, float], batch: Trajectories, stats: Stats) -> Mapping[str, float]:
        assert batch.reward is not None
        rewards = batch.reward[~batch.reward.isnan()].double()
        if not len(rewards):
            return state
        fresh = 1 - self.decay
        return {
            "total": self.decay * state["total"] + fresh * float(rewards.mean()),
            "weight": self.decay * state["weight"] + fresh,
        }

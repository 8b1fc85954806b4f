"""Advantages from the siblings of a row: centered, scaled, or against the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int

from melior.advantages.groups import group_moments, group_size, leave_one_out_mean
from melior.parts import Transform
from melior.trajectories import Trajectories


def spread(row: Float[torch.Tensor, "B"], mask: Bool[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B T"]:
    """One number a row on each of its trained actions, zero elsewhere; a row without a number (NaN) gets zeros."""
    return torch.where(row.isnan(), torch.zeros_like(row), row)[:, None] * mask


def group_relative(
    reward: Float[torch.Tensor, "B"],
    group: Int[torch.Tensor, "B"],
    scale: str | None = "std",
    eps: float = 1e-6,
    ddof: int = 1,
    single: str = "zero",
    floor: float = 0.0,
) -> Float[torch.Tensor, "B"]:
    """A = (r - mean) / (std + eps) within each group; without the division when `scale` is None.

    With `scale="batch"` the deviation is that of all rewards of the batch. A deviation of at most `floor` is not
    divided by. A group of one, or of one finite reward, gets 0, or with `single="reward"` its reward (over 1 + eps
    when scaled). NaN rewards take no part and stay NaN.

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2 (scaled); Liu et al. 2025, arXiv 2503.20783 (centered).
    """
    mean, std = group_moments(reward, group, ddof)
    advantage = reward - mean
    if scale == "batch":
        known = reward[~reward.isnan()]
        std = known.std(correction=ddof) if len(known) > ddof else reward.new_zeros(())
    if scale is not None:
        advantage = torch.where(std > floor, advantage / (std + eps), advantage)
    if single == "reward":
        alone = group_size(reward, group) == 1
        advantage = torch.where(alone, reward / (1 + eps) if scale is not None else reward, advantage)
    return advantage


@dataclass(frozen=True)
class GroupRelative(Transform):
    """A = (r - mean) / (std + eps) over the siblings of a row, on every trained token.

    Attributes:
        scale: "std", "batch" (the deviation of all rewards of the batch), or None to center only.
        eps: added to the standard deviation.
        ddof: 1 for the sample, 0 for the population deviation.
        floor: a deviation of at most this is not divided by.
        single: advantage of a row without siblings: "zero", or "reward" for the reward itself.
    """

    scale: Literal["std", "batch"] | None = "std"
    eps: float = 1e-6
    ddof: int = 1
    floor: float = 0.0
    single: Literal["zero", "reward"] = "zero"

    @property
    def needs_siblings(self) -> bool:
        """A row without siblings learns nothing."""
        return self.single == "zero"

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        row = group_relative(batch.reward, batch.group, self.scale, self.eps, self.ddof, self.single, self.floor)
        return batch.with_(advantage=spread(row, batch.mask))


@dataclass(frozen=True)
class LeaveOneOut(Transform):
    """A = r - mean of the other siblings, which equals G/(G-1) * (r - mean). A row without siblings keeps its reward.

    Source: Ahmadian et al. 2024, arXiv 2402.14740.
    """

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        return batch.with_(advantage=spread(batch.reward - leave_one_out_mean(batch.reward, batch.group), batch.mask))


@dataclass(frozen=True)
class Reward(Transform):
    """A = r - baseline on every trained token; without a baseline column it is the reward itself (REINFORCE).

    Attributes:
        baseline: a [B] column to subtract: "greedy" (remax), "running_mean", a memory's prediction; "" for none.
    """

    baseline: str = ""

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        row = batch.reward - batch.require(self.baseline) if self.baseline else batch.reward
        return batch.with_(advantage=spread(row, batch.mask))


@dataclass(frozen=True)
class PositiveOnly(Transform):
    """Learns from above-average rows alone: max(A, 0), or with `binary` weight 1 where A > 0 (rejection sampling)."""

    binary: bool = False

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.advantage is not None
        advantage = batch.advantage.clamp(min=0)
        return batch.with_(advantage=(advantage > 0).to(advantage.dtype) if self.binary else advantage)

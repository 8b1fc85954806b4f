"""Keeping only groups that can teach something."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from melior.advantages.groups import group_extremes
from melior.parts import Curriculum
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class MixedGroups(Curriculum):
    """Drops groups whose outcomes are all equal and samples further prompts for them (DAPO's dynamic sampling).

    Judged on the raw outcome, before shaping.

    Attributes:
        refill: further rounds of prompts at most; the batch is then trained as it is.
    """

    refill: int = 10

    def keep(self, batch: Trajectories) -> torch.Tensor:
        assert batch.outcome is not None
        low, high = group_extremes(batch.outcome, batch.group)
        return high > low

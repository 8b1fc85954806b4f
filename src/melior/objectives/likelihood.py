"""Imitation: raising the likelihood of given actions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from melior.parts import Evaluation, Term
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class NLL(Term):
    """-log pi of the recorded actions, weighted by a [B,T] column when one is named."""

    weight: str = ""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        if not self.weight:
            return -now.logp
        weight = batch.require(self.weight)
        return -now.logp * torch.where(batch.mask, weight, torch.zeros_like(weight))

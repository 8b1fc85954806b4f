"""The reward stage: raw components become one shaped reward a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from melior.parts import Transform
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class Sum(Transform):
    """r = sum of weight * component; what does not apply (NaN) is left out, and a row with nothing has no reward."""

    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch.with_(reward=weighted_sum(batch))


def weighted_sum(batch: Trajectories) -> Float[torch.Tensor, "B"]:
    """The weighted sum of a batch's components, NaN where a row has none."""
    if not batch.components:
        raise ValueError("the batch has no reward components to sum")
    table = torch.stack([batch.components[name] for name in batch.components], 1)
    weights = table.new_tensor([batch.weights.get(name, 1.0) for name in batch.components])
    total = (table.nan_to_num(0.0) * weights).sum(1)
    return torch.where(table.isnan().all(1), torch.full_like(total, torch.nan), total)


def overlong_penalty(
    length: Int[torch.Tensor, "B"], limit: Int[torch.Tensor, "B"], buffer: Int[torch.Tensor, "B"]
) -> Float[torch.Tensor, "B"]:
    """0 up to limit - buffer tokens, then linear to -1 at the limit, and -1 beyond.

    Source: Yu et al. 2025, arXiv 2503.14476, equation 13.
    """
    over = (length - (limit - buffer)).clamp(min=0)
    return -(over / buffer.clamp(min=1)).clamp(max=1.0)


@dataclass(frozen=True)
class OverlongPenalty(Transform):
    """Adds a soft penalty for completions that come near the longest length allowed (column "limit").

    Attributes:
        buffer: tokens before the limit over which the penalty grows from 0 to -1; 0 takes a fifth of the limit.
        weight: scales the penalty.
    """

    buffer: int = 0
    weight: float = 1.0

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        limit = batch.require("limit").long()
        buffer = torch.full_like(limit, self.buffer) if self.buffer else (limit // 5).clamp(min=1)
        penalty = overlong_penalty(batch.length.long(), limit, buffer)
        return batch.with_(reward=batch.reward + self.weight * penalty.to(batch.reward.dtype))

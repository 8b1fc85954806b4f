"""Log-ratios between the current policy and the one at the start of the update, and over which unit they are formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int

from melior.parts import Evaluation, Ratio
from melior.trajectories import Trajectories


def log_ratio(now: Evaluation, batch: Trajectories) -> Float[torch.Tensor, "B T"]:
    """log pi - log pi_proximal, in float32 or better and zero where masked.

    Before any step of the update the proximal policy is the current one (`proximal_logp` None): the ratio is 1 by
    construction and its gradient that of log pi.
    """
    wide = now.logp.float() if now.logp.dtype in (torch.float16, torch.bfloat16) else now.logp
    old = wide.detach() if batch.proximal_logp is None else batch.proximal_logp.to(wide.dtype)
    return torch.where(batch.mask, wide - old, torch.zeros_like(wide))


def segment_sum(
    values: Float[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"], segment: Int[torch.Tensor, "B T"]
) -> Float[torch.Tensor, "B T"]:
    """On each masked token the sum over the masked tokens of its segment (equal ids within a row); zero elsewhere."""
    b, t = values.shape
    rows = torch.arange(b, device=values.device)[:, None]
    # Twice over single numbers: to find distinct pairs of (row, segment) directly takes twenty times as long.
    ids, inside = torch.unique(segment, return_inverse=True)
    _, index = torch.unique((rows * len(ids) + inside).reshape(-1), return_inverse=True)
    flat = torch.where(mask, values, torch.zeros_like(values)).reshape(-1)
    total = values.new_zeros(b * t).index_add(0, index, flat)
    return total[index].reshape(b, t) * mask


@dataclass(frozen=True)
class TokenRatio(Ratio):
    """Action by action."""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return log_ratio(now, batch)


@dataclass(frozen=True)
class SegmentRatio(Ratio):
    """One ratio for a whole unit, on each of its actions: the mean (length-normalized) or sum of the log-ratios.

    Attributes:
        unit: "row", or an integer column such as "turn" or "segment" whose equal values belong together.
        reduce: "mean" (GSPO, arXiv 2507.18071, equation 7) or "sum" (the true sequence ratio).
    """

    unit: str = "row"
    reduce: Literal["mean", "sum"] = "mean"

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        each = log_ratio(now, batch)
        segment = torch.zeros_like(batch.mask, dtype=torch.long) if self.unit == "row" else batch.require(self.unit)
        total = segment_sum(each, batch.mask, segment)
        if self.reduce == "sum":
            return total
        return total / segment_sum(batch.mask.to(each.dtype), batch.mask, segment).clamp(min=1)

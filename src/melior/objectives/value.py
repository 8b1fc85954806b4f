"""The critic's error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float

from melior.parts import Evaluation, Need, Term
from melior.trajectories import Trajectories


def value_error(
    value: Float[torch.Tensor, "*S"],
    target: Float[torch.Tensor, "*S"],
    old: Float[torch.Tensor, "*S"] | None = None,
    clip: float | None = None,
) -> Float[torch.Tensor, "*S"]:
    """(V - R)^2 / 2, or with `clip` the larger of it and that of V held within `clip` of the old value."""
    loss = (value - target).square()
    if clip is not None and old is not None:
        held = old + (value - old).clamp(-clip, clip)
        loss = torch.maximum(loss, (held - target).square())
    return loss / 2


@dataclass(frozen=True)
class ValueLoss(Term):
    """(V - R)^2 / 2 against the column "returns", optionally clipped around the value at sampling time."""

    clip: float | None = None
    reads = (Need("value"),)

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        value, old = now["value"], batch.columns.get("value")
        target = _inside(batch.require("returns"), value, batch.mask)
        return value_error(value, target, None if old is None else _inside(old, value, batch.mask), self.clip)

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        value, target = now["value"][batch.mask], batch.require("returns")[batch.mask]
        if target.numel() < 2 or float(target.var()) == 0:
            return {"value_loss": (value - target).square().mean() / 2}
        explained = 1 - (target - value).var() / target.var()
        return {"value_loss": (value - target).square().mean() / 2, "explained_variance": explained}


def _inside(known: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What is known where actions are trained; elsewhere it may be anything, even NaN, and must reach no gradient."""
    return torch.where(mask, known.to(value.dtype), value.detach())

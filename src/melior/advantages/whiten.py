"""Normalizers over a whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float

from melior.parts import Transform
from melior.trajectories import Trajectories


def whiten(
    values: Float[torch.Tensor, "*S"],
    mask: Bool[torch.Tensor, "*S"],
    eps: float = 1e-8,
    ddof: int = 1,
    floor: float = 0.0,
) -> Float[torch.Tensor, "*S"]:
    """(x - mean) / (std + eps) over the masked entries; zero elsewhere.

    Fewer than ddof + 1 entries, or a deviation of at most `floor`, are centered and not divided. Entries that are all
    equal have exactly that mean and deviation zero.
    """
    inside = values[mask].double()
    if inside.numel() == 0:
        return torch.zeros_like(values)
    mean = inside[0] if bool((inside == inside[0]).all()) else inside.mean()
    count = inside.numel() - ddof
    std = (inside - mean).square().sum().div(count).sqrt() if count > 0 else torch.zeros_like(mean)
    moved = values.double() - mean
    scaled = moved / (std + eps) if count > 0 and float(std) > floor else moved
    return torch.where(mask, scaled, torch.zeros_like(scaled)).to(values.dtype)


@dataclass(frozen=True)
class Whiten(Transform):
    """Advantages to mean 0 and deviation 1 over the batch.

    Attributes:
        clamp: afterwards limited to [-clamp, clamp]; None leaves them.
        over: "tokens" counts every trained token, "rows" counts each row once (its advantage must be the same on all
            its tokens).
        eps: added to the deviation.
        ddof: 1 for the sample, 0 for the population deviation.
        floor: a deviation of at most this is not divided by.
        single: what a lone entry gets: "zero", since it is its own mean, or "keep" for its value as it is (PPO).
    """

    clamp: float | None = None
    over: Literal["tokens", "rows"] = "tokens"
    eps: float = 1e-8
    ddof: int = 1
    floor: float = 0.0
    single: Literal["zero", "keep"] = "zero"

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.advantage is not None
        if self.single == "keep" and int(batch.mask.sum()) == 1:
            return batch
        if self.over == "rows":
            trained = batch.mask.any(-1)
            first = batch.mask.int().argmax(-1, keepdim=True)
            row = whiten(batch.advantage.gather(1, first).squeeze(1), trained, self.eps, self.ddof, self.floor)
            advantage = row[:, None] * batch.mask
        else:
            advantage = whiten(batch.advantage, batch.mask, self.eps, self.ddof, self.floor)
        if self.clamp is not None:
            advantage = advantage.clamp(-self.clamp, self.clamp)
        return batch.with_(advantage=advantage)

"""Surrogates of the policy gradient: unclipped, clipped, and with a detached weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float

from melior.objectives.ratios import TokenRatio, log_ratio
from melior.parts import Evaluation, Ratio, Term
from melior.trajectories import Trajectories


def clipped_surrogate(
    ratio: Float[torch.Tensor, "*S"],
    advantage: Float[torch.Tensor, "*S"],
    low: float | Float[torch.Tensor, "*S"],
    high: float | Float[torch.Tensor, "*S"],
    dual: float | None = None,
) -> Float[torch.Tensor, "*S"]:
    """-min(rho * A, clip(rho, 1 - low, 1 + high) * A), the pessimistic bound of PPO, as a loss.

    With `dual` = c > 1 the loss of a negative advantage is at most -c * A (Ye et al. 2020, arXiv 1912.09729).

    Source: Schulman et al. 2017, arXiv 1707.06347, equation 7.
    """
    floor, ceiling = (torch.as_tensor(b, dtype=ratio.dtype, device=ratio.device) for b in (1 - low, 1 + high))
    limited = ratio.clamp(floor, ceiling)
    loss = torch.maximum(-advantage * ratio, -advantage * limited)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * dual), loss)
    return loss


def capped_weight_loss(
    logp: Float[torch.Tensor, "*S"],
    log_weight: Float[torch.Tensor, "*S"],
    advantage: Float[torch.Tensor, "*S"],
    high: float,
) -> Float[torch.Tensor, "*S"]:
    """-sg(min(rho, 1 + high)) * A * log pi with rho = exp(log_weight); the gradient flows through `logp` alone.

    Source: MiniMax 2025, arXiv 2506.13585, equation 4.
    """
    return -log_weight.detach().exp().clamp(max=1 + high) * advantage * logp


@dataclass(frozen=True)
class PolicyGradient(Term):
    """-A * log pi: the score-function estimator, no ratio (REINFORCE)."""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        return -batch.advantage * now.logp


@dataclass(frozen=True)
class Surrogate(Term):
    """-rho * A: the importance-weighted surrogate without any clip."""

    ratio: Ratio = TokenRatio()

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        return -batch.advantage * self.ratio(now, batch).exp()


@dataclass(frozen=True)
class Clip(Term):
    """-min(rho * A, clip(rho, 1 - low, 1 + high) * A): PPO's clipped surrogate, the same for tokens and for control.

    Attributes:
        low, high: how far below and above 1 the ratio may move before its gradient stops.
        ratio: over which unit the ratio is formed.
        width: a [B,T] column that scales both bounds action by action; "" for none.
        dual: bound c > 1 on the loss of negative advantages; None for none.
    """

    low: float = 0.2
    high: float = 0.2
    ratio: Ratio = TokenRatio()
    width: str = ""
    dual: float | None = None

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        width = batch.require(self.width) if self.width else 1.0
        rho = self.ratio(now, batch).exp()
        return clipped_surrogate(rho, batch.advantage, self.low * width, self.high * width, self.dual)

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        assert batch.advantage is not None
        width = batch.require(self.width) if self.width else 1.0
        rho, tokens = self.ratio(now, batch).exp(), batch.mask.sum().clamp(min=1)
        low = (rho < 1 - self.low * width) & (batch.advantage < 0) & batch.mask
        high = (rho > 1 + self.high * width) & (batch.advantage > 0) & batch.mask
        return {"clip_low": low.sum() / tokens, "clip_high": high.sum() / tokens}


@dataclass(frozen=True)
class CappedWeight(Term):
    """-sg(min(rho, 1 + high)) * A * log pi: a capped, detached importance weight; every token keeps a gradient (CISPO).

    Source: MiniMax 2025, arXiv 2506.13585, equation 4.
    """

    high: float = 5.0

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        return capped_weight_loss(now.logp, log_ratio(now, batch), batch.advantage, self.high)

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        capped = (log_ratio(now, batch).exp() > 1 + self.high) & batch.mask
        return {"clip_high": capped.sum() / batch.mask.sum().clamp(min=1)}

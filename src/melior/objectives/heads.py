"""Functionals of the next-token distribution, evaluated a chunk of positions at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int


def entropy(logits: Float[torch.Tensor, "N V"]) -> Float[torch.Tensor, "N"]:
    """H = -sum_v p_v log p_v in nats; tokens of probability zero add nothing."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)


def reverse_kl(
    logits: Float[torch.Tensor, "N V"], other: Float[torch.Tensor, "N V"], k: int = 0
) -> Float[torch.Tensor, "N"]:
    """sum_v p_v (log p_v - log q_v), over all v or the k likeliest of p (not renormalized)."""
    logp, logq = logits.log_softmax(-1), other.log_softmax(-1)
    if k:
        logp, top = logp.topk(min(k, logp.shape[-1]), -1)
        logq = logq.gather(-1, top)
    lowest = torch.finfo(logp.dtype).min
    return (logp.exp() * (logp.clamp(min=lowest) - logq.clamp(min=lowest))).sum(-1)


@dataclass(frozen=True)
class Entropy:
    """Entropy of the policy, in nats."""

    scorers: tuple[str, ...] = ()

    def __call__(
        self,
        logits: Float[torch.Tensor, "N V"],
        tokens: Int[torch.Tensor, "N"],
        others: Mapping[str, torch.Tensor],
        hidden: torch.Tensor,
    ) -> Float[torch.Tensor, "N"]:
        return entropy(logits)


@dataclass(frozen=True)
class ReverseKL:
    """KL(policy || scorer), over the vocabulary or the policy's own k likeliest tokens."""

    scorer: str
    k: int = 0

    @property
    def scorers(self) -> tuple[str, ...]:
        """The policies whose logits it reads."""
        return (self.scorer,)

    def __call__(
        self,
        logits: Float[torch.Tensor, "N V"],
        tokens: Int[torch.Tensor, "N"],
        others: Mapping[str, torch.Tensor],
        hidden: torch.Tensor,
    ) -> Float[torch.Tensor, "N"]:
        return reverse_kl(logits, others[self.scorer], self.k)

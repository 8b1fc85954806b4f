"""A head that no method of the catalogue reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int


@dataclass(frozen=True)
class TemperedLogp:
    """Log-probability of the sampled token at another temperature, relative to the policy's own."""

    temperature: float
    scorers: tuple[str, ...] = ()

    def __call__(
        self,
        logits: Float[torch.Tensor, "N V"],
        tokens: Int[torch.Tensor, "N"],
        others: Mapping[str, torch.Tensor],
        hidden: torch.Tensor,
    ) -> Float[torch.Tensor, "N"]:
        return (logits / self.temperature).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)

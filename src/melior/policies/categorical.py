"""A policy over a finite set of actions, with a network for the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int

from melior.objectives.heads import entropy
from melior.parts import Need
from melior.policies.chunked import other_sources
from melior.policies.networks import NetworkPolicy
from melior.policies.policy import LogitSource
from melior.trajectories import Trajectories


class Categorical(NetworkPolicy):
    """softmax(network(observation)) over actions 0 .. A-1."""

    kind = "categorical"

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """A uniform number for each action: the place in the cumulative distribution."""
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    @torch.no_grad()
    def act(
        self, observation: Float[torch.Tensor, "N d"], noise: Float[torch.Tensor, "N"]
    ) -> tuple[Int[torch.Tensor, "N"], Float[torch.Tensor, "N"]]:
        """The first action whose cumulative probability exceeds the noise, and its log-probability."""
        logp = self._logits(self.networks["actor"](observation)).log_softmax(-1)
        upto = logp.double().exp().cumsum(-1)
        action = (upto <= noise.to(upto.device)[:, None] * upto[:, -1:]).sum(-1).clamp(max=self.outputs - 1)
        return action, logp.gather(-1, action[:, None]).squeeze(-1)

    @torch.no_grad()
    def best(self, observation: Float[torch.Tensor, "N d"]) -> Int[torch.Tensor, "N"]:
        """The likeliest action."""
        return self.networks["actor"](observation).argmax(-1)

    def _logits(self, output: torch.Tensor) -> torch.Tensor:
        return output / self.temperature if self.temperature != 1 else output

    def _logp(self, output: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self._logits(output).log_softmax(-1).gather(-1, action[..., None]).squeeze(-1)

    def _quantity(
        self, need: Need, output: torch.Tensor, batch: Trajectories, others: Mapping[str, Any]
    ) -> torch.Tensor:
        logits = self._logits(output)
        if need.quantity == "entropy":
            return entropy(logits.flatten(0, 1)).view(logits.shape[:2])
        if need.head is None:
            return super()._quantity(need, output, batch, others)
        assert batch.tokens is not None
        present = batch.present
        own, count = logits[present], int(present.sum())
        sources = other_sources(frozenset({need}), others, batch)
        theirs = {name: source(0, count) for name, source in sources.items()}
        flat = need.head(own, batch.tokens[present], theirs, batch.prompt[present])
        return torch.zeros_like(logits[..., 0]).masked_scatter(present, flat)

    @torch.no_grad()
    def logit_source(self, batch: Trajectories) -> LogitSource:
        """See `GivesLogits`."""
        logits = self._logits(self.networks["actor"](batch.prompt))[batch.present]
        return lambda first, last: logits[first:last]

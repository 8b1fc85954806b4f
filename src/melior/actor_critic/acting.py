"""How an actor-critic method explores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float

from melior.actor_critic.networks import Nets
from melior.parts import Part


@dataclass(frozen=True)
class Explore(Part):
    """Uniform random actions at first, then the actor's with normal noise. Actions lie in [-1, 1].

    Attributes:
        start: transitions collected with random actions, before any learning.
        noise: deviation of the noise, as a share of the largest action.
    """

    start: int = 25_000
    noise: float = 0.1

    def __call__(
        self, nets: Nets, observation: Float[torch.Tensor, "N d"], actions: int, seen: int, rng: torch.Generator
    ) -> Float[torch.Tensor, "N a"]:
        """Actions of `actions` numbers each, when `seen` transitions have been collected so far."""
        shape = (len(observation), actions)
        if seen < self.start:
            return torch.rand(shape, generator=rng) * 2 - 1
        mean = self.best(nets, observation)
        return (mean + self.noise * torch.randn(shape, generator=rng).to(mean.device)).clamp(-1, 1)

    def best(self, nets: Nets, observation: Float[torch.Tensor, "N d"]) -> Float[torch.Tensor, "N a"]:
        """The actor's actions, without noise."""
        with torch.no_grad():
            return nets["actor"](observation)

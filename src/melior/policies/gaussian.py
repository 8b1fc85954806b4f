"""A policy over real vectors: independent normal distributions around a network's output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float

from melior.parts import Need
from melior.policies.networks import MLP, NetworkPolicy
from melior.trajectories import Trajectories


def normal_logp(
    action: Float[torch.Tensor, "*S a"], mean: Float[torch.Tensor, "*S a"], log_std: Float[torch.Tensor, "a"]
) -> Float[torch.Tensor, "*S"]:
    """log N(action; mean, exp(log_std)), summed over the last axis."""
    z = (action - mean) * (-log_std).exp()
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class Gaussian(NetworkPolicy):
    """N(network(observation), exp(log_std)) with a deviation that no observation changes, exp(0) at the start.

    Actions are kept as they were drawn: whoever sends them to an environment with bounds clips the copy that is sent,
    so that log-probabilities stay those of the distribution sampled from. There is no temperature: it stays 1.
    """

    kind = "gaussian"

    def __init__(self, observation: int, outputs: int, body: MLP, seed: int = 0) -> None:
        super().__init__(observation, outputs, body, seed)
        self.networks.register_parameter("log_std", torch.nn.Parameter(torch.zeros(outputs)))

    @property
    def log_std(self) -> torch.Tensor:
        """[a] the logarithm of the deviations."""
        return self.networks.get_parameter("log_std")

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """A standard normal vector for each action."""
        return torch.randn((*shape, self.outputs), generator=generator)

    @torch.no_grad()
    def act(
        self, observation: Float[torch.Tensor, "N d"], noise: Float[torch.Tensor, "N a"]
    ) -> tuple[Float[torch.Tensor, "N a"], Float[torch.Tensor, "N"]]:
        """mean + deviation * noise, unclipped, and its log-probability."""
        mean = self.networks["actor"](observation)
        action = mean + self.log_std.exp() * noise.to(mean.device)
        return action, normal_logp(action, mean, self.log_std)

    @torch.no_grad()
    def best(self, observation: Float[torch.Tensor, "N d"]) -> Float[torch.Tensor, "N a"]:
        """The mean."""
        return self.networks["actor"](observation)

    def _logp(self, output: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return normal_logp(action, output, self.log_std)

    def _quantity(
        self, need: Need, output: torch.Tensor, batch: Trajectories, others: Mapping[str, Any]
    ) -> torch.Tensor:
        if need.quantity == "entropy":
            total = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
            return total.expand(output.shape[:2])
        return super()._quantity(need, output, batch, others)

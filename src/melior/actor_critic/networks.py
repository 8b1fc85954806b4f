"""Networks of an actor-critic method. Actions are scaled to [-1, 1] in every dimension; the loop sends them on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from jaxtyping import Float

from melior.parts import Part
from melior.policies.networks import MLP

Nets: TypeAlias = "Mapping[str, torch.nn.Module]"  # text, so that importing this file does not look torch up


class Network(Part):
    """(numbers in an observation, numbers in an action, generator) -> a plain torch module."""

    def __call__(self, observation: int, action: int, generator: torch.Generator) -> torch.nn.Module:
        raise NotImplementedError("a Network is a part of its own: write __call__(observation, action, generator)")


@dataclass(frozen=True)
class Actor(Network):
    """A deterministic policy: tanh(MLP(observation)), in [-1, 1]."""

    body: MLP = MLP((256, 256), "relu", "uniform")

    def __call__(self, observation: int, action: int, generator: torch.Generator) -> torch.nn.Module:
        return torch.nn.Sequential(*self.body(observation, action, generator), torch.nn.Tanh())


@dataclass(frozen=True)
class Critics(Network):
    """Independent estimates of the action value, each an MLP of observation and action; `q_values` asks them."""

    body: MLP = MLP((256, 256), "relu", "uniform")
    count: int = 2

    def __call__(self, observation: int, action: int, generator: torch.Generator) -> torch.nn.Module:
        return torch.nn.ModuleList([self.body(observation + action, 1, generator) for _ in range(self.count)])


def q_values(
    critics: torch.nn.Module, observation: Float[torch.Tensor, "B d"], action: Float[torch.Tensor, "B a"]
) -> Float[torch.Tensor, "K B"]:
    """Every critic's value of each pair."""
    both = torch.cat([observation, action], -1)
    return torch.stack([critic(both).squeeze(-1) for critic in cast(Iterable[torch.nn.Module], critics)])

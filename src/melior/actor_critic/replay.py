"""Transitions, and the buffer that remembers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float

from melior.errors import RunError
from melior.parts import Part


@dataclass(frozen=True, eq=False)
class Transitions:
    """B steps of environments.

    Attributes:
        observation: [B,d].
        action: [B,a] in [-1, 1].
        reward: [B].
        next_observation: [B,d] what truly followed, before any new episode.
        terminated: [B] bool: the episode came to its own end, so that nothing of value follows.
        truncated: [B] bool: it was cut off; what follows keeps its value.
    """

    observation: Float[torch.Tensor, "B d"]
    action: Float[torch.Tensor, "B a"]
    reward: Float[torch.Tensor, "B"]
    next_observation: Float[torch.Tensor, "B d"]
    terminated: Bool[torch.Tensor, "B"]
    truncated: Bool[torch.Tensor, "B"]

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, index: torch.Tensor) -> Transitions:
        """Some of them."""
        return Transitions(**{f.name: _on(getattr(self, f.name), index) for f in fields(self)})

    def to(self, device: torch.device) -> Transitions:
        """The same on a device."""
        return Transitions(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def _on(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return value[index.to(value.device)]


class ReplayBuffer:
    """A ring of transitions: the newest take the place of the oldest."""

    def __init__(self, capacity: int, observation: int, action: int) -> None:
        self.capacity = capacity
        self._store = {
            "observation": torch.zeros(capacity, observation),
            "action": torch.zeros(capacity, action),
            "reward": torch.zeros(capacity),
            "next_observation": torch.zeros(capacity, observation),
            "terminated": torch.zeros(capacity, dtype=torch.bool),
            "truncated": torch.zeros(capacity, dtype=torch.bool),
        }
        self._next, self._size = 0, 0

    def __len__(self) -> int:
        return self._size

    def add(self, new: Transitions) -> None:
        """Remember these."""
        where = (self._next + torch.arange(len(new))) % self.capacity
        for name, store in self._store.items():
            store[where] = getattr(new, name).cpu()
        self._next = (self._next + len(new)) % self.capacity
        self._size = min(self._size + len(new), self.capacity)

    def sample(self, count: int, rng: torch.Generator) -> Transitions:
        """`count` transitions, uniformly, with repetition."""
        index = torch.randint(self._size, (count,), generator=rng)
        return Transitions(**{name: store[index] for name, store in self._store.items()})

    def state(self) -> dict[str, Any]:
        """What has been remembered."""
        return {"next": self._next} | {name: store[: self._size] for name, store in self._store.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Remember that instead."""
        size = len(state["reward"])
        if size > self.capacity:
            raise RunError(f"the checkpoint remembers {size} transitions, and this run has room for {self.capacity}")
        for name, store in self._store.items():
            store[:size] = state[name]
        self._next, self._size = int(state["next"]), size


@dataclass(frozen=True)
class Replay(Part):
    """Remembers the last `capacity` transitions."""

    capacity: int = 1_000_000

    def __call__(self, observation: int, action: int) -> ReplayBuffer:
        """An empty buffer for observations and actions of so many numbers."""
        return ReplayBuffer(self.capacity, observation, action)

"""A key-value cache that appends in place. Needs transformers; import it inside functions."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

# Below this many columns a copy costs less than it saves.
SHORT = 128


class GrowingLayer(DynamicLayer):
    """A layer of the cache with room to grow: appending a token writes one column instead of copying all of them."""

    spare: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def of(cls, layer: DynamicLayer) -> GrowingLayer:
        """The same keys and values in a growing layer."""
        assert layer.keys is not None and layer.values is not None
        mine = cls()
        mine.lazy_initialization(layer.keys, layer.values)
        mine.keys, mine.values = layer.keys, layer.values
        return mine

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B,H,t,d] keys and values; all of them so far, as views that the next update leaves intact."""
        assert self.keys is not None and self.values is not None
        old, new = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if new < SHORT:
            return super().update(key_states, value_states, *args, **kwargs)
        if self.spare is None or new > self.spare[0].shape[-2]:
            self.spare = _roomy(self.keys, new), _roomy(self.values, new)
        for buffer, more in zip(self.spare, (key_states, value_states), strict=True):
            buffer[:, :, old:new] = more
        self.keys, self.values = (buffer[:, :, :new] for buffer in self.spare)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        super().batch_select_indices(indices)
        self.spare = None


def growing(cache: Any) -> Any:
    """The same cache; its plain attention layers append in place from now on."""
    layers = getattr(cache, "layers", None)
    if layers is not None:
        cache.layers = [GrowingLayer.of(layer) if type(layer) is DynamicLayer else layer for layer in layers]
    return cache


def _roomy(states: torch.Tensor, needed: int) -> torch.Tensor:
    """[B,H,capacity,d] beginning with `states`; half as much room again keeps the copies few."""
    b, h, t, d = states.shape
    buffer = states.new_empty(b, h, needed + max(16, needed // 2), d)
    buffer[:, :, :t] = states
    return buffer

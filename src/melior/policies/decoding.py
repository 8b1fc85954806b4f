"""Walking a transformers model through growing sequences with its cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from melior.policies.llama import LlamaSteps

if TYPE_CHECKING:
    from melior.policies.causal_lm import CausalLM


class CachedDecoder:
    """N = prompts * n rows over one cache; each prompt is encoded once, then its cache is repeated.

    A cache whose rows cannot be selected is filled for each row, and keeps rows that are no longer wanted.

    Prompts are padded on the left, so that all rows append in the same column; positions count real tokens only.
    """

    def __init__(self, policy: CausalLM, prompts: Sequence[tuple[int, ...]], n: int) -> None:
        self.policy = policy
        self.prompts = prompts
        self.n = n
        self.cache_name = _cache_name(policy.network)
        self.cache: Any = None
        # Rows of the cache that are still wanted, where the cache itself cannot drop the others.
        self.wanted: torch.Tensor | None = None
        self.mask: torch.Tensor | None = None
        self.position = torch.zeros(0)
        self.steps: LlamaSteps | None = None  # takes over after the prompts, for models that it serves

    def start(self) -> Float[torch.Tensor, "N V"]:
        """Encode the prompts; [N,V] raw logits of the first tokens."""
        from melior.policies.kv_cache import growing

        logits = self._prefill(self.prompts)
        alone = self.policy.steps_alone()
        if not alone:
            self.cache = growing(self.cache)
        index = torch.arange(len(self.prompts), device=logits.device).repeat_interleave(self.n)
        if self.n == 1 or self._select(index):
            if alone:
                self.steps = LlamaSteps(self.policy.network, self.cache, self.mask, self.position)
                self.cache = None
            return logits[index]
        return self._prefill([prompt for prompt in self.prompts for _ in range(self.n)])

    def step(self, tokens: Int[torch.Tensor, "N"]) -> Float[torch.Tensor, "N V"]:
        """Append one token to each row; [N,V] raw logits of the next."""
        tokens = tokens.to(self.position.device)
        if self.steps is not None:
            with torch.no_grad():
                return self.steps.step(tokens)
        if self.wanted is not None:
            tokens = torch.zeros_like(self.position).index_copy(0, self.wanted, tokens)
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        logits = self._forward(tokens[:, None], self.position[:, None])
        self.position = self.position + 1
        return logits if self.wanted is None else logits[self.wanted]

    def keep(self, index: Int[torch.Tensor, "K"]) -> None:
        """Go on with these rows only."""
        index = index.to(self.position.device)
        if self.steps is not None:
            self.steps.keep(index)
        elif not self._select(index):
            everything = torch.arange(len(self.position), device=index.device)
            self.wanted = (everything if self.wanted is None else self.wanted)[index]

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        lengths = np.array([len(prompt) for prompt in prompts])
        width = int(lengths.max())
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[width - len(prompt) :] = prompt
        device = self.policy.device
        place = torch.arange(width, device=device) - torch.from_numpy(width - lengths).to(device)[:, None]
        # Without padding no mask is needed, which spares the attention one.
        self.mask = None if bool((lengths == width).all()) else (place >= 0).long()
        self.cache = None
        logits = self._forward(torch.from_numpy(ids).to(device), place.clamp(min=0))
        if _recurrent(self.cache):
            self.mask = None
        self.position = torch.from_numpy(lengths).to(device)
        return logits

    def _forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        policy = self.policy
        with torch.no_grad(), policy.active(decoding=True):
            out = policy.network(
                input_ids=ids,
                attention_mask=self.mask,
                position_ids=position,
                use_cache=True,
                logits_to_keep=1,
                **{self.cache_name: self.cache},
            )
        self.cache = out[self.cache_name]
        return out.logits[:, -1]

    def _select(self, index: torch.Tensor) -> bool:
        """Make row i of the cache what row index[i] was; False when the cache has no such operation."""
        layers = getattr(self.cache, "layers", None)
        if layers is None or self.wanted is not None:
            return False
        for layer in layers:
            if hasattr(layer, "conv_states"):  # state-space layers, hybrid ones included
                layer.reorder_cache(index)
            else:
                layer.batch_select_indices(index)
        self.position = self.position[index]
        self.mask = None if self.mask is None else self.mask[index]
        return True


def _cache_name(network: Any) -> str:
    """What this version of transformers calls the cache, as an argument and in the output."""
    known = inspect.signature(network.forward).parameters
    return next(name for name in ("cache", "past_key_values", "cache_params") if name in known)


def _recurrent(cache: Any) -> bool:
    """Whether the cache has no attention layer: its state no longer knows about padding, and asks for no mask."""
    layers = getattr(cache, "layers", None) or ()
    return bool(layers) and not any(hasattr(layer, "batch_select_indices") for layer in layers)

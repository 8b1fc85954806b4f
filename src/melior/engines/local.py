"""Sampling in this process, from the policy's own tensors."""

from __future__ import annotations

import torch

from melior.engines.noise import uniforms
from melior.engines.protocol import Drawn, Order
from melior.engines.sampler import sample
from melior.policies.policy import TextPolicy


class LocalSampler:
    """The batched sampler of `melior.engines.sampler`. It reads the policy itself, so there is nothing to push."""

    name = "local"
    elsewhere = False

    def __init__(self) -> None:
        self._version = 0

    def start(self, policy: TextPolicy, probe: Order) -> tuple[str, ...]:
        """See `Sampler.start`. There is nothing to start."""
        return ()

    def sync(self, policy: TextPolicy, version: int) -> None:
        """See `Sampler.sync`."""
        self._version = version

    def sample(self, policy: TextPolicy, order: Order) -> Drawn:
        """See `Sampler.sample`. A token depends on its key and the weights alone."""
        slots = [slot for slot in order.slots for _ in range(order.n)]
        siblings = list(range(order.n)) * len(order.prompts)
        noise = uniforms(order.seed, order.stream, order.step, order.round, slots, siblings, order.max_tokens)
        sampled = sample(
            policy,
            order.prompts,
            order.n,
            torch.from_numpy(noise),
            temperature=order.temperature,
            top_p=order.top_p,
            top_k=order.top_k,
            stop_strings=order.stop,
            blend=order.blend,
            others=order.others,
            run=order.run,
            greedy=order.greedy,
        )
        return Drawn(sampled, torch.full_like(sampled.tokens, self._version))

    def close(self) -> None:
        """See `Sampler.close`. There is nothing to give back."""

"""What a run asks of whatever samples for it: in this process, in vLLM, or on a server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Int

from melior.engines.sampler import Sampled
from melior.parts import Blend
from melior.policies.policy import TextPolicy

if TYPE_CHECKING:
    from melior.run import Run


@dataclass(frozen=True, eq=False)
class Order:
    """n completions of each prompt, and the random numbers that belong to them.

    Attributes:
        prompts: token ids of each prompt.
        n: completions of each.
        slots: each prompt's place in the batch; with (seed, stream, step, round) it keys the random numbers.
        max_tokens: longest completion.
        temperature, top_p, top_k: of the distribution that is drawn from.
        stop: strings that end a completion; the tokens stay as drawn.
        greedy: take the likeliest token instead of drawing.
        blend, others, run: what else the distribution is mixed from; only who samples here can.
    """

    prompts: Sequence[tuple[int, ...]]
    n: int
    slots: Sequence[int]
    seed: int
    stream: str
    step: int
    round: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    greedy: bool = False
    blend: Blend | None = None
    others: Mapping[str, TextPolicy] = field(default_factory=dict)
    run: Run | None = None

    def seed_of(self, prompt: int) -> int:
        """A seed below 2**62 for a prompt of this order; sibling i of it draws with this plus i, as vLLM does it."""
        text = f"{self.seed}|{self.stream}|{self.step}|{self.round}|{self.slots[prompt]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was sampled, and by which weights.

    Attributes:
        sampled: the completions.
        version: [B,T] for each token the version of the weights that it was drawn with.
    """

    sampled: Sampled
    version: Int[torch.Tensor, "B T"]


@runtime_checkable
class Sampler(Protocol):
    """Whatever draws completions for a run.

    Attributes:
        name: as the settings name it.
        elsewhere: it holds a copy of the weights, computed on by other code, so that its log-probabilities can differ.
    """

    name: str
    elsewhere: bool

    def start(self, policy: TextPolicy, probe: Order) -> tuple[str, ...]:
        """Make ready, before the run: reach it, give it the weights, compare its answers on the probe with the policy.

        Returns what the user should know. Raises UserError when it cannot serve this run.
        """
        ...

    def sync(self, policy: TextPolicy, version: int) -> None:
        """Take the policy's weights as they are now, as this version, before anything further is sampled."""
        ...

    def sample(self, policy: TextPolicy, order: Order) -> Drawn:
        """The completions, by the weights of the last `sync`. Raises RunError when there are none to be had."""
        ...

    def close(self) -> None:
        """Give back what it holds. `sync` takes it up again."""
        ...

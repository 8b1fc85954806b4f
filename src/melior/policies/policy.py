"""What the learner and the sampler ask of a policy, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch

from melior.parts import Evaluation, Needs
from melior.trajectories import Trajectories

# (first, last) -> [last - first, V] logits after temperature, of the actions of a batch in row-major order, padding
# left out.
LogitSource = Callable[[int, int], torch.Tensor]


@runtime_checkable
class GivesLogits(Protocol):
    """What the heads of a policy can read besides its own logits."""

    def logit_source(self, batch: Trajectories) -> LogitSource:
        """Logits of the batch's actions by chunks, without gradient."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A distribution over actions with trainable parameters.

    Attributes:
        likelihood: "exact" when `logp` is the log-probability of the action; "surrogate" when it is another
            differentiable score (a flow's matching loss); "none" when there is neither.
        temperature: divides the logits, in the sampler and here alike.
    """

    likelihood: Literal["exact", "surrogate", "none"]
    temperature: float

    @property
    def device(self) -> torch.device:
        """Where its parameters lie."""
        ...

    def evaluate(
        self, batch: Trajectories, needs: Needs = frozenset(), others: Mapping[str, GivesLogits] | None = None
    ) -> Evaluation:
        """`logp` [B,T] of the batch's actions under `batch.prompt`, and every needed quantity, for one micro-batch.

        Gradients flow when they are enabled, except into quantities needed on="batch". Positions past a row's end
        hold arbitrary finite numbers. `others` give the further logits that heads read. Dropout is off.
        """
        ...

    def prepare(self, needs: Needs) -> None:
        """Grow what a method needs and a plain model lacks (a value head), before the optimizer is made."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trainable parameters, always in the same order."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Name -> tensor of all that training changes. The tensors are the live ones, not copies."""
        ...

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put such a state back; a missing or superfluous name is an error that names it."""
        ...

    def frozen(self) -> Policy:
        """The policy as it is at this moment, for scoring only; later training leaves it unchanged."""
        ...

    def save(self, folder: Path) -> None:
        """Write it so that other tools can load it (for a language model, a plain transformers folder)."""
        ...

    def load(self, folder: Path) -> None:
        """Take the weights that `save` wrote, bit for bit; what does not fit is an error that names it."""
        ...

    def rows_at_once(self, width: int) -> int:
        """How many rows of about `width` positions, prompts counted, fit through a forward and backward pass."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Walks one policy through N growing token sequences. Rows are those of `TextPolicy.decoder`, repeated in order."""

    def start(self) -> torch.Tensor:
        """[N,V] raw logits (before temperature) of the first token after each prompt."""
        ...

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append [N] tokens, one to each row; [N,V] raw logits of the next."""
        ...

    def keep(self, index: torch.Tensor) -> None:
        """Go on with these rows only (finished ones leave the batch)."""
        ...


@runtime_checkable
class TextPolicy(Policy, Protocol):
    """A policy over token ids after a prompt of token ids.

    Attributes:
        vocabulary: number of token ids.
        context: longest prompt plus completion, in tokens.
        stop_ids: token ids that end a completion; they are part of it.
    """

    vocabulary: int
    context: int
    stop_ids: tuple[int, ...]

    def decoder(self, prompts: Sequence[tuple[int, ...]], n: int) -> Decoder:
        """A decoder over len(prompts) * n rows, the n siblings of a prompt together; each prompt is encoded once."""
        ...

    def render(self, prompt: object) -> tuple[int, ...]:
        """Token ids of a plain text (no template); used for text that parts write themselves."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        ...

    def frozen(self) -> TextPolicy:
        """The policy as it is at this moment, for scoring and sampling only."""
        ...

"""Functionals of the next-token distribution over many positions, without ever holding all their logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch.utils.checkpoint import checkpoint

from melior.errors import UserError
from melior.objectives.heads import Entropy
from melior.parts import Head, Needs
from melior.policies.policy import GivesLogits, LogitSource
from melior.trajectories import Trajectories

# Heads that a need may ask for by their name alone.
KNOWN: Mapping[str, Head] = {"entropy": Entropy()}
# (logits [N,V], tokens [N], others, hidden [N,d]) -> [N]
Functional = Callable[[torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor]


def log_probability(
    logits: Float[torch.Tensor, "N V"],
    tokens: Int[torch.Tensor, "N"],
    others: Mapping[str, torch.Tensor],
    hidden: torch.Tensor,
) -> Float[torch.Tensor, "N"]:
    """Log-probability of the tokens."""
    return -torch.nn.functional.cross_entropy(logits, tokens, reduction="none")


def functionals(needs: Needs) -> dict[str, tuple[Functional, bool]]:
    """Name -> (functional, with gradient?) of all that is read from the logits; `logp` is always among them.

    A quantity that is wanted both with and without gradient is computed once, with it.
    """
    wanted: dict[str, tuple[Functional, bool]] = {"logp": (log_probability, True)}
    for need in sorted(needs, key=lambda need: (need.quantity, need.on)):
        head = need.head or KNOWN.get(need.quantity)
        if head is None:
            continue
        known = wanted.get(need.quantity)
        if need.quantity == "logp" or (known is not None and known[0] != head):
            raise ValueError(f"two heads are filed under the name '{need.quantity}'")
        wanted[need.quantity] = (head, need.on == "policy" or (known is not None and known[1]))
    return wanted


def other_sources(needs: Needs, others: Mapping[str, GivesLogits], batch: Trajectories) -> dict[str, LogitSource]:
    """Scorer -> its logits by chunks, for every scorer that a head reads."""
    sources = {}
    for name in sorted({name for need in needs if need.head is not None for name in need.head.scorers}):
        other = others.get(name)
        if other is None:
            raise UserError(f"a head reads the logits of the scorer '{name}', which was not given")
        sources[name] = other.logit_source(batch)
    return sources


def evaluate_chunks(
    hidden: Float[torch.Tensor, "M d"],
    tokens: Int[torch.Tensor, "M"],
    logits: Callable[[torch.Tensor, int, int], torch.Tensor],
    wanted: Mapping[str, tuple[Functional, bool]],
    others: Mapping[str, LogitSource],
    rows: int,
) -> dict[str, Float[torch.Tensor, "M"]]:
    """Every functional at every position, `rows` positions at a time; name -> [M].

    `logits(hidden[first:last], first, last)` are the logits after temperature of those positions.

    With gradient, a chunk's logits are computed once more in the backward pass instead of being kept, unless one chunk
    holds everything.
    """

    def one(part: torch.Tensor, first: int, last: int) -> tuple[torch.Tensor, ...]:
        z, chosen = logits(part, first, last), tokens[first:last]
        with torch.no_grad():
            theirs = {name: source(first, last) for name, source in others.items()}
        values = []
        for functional, with_gradient in wanted.values():
            with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
                values.append(functional(z, chosen, theirs, part))
        return tuple(values)

    total, results = len(hidden), []
    for first in range(0, max(total, 1), rows):
        last = min(first + rows, total)
        part = hidden[first:last]
        if total <= rows or not torch.is_grad_enabled():
            results.append(one(part, first, last))
        else:
            results.append(
                checkpoint(one, part, first, last, use_reentrant=False, preserve_rng_state=False)  # nothing is drawn
            )
    return {name: torch.cat([values[i] for values in results]) for i, name in enumerate(wanted)}

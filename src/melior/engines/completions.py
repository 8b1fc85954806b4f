"""From what an engine elsewhere answers to `Drawn`: checked, cut where the policy ends, and stamped."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from melior.engines.protocol import Drawn, Order
from melior.engines.sampler import END, ENDINGS, LIMIT, STRING, Sampled, stop_conditions, token_limits
from melior.errors import RunError
from melior.policies.policy import TextPolicy

# A log-probability may come out a rounding above 0.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Completion:
    """One completion as an engine returned it.

    Attributes:
        tokens: its token ids.
        logp: the log-probability of each.
        spans: (label, first, last + 1) of the weights that drew them, where the engine says so.
    """

    tokens: Sequence[int]
    logp: Sequence[float]
    spans: Sequence[tuple[str, int, int]] | None = None


def drawn(
    policy: TextPolicy,
    order: Order,
    completions: Sequence[Sequence[Completion]],
    version: Callable[[str | None], int],
    who: str,
    context: int | None = None,
) -> Drawn:
    """The completions of each prompt as a batch.

    A completion ends where the policy's own rules end it: after an end token, after the token that completes a stop
    string, or at the limit. What an engine drew beyond is dropped: the beginning of a sample is a sample.

    Args:
        version: the version of the weights with a label; None is asked for where the engine does not say.
        who: the engine, for errors.
        context: its longest prompt plus completion, where that may be shorter than the policy's.

    Raises:
        RunError: answers that do not fit the order, or that end without a reason.
    """
    limits = limits_of(policy, order, context)
    endings = _Endings(policy, order.stop)
    rows: list[tuple[Completion, int, int]] = []
    for prompt, (several, limit) in enumerate(zip(completions, limits, strict=True)):
        if len(several) != order.n:
            raise RunError(f"{who} returned {len(several)} completions of prompt {prompt} instead of {order.n}")
        for completion in several:
            _check(completion, policy.vocabulary, f"{who} returned a completion of prompt {prompt}")
            length, reason = endings.of(completion.tokens, limit)
            if not length:
                raise RunError(
                    f"{who} ended a completion of prompt {prompt} after {len(completion.tokens)} tokens without an end "
                    f"token of the policy, a stop string or the limit of {limit}: it must keep to the stop tokens and "
                    "max_tokens of the request, and its context must be long enough"
                )
            rows.append((completion, length, reason))
    return _stack(rows, version)


def limits_of(policy: TextPolicy, order: Order, context: int | None = None) -> list[int]:
    """For each prompt, how many tokens its completions may have, within the shorter of the two contexts."""
    most = token_limits(policy, order.prompts, order.max_tokens, None)
    if context is None:
        return most
    for i, prompt in enumerate(order.prompts):
        if len(prompt) >= context:
            raise RunError(f"prompt {i} has {len(prompt)} tokens, but the sampler's context is {context}")
    return [min(limit, context - len(prompt)) for limit, prompt in zip(most, order.prompts, strict=True)]


class _Endings:
    """Where a completion ends, and why."""

    def __init__(self, policy: TextPolicy, stop: Sequence[str]) -> None:
        ids, self.strings = stop_conditions(policy, stop)
        self.ids, self.policy = set(ids.tolist()), policy

    def of(self, tokens: Sequence[int], limit: int) -> tuple[int, int]:
        """(tokens up to the end, its code in `ENDINGS`); no tokens where nothing ends it."""
        ended = next((t + 1 for t, token in enumerate(tokens) if token in self.ids), None)
        within = tokens[: min(limit, len(tokens) if ended is None else ended - 1)]
        if self.strings and self._holds(within):
            return bisect_left(range(len(within)), True, key=lambda t: self._holds(within[: t + 1])) + 1, STRING
        if ended is not None and ended <= limit:
            return ended, END
        return (limit, LIMIT) if len(tokens) >= limit else (0, LIMIT)

    def _holds(self, tokens: Sequence[int]) -> bool:
        text = self.policy.decode(tokens)
        return any(string in text for string in self.strings)


def _check(completion: Completion, vocabulary: int, what: str) -> None:
    tokens, logp = completion.tokens, completion.logp
    if len(tokens) != len(logp):
        raise RunError(f"{what} with {len(tokens)} tokens and {len(logp)} log-probabilities")
    strange = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if strange is not None:
        raise RunError(f"{what} with token {strange}, but the policy has {vocabulary}: it serves another model")
    if not all(math.isfinite(value) and value <= ROUNDING for value in logp):
        raise RunError(f"{what} with numbers that are no log-probabilities (not finite, or above 0)")


def _stack(rows: Sequence[tuple[Completion, int, int]], version: Callable[[str | None], int]) -> Drawn:
    length = torch.tensor([used for _, used, _ in rows], dtype=torch.long)
    width = max(1, int(length.max())) if len(rows) else 1
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    logp, stamps = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.long)
    for row, (completion, used, _) in enumerate(rows):
        tokens[row, :used] = torch.tensor(completion.tokens[:used])
        logp[row, :used] = torch.tensor(completion.logp[:used]).clamp(max=0)
        for label, first, last in [(None, 0, used)] if completion.spans is None else completion.spans:
            stamps[row, first : min(last, used)] = version(label)
    endings = tuple(ENDINGS[reason] for _, _, reason in rows)
    sampled = Sampled(tokens, logp, length, torch.tensor([ending == "limit" for ending in endings]), endings)
    return Drawn(sampled, stamps)

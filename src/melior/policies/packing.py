"""The shared-prompt layout: a group's prompt is encoded once, with the outputs and gradients of rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from melior.frames import Layout

# Rows of a batch that share one packed row.
Plan = list[list[int]]


def cost_ratios(prompt: int, completion: int, group: int) -> tuple[float, float]:
    """What the packed layout costs of the plain one: (attention, everything that acts token by token).

    Counts causal query-key pairs and tokens, for `group` completions of `completion` tokens after a prompt of `prompt`
    tokens. Both tend to 1 / group as the prompt grows.

    Source: Liu et al. 2025, "Prefix Grouper: Efficient GRPO Training through Shared-Prefix Forward", arXiv 2506.05433.
    """
    pairs = prompt**2 + group * completion * (2 * prompt + completion)
    tokens = prompt + group * completion
    whole = prompt + completion
    return pairs / (group * whole**2), tokens / (group * whole)


def siblings(prompts: Sequence[tuple[int, ...]]) -> Plan:
    """The rows of each prompt, prompts in the order in which they first appear."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        found.setdefault(tuple(prompt), []).append(row)
    return list(found.values())


@dataclass(frozen=True)
class PrefixGrouper(Layout):
    """Rows of one prompt become one row [prompt; completion; completion; ...] of the forward pass.

    Each completion attends to the prompt and to itself, and its positions restart at the prompt's length. Outputs and
    gradients are those of separate rows; the objective sees no difference. Siblings are rows whose prompts have equal
    token ids, wherever they stand. With many or long completions a group is spread over several rows, since the masked
    attention grows with the square of a row's width.

    Source: Liu et al. 2025, arXiv 2506.05433, in the form of a single call with a block mask.

    Attributes:
        name: what it is called.
        saving: the least share of the plain layout's expected cost that must be saved; otherwise rows stay apart.
        pair: time of a masked query-key pair beside that of as many operations in a matrix product (measured on CPUs).
    """

    name: str = "prefix-grouper"
    saving: float = 0.1
    pair: float = 1.0

    def __call__(self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], attention: float) -> Plan | None:
        """Which rows share a packed row, or None where the plain layout is expected to be as fast.

        Args:
            prompts: token ids of each row's prompt.
            lengths: how many tokens of each row's completion pass through the network.
            attention: operations of one query-key pair in units of those that a token costs outside attention.
        """
        groups = [sorted(rows, key=lambda row: lengths[row]) for rows in siblings(prompts)]
        most = max(map(len, groups), default=1)
        if most < 2:
            return None
        apart = [[row] for row in range(len(prompts))]
        # Without a mask the kernel skips what lies right of the diagonal.
        plain = self._cost(apart, prompts, lengths, attention / 2)
        best, cost = apart, (1 - self.saving) * plain
        for size in sorted({most, *(2**i for i in range(1, most.bit_length()))}, reverse=True):
            plan = [rows for group in groups for rows in _shares(group, size)]
            if (found := self._cost(plan, prompts, lengths, attention)) < cost:
                best, cost = plan, found
        return None if best is apart else best

    def _cost(self, plan: Plan, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], attention: float) -> float:
        """Expected cost of a rectangle of such rows, in tokens."""
        width = max(len(prompts[rows[0]]) + sum(lengths[row] for row in rows) for rows in plan)
        return len(plan) * width * (1 + self.pair * attention * width)


def _shares(rows: list[int], most: int) -> Plan:
    """The rows in equal shares of at most `most`; those of sorted rows have similar sums."""
    count = -(-len(rows) // most)
    return [rows[first::count] for first in range(count)]

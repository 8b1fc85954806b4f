"""Splitting a batch for the network, and putting what comes back in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from melior.parts import POOLED, Evaluation, Needs
from melior.policies.packing import PrefixGrouper, siblings
from melior.policies.policy import GivesLogits, Policy
from melior.trajectories import Trajectories


def slices(batch: Trajectories, rows: int) -> Iterator[torch.Tensor]:
    """Indices of micro-batches of at most `rows` rows: those of similar length together, or siblings where it pays.

    A policy may encode a prompt once for all its rows in a micro-batch; rows of similar length need less padding.
    What decides is the number of tokens.
    """
    if len(batch) <= rows:
        yield torch.arange(len(batch), device=batch.group.device)
        return
    similar = list(batch.length.argsort(stable=True).split(max(rows, 1)))
    together = _siblings_together(batch, max(rows, 1))
    if together is not None and _tokens(batch, together) <= (1 - PrefixGrouper().saving) * _tokens(batch, similar):
        yield from together
    else:
        yield from similar


def _siblings_together(batch: Trajectories, rows: int) -> list[torch.Tensor] | None:
    """Micro-batches that split no group which fits into one; None where no two rows share a prompt of tokens."""
    if not isinstance(batch.prompt, tuple) or not batch.prompt or not isinstance(batch.prompt[0], tuple):
        return None
    lengths, groups = batch.length.tolist(), siblings(batch.prompt)
    if len(groups) == len(batch):
        return None
    found: list[list[int]] = []
    for group in sorted(groups, key=lambda group: max(lengths[row] for row in group)):
        ordered = sorted(group, key=lambda row: lengths[row])
        for part in (ordered[first : first + rows] for first in range(0, len(ordered), rows)):
            if found and len(found[-1]) + len(part) <= rows:
                found[-1].extend(part)
            else:
                found.append(part)
    return [torch.tensor(part, device=batch.group.device) for part in found]


def _tokens(batch: Trajectories, parts: Sequence[torch.Tensor]) -> int:
    """Tokens, padding included, that pass through a policy which packs siblings where that makes them fewer."""
    lengths, total = batch.length.tolist(), 0
    for part in parts:
        rows = part.tolist()
        packed: dict[tuple[int, ...], int] = {}
        for row in rows:
            packed[batch.prompt[row]] = packed.get(batch.prompt[row], len(batch.prompt[row])) + lengths[row]
        apart = max(len(batch.prompt[row]) + lengths[row] for row in rows)
        total += min(len(packed) * max(packed.values()), len(rows) * apart)
    return total


def rows_that_fit(policy: Policy, batch: Trajectories) -> int:
    """How many rows of this batch go through the policy at once in moderate memory, their prompts counted."""
    before = max(map(len, batch.prompt), default=0) if isinstance(batch.prompt, tuple) else 0
    return policy.rows_at_once(before + batch.mask.shape[1])


def place(whole: torch.Tensor, part: torch.Tensor, index: torch.Tensor) -> None:
    """Writes the rows of a micro-batch, trimmed or not, into a whole-batch tensor."""
    if part.dim() == 1:
        whole[index] = part.detach()
    else:
        whole[index, : part.shape[1]] = part.detach()


def accumulate(now: Evaluation, coefficients: Mapping[str, torch.Tensor | None], index: torch.Tensor) -> None:
    """Carries the objective's derivatives through the network: adds sum of coefficient * leaf to `.grad`."""
    values, weights = [], []
    for name, c in coefficients.items():
        if c is not None and now[name].requires_grad:
            values.append(now[name])
            weights.append(c[index][:, : now[name].shape[1]].to(now[name].dtype))
    if values:
        torch.autograd.backward(values, weights)


def evaluate(
    policy: Policy, batch: Trajectories, needs: Needs, others: Mapping[str, GivesLogits], rows: int
) -> Evaluation:
    """A policy's evaluation of the whole batch, without gradient, `rows` rows at a time."""
    gathered = Gathered(batch)
    with torch.no_grad():
        for index in slices(batch, rows):
            gathered.add(policy.evaluate(batch.rows(index).trimmed(), needs, others), index)
    return gathered.whole()


class Gathered:
    """The evaluation of a batch, put together from those of its micro-batches, without gradient."""

    def __init__(self, batch: Trajectories) -> None:
        self._batch = batch
        self._logp: torch.Tensor | None = None
        self._extra: dict[str, torch.Tensor] = {}

    def add(self, now: Evaluation, index: torch.Tensor) -> None:
        """The evaluation of these rows of the batch, trimmed of padding or not."""
        if self._logp is None:
            self._logp = now.logp.new_zeros(self._batch.mask.shape)
            self._extra = {name: v.new_zeros(_whole(name, v, self._batch)) for name, v in now.extra.items()}
        place(self._logp, now.logp, index)
        for name, value in now.extra.items():
            place(self._extra[name], value, index)

    def whole(self) -> Evaluation:
        """All of it."""
        assert self._logp is not None, "an empty batch cannot be evaluated"
        return Evaluation(self._logp, self._extra)


def _whole(name: str, value: torch.Tensor, batch: Trajectories) -> tuple[int, ...]:
    """The shape of a quantity for the whole batch: pooled ones keep their width, the others take the batch's."""
    if name in POOLED or value.dim() == 1:
        return (len(batch), *value.shape[1:])
    return (len(batch), batch.mask.shape[1], *value.shape[2:])

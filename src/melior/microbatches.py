"""Splitting a batch for the network, and putting what comes back in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from melior.parts import POOLED, Evaluation, Needs
from melior.policies.policy import GivesLogits, Policy
from melior.trajectories import Trajectories


def slices(batch: Trajectories, rows: int) -> Iterator[torch.Tensor]:
    """Indices of micro-batches of at most `rows` rows, those of similar length together."""
    if len(batch) <= rows:
        yield torch.arange(len(batch), device=batch.group.device)
        return
    yield from batch.length.argsort(stable=True).split(max(rows, 1))


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
    logp: torch.Tensor | None = None
    extra: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for index in slices(batch, rows):
            micro = batch.rows(index).trimmed()
            now = policy.evaluate(micro, needs, others)
            if logp is None:
                logp = now.logp.new_zeros(batch.mask.shape)
                extra = {name: value.new_zeros(_whole(name, value, batch)) for name, value in now.extra.items()}
            place(logp, now.logp, index)
            for name, value in now.extra.items():
                place(extra[name], value, index)
    assert logp is not None, "an empty batch cannot be evaluated"
    return Evaluation(logp, extra)


def _whole(name: str, value: torch.Tensor, batch: Trajectories) -> tuple[int, ...]:
    """The shape of a quantity for the whole batch: pooled ones keep their width, the others take the batch's."""
    if name in POOLED or value.dim() == 1:
        return (len(batch), *value.shape[1:])
    return (len(batch), batch.mask.shape[1], *value.shape[2:])

"""From unreduced losses to one number. Every one is independent of padding and of how the batch is split.

A row whose mask is empty counts in none of them; a batch without any trained action gives 0. `where` restricts
numerator and denominator to a boolean column, for a term with a mask of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int

from melior.advantages.groups import group_index, group_size
from melior.parts import Aggregate
from melior.trajectories import Trajectories


def trained(batch: Trajectories, where: str) -> torch.Tensor:
    """[B,T] bool: the mask, restricted to the boolean column `where` when it is named."""
    return batch.mask & batch.require(where).bool() if where else batch.mask


def row_sums(loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"]) -> Float[torch.Tensor, "B"]:
    """[B]: the sum over each row's trained actions; a [B] loss counts once where anything is trained."""
    if loss.dim() == 1:
        return torch.where(mask.any(-1), loss, torch.zeros_like(loss))
    return torch.where(mask, loss, torch.zeros_like(loss)).sum(-1)


def count(mask: torch.Tensor) -> torch.Tensor:
    """The number of True entries, at least 1."""
    return mask.sum().clamp(min=1)


# ---- plain functions of an unreduced loss and the mask of trained actions


def token_mean(loss: Float[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"]) -> Float[torch.Tensor, ""]:
    """Sum over all trained tokens / their number."""
    return row_sums(loss, mask).sum() / count(mask)


def sequence_mean(loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"]) -> Float[torch.Tensor, ""]:
    """Mean over rows of each row's mean over its tokens; a [B] loss is a row's own."""
    rows = row_sums(loss, mask)
    if loss.dim() > 1:
        rows = rows / mask.sum(-1).clamp(min=1)
    return rows.sum() / count(mask.any(-1))


def sequence_sum(loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"]) -> Float[torch.Tensor, ""]:
    """Mean over rows of each row's sum over its tokens."""
    return row_sums(loss, mask).sum() / count(mask.any(-1))


def constant_length(
    loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"], length: float, rows: int = 0
) -> Float[torch.Tensor, ""]:
    """Sum over tokens / (rows * length); `rows` 0 counts the rows that have trained tokens."""
    return row_sums(loss, mask).sum() / ((rows or count(mask.any(-1))) * length)


def prompt_mean(
    loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"], group: Int[torch.Tensor, "B"]
) -> Float[torch.Tensor, ""]:
    """Sum over everything / number of groups that have trained tokens."""
    _, prompts = group_index(group[mask.any(-1)])
    return row_sums(loss, mask).sum() / max(prompts, 1)


def probe(
    loss: Float[torch.Tensor, "B *T"], mask: Bool[torch.Tensor, "B _"], group: Int[torch.Tensor, "B"]
) -> Float[torch.Tensor, ""]:
    """Sum over tokens, mean over the rows of a group that have trained tokens, sum over groups."""
    rows = row_sums(loss, mask)
    used = torch.where(mask.any(-1), torch.ones_like(rows), torch.full_like(rows, torch.nan)).detach()
    return (rows / group_size(used, group).clamp(min=1)).sum()


# ---- the parts


@dataclass(frozen=True)
class TokenMean(Aggregate):
    """Sum over all trained tokens of the batch / their number (DAPO)."""

    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        if loss.dim() == 1:
            raise ValueError("TokenMean cannot reduce a loss of whole rows; use SequenceMean or PromptMean")
        return token_mean(loss, trained(batch, self.where))


@dataclass(frozen=True)
class SequenceMean(Aggregate):
    """Mean over rows of each row's mean over its tokens (GRPO)."""

    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        return sequence_mean(loss, trained(batch, self.where))


@dataclass(frozen=True)
class SequenceSum(Aggregate):
    """Mean over rows of each row's sum over its tokens (REINFORCE, RLOO)."""

    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        return sequence_sum(loss, trained(batch, self.where))


@dataclass(frozen=True)
class ConstantLength(Aggregate):
    """Sum over tokens / (rows * length): no bias toward short or long answers (Dr. GRPO).

    Attributes:
        length: the constant; 0 takes the longest completion allowed (column "limit"), never the padded width.
        rows: rows to divide by; 0 counts those of the batch. A constant makes dropped groups shorten the step.
        where: a boolean column that restricts the sum and the rows.
    """

    length: int = 0
    rows: int = 0
    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        length = self.length or float(batch.require("limit").max())
        return constant_length(loss, trained(batch, self.where), length, self.rows)


@dataclass(frozen=True)
class PromptMean(Aggregate):
    """Sum over everything / number of prompts: for losses of whole groups, such as a cross-entropy over siblings."""

    whole_groups = True

    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        return prompt_mean(loss, trained(batch, self.where), batch.group)


@dataclass(frozen=True)
class Probe(Aggregate):
    """Sum over tokens, mean over the group, sum over prompts: the scale of the tabular probes' learning rates."""

    whole_groups = True

    where: str = ""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        return probe(loss, trained(batch, self.where), batch.group)

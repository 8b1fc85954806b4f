"""Fitting the policy to a target distribution over the sampled siblings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from melior.advantages.groups import group_extremes, group_index
from melior.parts import Evaluation, Term
from melior.trajectories import Trajectories


def group_log_softmax(values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"]) -> Float[torch.Tensor, "B"]:
    """log softmax over the rows of each group; differentiable, and safe for sums of many log-probabilities."""
    index, count = group_index(group)
    _, high = group_extremes(values.detach(), group)
    shifted = values - high
    total = shifted.new_zeros(count).index_add(0, index, shifted.exp())
    return shifted - total.log()[index]


def target_cross_entropy(
    logp: Float[torch.Tensor, "B"],
    old_logp: Float[torch.Tensor, "B"],
    score: Float[torch.Tensor, "B"],
    group: Int[torch.Tensor, "B"],
    eta: float = 1.0,
) -> Float[torch.Tensor, "B"]:
    """-q_i log p_i for each row: q = softmax over siblings of (log p_old + score / eta), p that of `logp`.

    `logp` and `old_logp` are whole rows' log-probabilities, summed and not averaged. The gradient with respect to
    `logp` of a group's sum is p - q; none flows through the target.

    Source: Kaddour 2026, arXiv 2604.06159, equations 2 to 4.
    """
    anchor = group_log_softmax(old_logp.detach(), group)
    target = group_log_softmax(anchor + score.detach() / eta, group).exp()
    return -target * group_log_softmax(logp, group)


@dataclass(frozen=True)
class TargetMatching(Term):
    """Cross-entropy to q = softmax over siblings of (log p_old + A / eta): tilt once, then fit (TPO).

    -q_i * log p_i for each row, where p is the policy's softmax over the siblings' whole log-probabilities; its
    gradient with respect to row i's log-probability is p_i - q_i, and vanishes once the target is met. A row's score
    is its advantage, the same on all its tokens. Whole-row loss: reduce it with `PromptMean`.

    Source: Kaddour 2026, arXiv 2604.06159, equations 2 to 4.
    """

    whole_groups = True

    eta: float = 1.0

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        trained = batch.mask.any(-1)
        logp = torch.where(batch.mask, now.logp, torch.zeros_like(now.logp)).sum(-1)[trained]
        old = logp.detach()
        if batch.proximal_logp is not None:
            old = torch.where(batch.mask, batch.proximal_logp, torch.zeros_like(now.logp)).sum(-1)[trained]
        first = batch.mask.int().argmax(-1, keepdim=True)
        score = batch.advantage.gather(1, first).squeeze(1)[trained]
        loss = target_cross_entropy(logp, old.to(logp.dtype), score.to(logp.dtype), batch.group[trained], self.eta)
        return logp.new_zeros(len(batch)).index_put((trained.nonzero().squeeze(-1),), loss)

"""One step a turn, each turn's advantage corrected by how far the turns before it in the order have already moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float, Int

from melior.parts import Objective, Stats, Update
from melior.trajectories import Trajectories
from melior.updates.gradient import mean_stats

if TYPE_CHECKING:
    from melior.learner import Learner
    from melior.run import Run

# exp(10) is far outside every clip; the bound only keeps the exponential finite.
LARGEST_LOG_RATIO = 10.0


def turn_ratio(
    new: Float[torch.Tensor, "B T"], old: Float[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"], clip: float
) -> tuple[Float[torch.Tensor, "B"], Bool[torch.Tensor, "B"]]:
    """How much likelier one turn has become: u = clip(exp(mean over its tokens of (new - old)), 1 - clip, 1 + clip).

    `mask` marks the turn's tokens. A row without any has u = 1; so has one whose mean log-ratio is not finite, and the
    second result is False for it.
    """
    difference = torch.where(mask, new - old, torch.zeros_like(new)).sum(-1) / mask.sum(-1).clamp(min=1)
    sound = difference.isfinite()
    ratio = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp().clamp(1 - clip, 1 + clip)
    return torch.where(sound & mask.any(-1), ratio, torch.ones_like(ratio)), sound


def accumulate(
    product: Float[torch.Tensor, "B"], ratio: Float[torch.Tensor, "B"], clip: float
) -> Float[torch.Tensor, "B"]:
    """M <- clip(M * u, 1 - clip, 1 + clip)."""
    return (product * ratio).clamp(1 - clip, 1 + clip)


def turn_order(turn: Int[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"], order: str, run: Run) -> list[int]:
    """The turns that any row has trained tokens of, in the order in which they are updated."""
    present = turn[mask].unique().tolist()
    if order == "random":
        shuffle = torch.randperm(len(present), generator=run.rng("turns")).tolist()
        return [present[i] for i in shuffle]
    return present[::-1] if order == "reverse" else present


@dataclass(frozen=True)
class TurnByTurn(Update):
    """One optimizer step for each turn index, the last turn first; earlier turns weigh their advantage by the product
    M of the ratios of the turns updated so far.

    For turn t the objective sees turn-t tokens alone, `proximal_logp` of the policy as it is by then, and the advantage
    A * M. After the step the turn is scored again: u is its clipped sequence ratio and M <- clip(M * u). Turns are
    told apart by the integer column "turn" [B,T]; without it everything is one turn and this is a single step.

    A turn's loss is weighted by the share of rows that have the turn, so that with a mean over rows (`SequenceMean`)
    a missing turn counts as zero. A row whose log-ratio is not finite is left out of the remaining turns.

    Attributes:
        clip: u and M stay within 1 - clip and 1 + clip; inf leaves them alone.
        order: of the turns: "reverse" (backward induction), "sequential" or "random".

    Source: Hu, Fu et al. 2026, arXiv 2602.06554, which follows HAPPO's sequential scheme with turns as agents.
    """

    clip: float = 0.2
    order: Literal["reverse", "sequential", "random"] = "reverse"

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> Stats:
        if "turn" not in batch.columns:
            batch = batch.column(turn=torch.zeros_like(batch.mask, dtype=torch.long))
        turn, rows = batch.columns["turn"], batch.mask.any(-1).sum()
        turns = turn_order(turn, batch.mask, self.order, run)
        if len(turns) > 1:
            batch = learner.record(batch)
        advantage = batch.advantage
        assert advantage is not None
        product = torch.ones_like(advantage[:, 0])
        figures: list[Stats] = []
        for number, index in enumerate(turns):
            here = batch.only(turn == index)
            here = here.with_(advantage=advantage * product[:, None] * here.mask)
            share = float(here.mask.any(-1).sum() / rows)
            loss = learner.gradient(share * objective, here)
            metrics = {name: float(value) for name, value in loss.metrics.items()}
            correction = float((product - 1).abs().mean())
            figures.append({**metrics, "loss": float(loss.value), "turn_correction": correction, **learner.step()})
            if number + 1 < len(turns):
                batch, product = self._rescored(learner, batch, here, product)
        return mean_stats(figures) | {"updates": float(len(figures))}

    def _rescored(
        self, learner: Learner, batch: Trajectories, here: Trajectories, product: torch.Tensor
    ) -> tuple[Trajectories, torch.Tensor]:
        """The batch with log-probabilities of the policy as it is now, and M times the ratio of the last turn."""
        assert batch.proximal_logp is not None
        now = learner.evaluate(batch).logp
        ratio, sound = turn_ratio(now, batch.proximal_logp, here.mask, self.clip)
        return batch.with_(proximal_logp=now).only(sound[:, None]), accumulate(product, ratio, self.clip)

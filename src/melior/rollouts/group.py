"""Rollouts that sample siblings for each prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from melior.parts import Blend, Rollout
from melior.prompts import Prompts
from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.run import Run


@dataclass(frozen=True)
class Group(Rollout):
    """n independent completions of each prompt.

    Attributes:
        n: completions a prompt; 0 takes `settings.n`.
        policy: the learner that acts and is trained.
        blend: mixes other policies into the sampling distribution; None samples the policy itself.
    """

    n: int = 0
    policy: str = "policy"
    blend: Blend | None = None

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        return {self.policy: run.sample(prompts, self.n or run.settings.n, self.policy, blend=self.blend)}


@dataclass(frozen=True)
class GroupWithGreedy(Rollout):
    """n completions of each prompt, and the reward of its greedy completion as the column "greedy" (ReMax).

    The greedy completion is a baseline only; it is not trained on.

    Source: Li et al. 2023, arXiv 2310.10505.
    """

    n: int = 0

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        batch = run.sample(prompts, self.n or run.settings.n)
        greedy = run.score(run.sample(prompts, 1, greedy=True))
        assert greedy.reward is not None
        same = batch.group[:, None] == greedy.group[None, :]
        return {"policy": batch.column(greedy=greedy.reward[same.int().argmax(1)])}

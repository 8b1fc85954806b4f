"""Rollouts in environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from melior.parts import Rollout
from melior.prompts import Prompts
from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.run import Run


@dataclass(frozen=True)
class VectorEnvs(Rollout):
    """The next steps of every environment; episodes go on from batch to batch.

    Attributes:
        policy: the learner that acts and is trained.
    """

    policy: str = "policy"
    world: ClassVar[str] = "environments"

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        return {self.policy: run.sample(prompts, 1, self.policy)}

"""A baseline that a memory predicts, exchanged between siblings so that it stays unbiased."""

from __future__ import annotations

from dataclasses import dataclass

from melior.advantages.group import spread
from melior.advantages.groups import leave_one_out_mean
from melior.parts import Transform
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class SiblingBaseline(Transform):
    """A_i = r_i - mean over siblings j != i of the prediction g(z_j); no division.

    The prediction for a row may depend on the row's own text, so it must not serve as that row's baseline; a sibling's
    is independent of it given the prompt. A row without siblings keeps its reward.

    Source: Choi, Lim et al. 2026, arXiv 2605.07579.
    """

    column: str = "prediction"

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        baseline = leave_one_out_mean(batch.require(self.column), batch.group)
        return batch.with_(advantage=spread(batch.reward - baseline, batch.mask))

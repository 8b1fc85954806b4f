"""An update whose steps are as long as somebody else's."""

from __future__ import annotations

from dataclasses import dataclass

from melior.errors import RunError
from melior.learner import Learner
from melior.parts import Aggregate, Objective, Part, Stats, Update
from melior.run import Run
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class StepNorm(Update):
    """Another update, whose whole change of the weights in a step is scaled to a given length.

    With a method's own series of lengths another method can be run at equal step norm: only directions differ then.
    The optimizer's moments see the gradients as they are, and a step that changes nothing stays one. Averages of the
    weights follow the change before it is scaled.

    It reports `step_norm`, the length of the change after scaling, and `step_norm_own`, before.

    Attributes:
        update: what makes the change.
        norms: the length of each step's change, the first step first; () leaves it alone and only measures.
    """

    update: Update
    norms: tuple[float, ...] = ()

    def check(self, objective: Part, aggregate: Aggregate) -> None:
        """See `Update.check`; it is the inner update's."""
        self.update.check(objective, aggregate)

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> Stats:
        if self.norms and run.step >= len(self.norms):
            raise RunError(f"the lengths of {len(self.norms)} steps are given, and this is step {run.step + 1}")
        before = learner.vector()
        stats = self.update(learner, batch, objective, run)
        change = learner.vector() - before
        own = float(change.norm())
        norm = own
        if self.norms and own > 0:
            norm = self.norms[run.step]
            learner.assign(before + change * (norm / own))
        return {**stats, "step_norm": norm, "step_norm_own": own}

"""Stochastic gradient steps on the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from melior.errors import UserError
from melior.parts import Aggregate, AsIs, Objective, Part, Stats, Transform, Update
from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.learner import Learner
    from melior.run import Run


@dataclass(frozen=True)
class Gradient(Update):
    """Epochs of shuffled minibatches, one optimizer step each; by default a single step on the whole batch.

    The proximal log-probabilities are those of the policy before the first step. When that step sees the whole batch
    they are its own, and its ratio is 1 by construction; otherwise they are evaluated beforehand.

    Attributes:
        epochs: passes over the batch.
        minibatches: steps a pass.
        unit: what is shuffled: "row", "group" (siblings stay together, as objectives over a group need it), or "step"
            for memoryless policies (every action its own row).
        each: a transform of every minibatch, such as `Whiten()`.
        kl_stop: ends the update before a step at which the estimated KL to the proximal policy exceeds it; 0 is off.
    """

    epochs: int = 1
    minibatches: int = 1
    unit: Literal["row", "group", "step"] = "row"
    each: Transform = AsIs()
    kl_stop: float = 0.0

    def check(self, objective: Part, aggregate: Aggregate) -> None:
        """Refuses to split groups where a term or an aggregate needs them whole."""
        if self.unit == "group" or (self.unit == "row" and self.minibatches == 1):
            return
        parts = (*objective.walk(), *aggregate.walk(), *self.each.walk())
        names = dict.fromkeys(type(part).__name__ for part in parts if part.whole_groups)
        if names:
            raise UserError(
                f"{' and '.join(names)} must see whole groups, and an update with unit='{self.unit}' and "
                f"{self.minibatches} minibatches splits them; choose --set update.unit=group"
            )

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> Stats:
        if self.minibatches > 1:
            batch = learner.record(batch)
        if self.unit == "step":
            batch = batch.steps()
        figures: list[Stats] = []
        whole = self.unit == "group"
        for epoch in range(self.epochs):
            for mini in learner.minibatches(batch, self.minibatches, run.rng(f"minibatch-{epoch}"), whole):
                seen = self.each(mini)
                loss = learner.gradient(objective, seen)
                metrics = {name: float(value) for name, value in loss.metrics.items()}
                if self.kl_stop and metrics["kl_proximal"] > self.kl_stop:
                    learner.zero_grad()
                    return mean_stats(figures) | {"updates": float(len(figures))}
                if batch.proximal_logp is None and self.epochs > 1:
                    own = seen.group is batch.group  # the transform left the rows in their places
                    batch = batch.with_(proximal_logp=loss.logp) if own else learner.record(batch)
                figures.append({**metrics, "loss": float(loss.value), **learner.step()})
        return mean_stats(figures) | {"updates": float(len(figures))}


def mean_stats(figures: list[Stats]) -> Stats:
    """The mean of each figure over the steps that report it."""
    names = dict.fromkeys(name for row in figures for name in row)
    values = {name: [row[name] for row in figures if name in row] for name in names}
    return {name: sum(seen) / len(seen) for name, seen in values.items()}

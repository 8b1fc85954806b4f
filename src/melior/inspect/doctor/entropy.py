"""Exploration: a policy that has narrowed too soon, or dissolved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import change, score, series
from melior.inspect.logs.log import RunLog


@dataclass(frozen=True)
class EntropyCollapse(Check):
    """The policy has stopped exploring, and with that the reward has stopped rising, short of the goal.

    The median `entropy` of the last `steps` steps is at most `share` of that of the first `steps`; at least `steps`
    steps have passed since it (as a running median of 5) first was; since then the score (pass rate, else reward) has
    not risen: its last `steps` steps (of a shorter time the last half) do not rank above the first ones after the fall
    by 2 standard deviations. A pass rate of
    `solved` or more is no collapse: a policy that knows the answer is sure of it.

    Attributes:
        share: of the entropy at the start, at most.
        steps: at each end of the run.
        solved: pass rate from which on low entropy is as it should be.
    """

    share: float = 0.2
    steps: int = 10
    solved: float = 0.9

    name = "entropy-collapse"
    needs = ("entropy",)
    explained_by = ("dead-reward", "step-too-large")

    def __call__(self, log: RunLog) -> Finding | None:
        entropy = series(log, "entropy")
        if len(entropy) < 3 * self.steps:
            return None
        start, end = entropy.first(self.steps).median, entropy.last(self.steps)
        if start <= 0 or end.median > self.share * start:
            return None
        smooth = entropy.smooth(5)
        fallen = int(smooth.steps[np.flatnonzero(smooth.values <= self.share * start)[0]])
        raised = score(log)
        since = raised.since(fallen)
        if len(since) < self.steps or (raised.name == "pass_rate" and raised.last(self.steps).median >= self.solved):
            return None
        if len(since) >= 2 * self.steps:
            moved = change(since.first(self.steps).values, since.last(self.steps).values)
        else:
            half = len(since) // 2
            moved = change(since.first(half).values, since.last(half).values)
        if moved.z >= 2:
            return None
        held = entropy.held(lambda values: values <= self.share * start, self.steps)
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(self.share * start / max(end.median, 1e-12), held),
            says="The policy has collapsed: it gives nearly the same completion every time, and the score no longer "
            "rises, since what is not tried cannot be found.",
            evidence=(
                Evidence(
                    f"entropy fell from {start:.3g} to {end.median:.3g} nats a token, under {self.share:.0%} of its "
                    f"start from step {fallen} on",
                    (fallen, end.span[1]),
                    {"entropy_start": start, "entropy_end": end.median},
                ),
                Evidence(
                    f"{raised.name} was {moved.before:.3g} then and is {moved.after:.3g} now",
                    since.span,
                    {"before": moved.before, "after": moved.after, "z": moved.z},
                ),
            ),
            plot=Plot(("entropy", raised.name), entropy.span),
            try_=(
                "leave unlikely tokens room to grow: a higher upper clip, as in `dapo` (`objective.clip.high`)",
                "a smaller `settings.lr`, or a KL term to the starting point, as in `grpo` (`ReferenceKL`)",
                "keep `settings.temperature` at 1 and sample more completions: `settings.n`",
                "go on from a checkpoint before the fall",
            ),
        )


@dataclass(frozen=True)
class EntropyExplosion(Check):
    """The policy dissolves into noise.

    The median `entropy` of the last `steps` steps is at least `times` that of the first `steps` and at least `nats`
    above it, and the score does not stand above its start: its last `steps` steps do not rank above its first ones by
    2 standard deviations.

    Attributes:
        times: the entropy at the start, at least.
        nats: above the entropy at the start, at least.
        steps: at each end of the run.
    """

    times: float = 2.0
    nats: float = 0.5
    steps: int = 10

    name = "entropy-explosion"
    needs = ("entropy",)
    explained_by = ("step-too-large",)

    def __call__(self, log: RunLog) -> Finding | None:
        entropy = series(log, "entropy")
        if len(entropy) < 2 * self.steps:
            return None
        start, end = entropy.first(self.steps).median, entropy.last(self.steps)
        if end.median < self.times * start or end.median < start + self.nats:
            return None
        raised = score(log)
        moved = change(raised.first(self.steps).values, raised.last(self.steps).values)
        if moved.z >= 2:
            return None
        held = entropy.held(lambda values: values >= max(self.times * start, start + self.nats), self.steps)
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(end.median / max(self.times * start, 1e-12), held),
            says="The entropy has exploded: completions drift towards noise, and the score has not risen with it.",
            evidence=(
                Evidence(
                    f"entropy went from {start:.3g} to {end.median:.3g} nats a token while {raised.name} went from "
                    f"{moved.before:.3g} to {moved.after:.3g}",
                    (entropy.span[0], end.span[1]),
                    {"entropy_start": start, "entropy_end": end.median, "before": moved.before, "after": moved.after},
                ),
            ),
            plot=Plot(("entropy", raised.name), entropy.span),
            try_=(
                "a smaller `settings.lr`; an entropy bonus, if there is one, smaller or none",
                "a KL term to the starting point, as in `grpo` (`ReferenceKL`)",
                "see that negative advantages do not dominate: push down less with `advantage.scale` or `rgra`",
                "go on from a checkpoint before the rise",
            ),
        )

"""What the batch is made of: the same prompt twice, or the same prompts until they are known by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import series
from melior.inspect.logs.log import Row, RunLog


@dataclass(frozen=True)
class DuplicatePrompts(Check):
    """Batches hold the same prompt several times.

    In at most `read` evenly spaced steps with kept completions the share of groups whose prompt another group of the
    step has already had is counted; its median is at least `share`, over at least `steps` steps.

    Attributes:
        share: of groups that repeat a prompt, at least.
        steps: with completions, at least.
        read: steps that are read, at most.
    """

    share: float = 0.1
    steps: int = 5
    read: int = 24

    name = "duplicate-prompts"
    needs = ("completions.group",)

    def __call__(self, log: RunLog) -> Finding | None:
        found = {step: _repeats(log.rollouts.rows(step)) for step in log.rollouts.spread(self.read)}
        shares = {step: share for step, share in found.items() if share is not None}
        if len(shares) < self.steps or float(np.median(list(shares.values()))) < self.share:
            return None
        share, span = float(np.median(list(shares.values()))), (min(shares), max(shares))
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(share / self.share, len(shares) / self.steps),
            says="Batches hold the same prompt several times: there is less in them than their size says, and what one "
            "prompt teaches counts double.",
            evidence=(
                Evidence(
                    f"{share:.0%} of the groups of a step repeat the prompt of another (median of {len(shares)} steps)",
                    span,
                    {"repeated": share},
                ),
            ),
            plot=Plot(("reward_std", "mixed_share"), span),
            try_=(
                "remove duplicates from the data: `settings.data`",
                "if the data has fewer rows than a batch has prompts: fewer `settings.prompts`, more `settings.n`",
                "see that the prompt column is the one that differs: `settings.prompt_column`, "
                "`settings.prompt_template`",
            ),
        )


@dataclass(frozen=True)
class Overfitting(Check):
    """The policy learns its prompts by heart: it gets better on them and not on others.

    `pass_rate` (without one `reward`) rises by rank from the first to the last third of at least `steps` steps, by at
    least `gain`, and the held-out figure that measures the same (`eval/pass@1`, else `eval/mean@N`, else `eval/score`;
    of rewards `eval/reward`, else `eval/mean@N`) either has fallen from its best evaluation to its last, with intervals
    that do not overlap (without intervals: by half of `gain`); or, over at least two evaluations, has gained at most a
    quarter of that, its upper bound being more than `gap` below the training figure of the last third.

    Attributes:
        gain: on the training prompts, at least.
        gap: between training and held-out, at least.
        steps: of the run, at least.
    """

    gain: float = 0.1
    gap: float = 0.1
    steps: int = 20

    name = "overfitting"
    needs = ("pass_rate|reward", "eval/pass@1|eval/score|eval/reward")
    explained_by = ("step-too-large",)

    def __call__(self, log: RunLog) -> Finding | None:
        trained = series(log, "pass_rate")
        if not len(trained):
            trained = series(log, "reward")
        moved = trained.change()
        if len(trained) < self.steps or not moved.rises or moved.after - moved.before < self.gain:
            return None
        name = _same_measure(log, trained.name)
        known = np.isfinite(log.metric(name))
        held, steps = log.metric(name)[known], log.steps[known]
        if len(held) < 2:
            return None
        low, high = (_bounds(log, name, end)[known] for end in ("low", "high"))
        best = int(np.argmax(held))
        fell = held[best] - held[-1]
        apart = high[-1] < low[best] if np.isfinite(high[-1] + low[best]) else fell >= self.gain / 2
        gained = held[-1] - held[0]
        upper = high[-1] if np.isfinite(high[-1]) else held[-1]
        left_behind = gained <= (moved.after - moved.before) / 4 and upper < moved.after - self.gap
        if not (best < len(held) - 1 and apart) and not left_behind:
            return None
        numbers = {
            "train_before": moved.before, "train_after": moved.after,
            "held_out_first": float(held[0]), "held_out_best": float(held[best]), "held_out_last": float(held[-1]),
        }  # fmt: skip
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness((moved.after - upper) / self.gap, len(held) / 3),
            says="The prompts are learnt by heart: the policy gets better on those it trains on and not on others.",
            evidence=(
                Evidence(
                    f"{trained.name} rose from {moved.before:.3g} to {moved.after:.3g} in training; {name} went from "
                    f"{held[0]:.3g} (best {held[best]:.3g} at step {int(steps[best])}) to {held[-1]:.3g}",
                    (int(steps[0]), int(max(steps[-1], trained.span[1]))),
                    numbers,
                ),
            ),
            plot=Plot((trained.name, name), trained.span),
            try_=(
                "more and more varied prompts: `settings.data`, `settings.task`",
                "stop at the best held-out score: `settings.keep_best` with `settings.eval_every`",
                "a KL term, as in `grpo` (`ReferenceKL`), a smaller `settings.lr`, or `settings.lora`",
                "see that the held-out rows are of the same kind: `settings.eval_data`",
            ),
        )


def _repeats(rows: Sequence[Row]) -> float | None:
    """The share of groups whose prompt an earlier group has; None where groups or prompts are not known."""
    prompts: dict[int, str] = {}
    for row in rows:
        if row.group is not None and row.prompt is not None:
            prompts.setdefault(row.group, row.prompt)
    if len(prompts) < 2:
        return None
    return 1 - len(set(prompts.values())) / len(prompts)


def _same_measure(log: RunLog, trained: str) -> str:
    """The held-out figure that measures what the training figure does."""
    means = [name for name in log.metrics if name.startswith("eval/mean@") and not name.endswith(("_low", "_high"))]
    names = ["eval/pass@1", *means, "eval/score"] if trained == "pass_rate" else ["eval/reward", *means]
    return next((name for name in names if np.isfinite(log.metric(name)).sum() > 1), names[0])


def _bounds(log: RunLog, name: str, end: str) -> np.ndarray:
    return log.metric(f"{name}_{end}")

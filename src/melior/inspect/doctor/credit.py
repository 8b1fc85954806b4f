"""Who gets the credit: advantages that a few rows carry, and critics that know nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import Series, series
from melior.inspect.logs.log import RunLog


@dataclass(frozen=True)
class DominatedAdvantage(Check):
    """A few samples carry the whole update.

    In at most `read` evenly spaced steps with kept completions and at least `rows` rows whose advantage is not 0, the
    effective number of rows is (sum |A|)^2 / sum A^2, with the mean advantage of each row. Found when its median over
    at least `steps` steps is at most `few`, or at most `share` of the rows with an advantage.

    Attributes:
        few: effective rows, at most.
        share: effective rows as a share, at most.
        rows: with an advantage, at least.
        steps: with completions, at least.
        read: steps that are read, at most.
    """

    few: float = 4.0
    share: float = 0.03
    rows: int = 24
    steps: int = 5
    read: int = 24

    name = "dominated-advantage"
    needs = ("completions.advantage",)

    def __call__(self, log: RunLog) -> Finding | None:
        effective: dict[int, tuple[float, int]] = {}
        for step in log.rollouts.spread(self.read):
            sizes = np.abs([row.advantage for row in log.rollouts.rows(step) if row.advantage])
            if len(sizes) >= self.rows:
                effective[step] = float(sizes.sum() ** 2 / np.sum(sizes**2)), len(sizes)
        if len(effective) < self.steps:
            return None
        count = float(np.median([each[0] for each in effective.values()]))
        rows = float(np.median([each[1] for each in effective.values()]))
        limit = max(self.few, self.share * rows)
        if count > limit:
            return None
        span = min(effective), max(effective)
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(limit / count, len(effective) / self.steps),
            says="A few samples carry the whole update: their advantages tower over all others, and the step follows "
            "them whatever the rest says.",
            evidence=(
                Evidence(
                    f"{rows:.0f} rows with an advantage count as {count:.1f} (median of {len(effective)} steps)",
                    span,
                    {"effective_rows": count, "rows": rows},
                ),
            ),
            plot=Plot(("reward_std", "grad_norm"), span),
            try_=(
                "a bounded reward: clip it in the reward function, or pay by rank",
                "divide by the deviation of the group, as `grpo` does (`advantage.scale`), or whiten over the batch "
                "(`Whiten`)",
                "larger groups: `settings.n`",
            ),
        )


@dataclass(frozen=True)
class BlindCritic(Check):
    """The value function explains nothing.

    Of the steps in which returns vary (`reward_std`, where it is known, at least half of the run's largest: what does
    not vary cannot be explained) there are at least `steps`; over the last two thirds of these the upper quartile of
    `explained_variance` is at most `least`, and it has not risen by rank (3.5 standard deviations) from their first to
    their last third.

    Attributes:
        least: explained variance, at most.
        steps: of the run in which returns vary, at least.
    """

    least: float = 0.02
    steps: int = 20

    name = "blind-critic"
    needs = ("explained_variance",)
    explained_by = ("dead-reward", "no-signal", "step-too-large")

    def __call__(self, log: RunLog) -> Finding | None:
        explained = _varied(log)
        last = explained.last(-(-2 * len(explained) // 3))
        if len(explained) < self.steps or explained.change().rises:
            return None
        upper = float(np.quantile(last.values, 0.75))
        if upper > self.least:
            return None
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(2.0 if upper < 0 else 1.0, len(explained) / self.steps),
            says="The value function explains nothing of the returns: as a baseline it only adds noise.",
            evidence=(
                Evidence(
                    f"explained variance {last.median:.2g} (median), at most {upper:.2g} in three steps of four; 1 is "
                    "perfect, 0 is no better than the mean",
                    last.span,
                    {"explained_variance": last.median, "upper_quartile": upper},
                ),
            ),
            plot=Plot(("explained_variance", "value_loss"), explained.span),
            try_=(
                "more steps or a larger rate for the critic: `update.epochs`, `settings.lr`",
                "do without one and take the siblings as baseline: `rloo`, `grpo`",
                "see that rewards are of a size that it can fit, and that nothing of them is noise",
            ),
        )


def _varied(log: RunLog) -> Series:
    """The explained variance of the steps in which there is variance."""
    explained, spread = series(log, "explained_variance"), log.metric("reward_std")
    if not np.isfinite(spread).any():
        return explained
    wide = log.steps[np.nan_to_num(spread) >= float(np.nanmax(spread)) / 2]
    kept = np.isin(explained.steps, wide)
    return Series(explained.name, explained.steps[kept], explained.values[kept])

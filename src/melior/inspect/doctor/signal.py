"""Whether there is anything to learn from: groups without contrast, rewards without life, runs that have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import score, series
from melior.inspect.logs.log import Row, RunLog


@dataclass(frozen=True)
class NoSignal(Check):
    """Groups are too easy or too hard: nearly all completions of a prompt fare the same, so none can be preferred.

    `mixed_share`, the share of groups with different outcomes, has a median of at most `share` over the last `steps`
    steps; and where completions are kept, so has the share of groups with different rewards (a graded reward can teach
    where outcomes agree). Too easy when the median pass rate is at least 0.5, else too hard. Needs `steps` steps; runs
    with one completion a prompt are not judged.

    Attributes:
        share: of mixed groups, at most.
        steps: how many last steps are looked at.
    """

    share: float = 0.1
    steps: int = 10

    name = "no-signal"
    needs = ("mixed_share",)
    explained_by = (
        "dead-reward", "early-saturation", "entropy-collapse", "format-failure", "truncation", "step-too-large",
    )  # fmt: skip

    def __call__(self, log: RunLog) -> Finding | None:
        mixed = series(log, "mixed_share").last(self.steps)
        if len(mixed) < self.steps or log.settings.get("n") == 1 or mixed.median > self.share:
            return None
        graded = [_graded_share(log.rollouts.rows(step)) for step in log.rollouts.steps[-self.steps :]]
        if graded and float(np.median(graded)) > self.share:
            return None
        passed = score(log).last(self.steps)
        easy = passed.name == "pass_rate" and passed.median >= 0.5
        held = series(log, "mixed_share").held(lambda values: values <= self.share, self.steps)
        advice = (
            ("take harder prompts, or longer and stricter tasks of the same kind",)
            if easy
            else (
                "take easier prompts first, or start from a model that solves some of them",
                "sample more completions of each prompt: `settings.n`",
                "reward partial success, so that failures differ from each other",
            )
        )
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(self.share / max(mixed.median, 1e-12), held),
            says=f"The groups are too {'easy' if easy else 'hard'}: of nearly every prompt all completions "
            f"{'pass' if easy else 'fail'} alike, and where all fare the same there is nothing to prefer.",
            evidence=(
                Evidence(
                    f"{mixed.median:.0%} of the groups are mixed (median of {len(mixed)} steps), "
                    f"at a {passed.name} of {passed.median:.2f}",
                    mixed.span,
                    {"mixed_share": mixed.median, passed.name: passed.median},
                ),
            ),
            plot=Plot(("mixed_share", passed.name), series(log, "mixed_share").span),
            try_=(*advice, "sample further prompts until every group is mixed, as `dapo` does: `MixedGroups`"),
        )


@dataclass(frozen=True)
class DeadReward(Check):
    """The reward is constant, or there is none: every completion of every step earns the same, or NaN.

    Constant: `reward_std` is at most `spread` times the reward's size in all of at least `steps` steps, and the mean
    reward never changes either. None: no step of the last `steps` has a finite `reward`, although the run knows that
    figure (a NaN, or a function that applies to no completion).

    Attributes:
        spread: deviation that still counts as none, relative to the reward (or to 1 when it is smaller).
        steps: steps that must show it.
    """

    spread: float = 1e-6
    steps: int = 5

    name = "dead-reward"
    needs = ()

    def __call__(self, log: RunLog) -> Finding | None:
        if "reward" not in log.metrics or int(np.sum(log.steps > 0)) < self.steps:
            return None
        taken = log.steps > 0
        latest = log.metric("reward")[taken][-self.steps :]
        span = int(log.steps[taken][-self.steps :][0]), int(log.steps[-1])
        if not np.isfinite(latest).any():
            says = "No completion has a reward: the function returns NaN or None for all of them, or it is not called."
            return self._finding(log, says, Evidence(f"no finite reward in {self.steps} steps", span), 1.0)
        rewards, spreads = series(log, "reward"), series(log, "reward_std")
        size = max(1.0, abs(rewards.median))
        constant = len(rewards) >= self.steps and float(np.ptp(rewards.values)) <= self.spread * size
        if not constant or (len(spreads) and float(spreads.values.max()) > self.spread * size):
            return None
        if not len(spreads) and _any_spread(log, self.spread * size):
            return None
        says = (
            f"The reward is constant: every completion of every step earned {rewards.median:g}. Either the reward "
            "function does not see what it should, or the task is out of the model's reach (or far within it)."
        )
        numbers = {"reward": rewards.median, "reward_std": 0.0}
        said = Evidence(f"reward {rewards.median:g} without any spread", rewards.span, numbers)
        return self._finding(log, says, said, len(rewards) / self.steps)

    def _finding(self, log: RunLog, says: str, evidence: Evidence, support: float) -> Finding:
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(2.0, support),
            says=says,
            evidence=(evidence,),
            plot=Plot(("reward", "reward_std"), (int(log.steps[log.steps > 0][0]), int(log.steps[-1]))),
            try_=(
                "call the reward function by hand on a right and a wrong answer; `melior check` shows it on a sample "
                "and on the reference answer",
                "see that it reads the right columns and that its answer is found in the completion: "
                "`settings.reward`, `settings.answer_column`",
                "if it works and the task is too hard: easier prompts, a graded reward, or a stronger model",
            ),
        )


@dataclass(frozen=True)
class EarlySaturation(Check):
    """The run arrived long before its end: most of its steps had nothing left to teach.

    The pass rate (a running median of `width` steps) reaches `level` within the first `part` of the run, having begun
    below it, stays there (median to the end at least `level`), and from then on the median share of mixed groups is at
    most `mixed`. Needs at least `steps` steps.

    Attributes:
        level: pass rate that counts as solved.
        part: of the run's steps within which it is reached.
        mixed: share of mixed groups that is left, at most.
        width: steps of the running median.
        steps: of the run, at least.
    """

    level: float = 0.97
    part: float = 0.5
    mixed: float = 0.15
    width: int = 5
    steps: int = 30

    name = "early-saturation"
    needs = ("pass_rate", "mixed_share")

    def __call__(self, log: RunLog) -> Finding | None:
        passed = series(log, "pass_rate")
        if len(passed) < self.steps or passed.first(self.width).median >= self.level:
            return None
        smooth = passed.smooth(self.width)
        there = np.flatnonzero(smooth.values >= self.level)
        planned = max(int(passed.steps[-1]), 1)
        if not len(there) or smooth.steps[there[0]] > self.part * planned:
            return None
        since = int(smooth.steps[there[0]])
        after, mixed = passed.since(since), series(log, "mixed_share").since(since)
        if after.median < self.level or mixed.median > self.mixed:
            return None
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(self.mixed / max(mixed.median, 1e-12), (planned - since) / (self.part * planned)),
            says=f"The task was solved at step {since} of {planned}; what was sampled since then had next to nothing "
            "to teach. What was learnt is not harmed, the rest of the budget was spent for nothing.",
            evidence=(
                Evidence(
                    f"pass rate {passed.first(self.width).median:.2f} at the start, {after.median:.2f} since step "
                    f"{since}, and {mixed.median:.0%} of the groups mixed",
                    after.span,
                    {"pass_rate": after.median, "mixed_share": mixed.median, "since": float(since)},
                ),
            ),
            plot=Plot(("pass_rate", "mixed_share"), passed.span),
            try_=(
                "stop earlier: `settings.steps`, with `settings.eval_every` and `settings.keep_best`",
                "harder prompts, or a task that grows with the policy",
                "sample further prompts until every group is mixed: `MixedGroups`",
            ),
        )


def _graded_share(rows: Sequence[Row]) -> float:
    """The share of groups in which rewards differ."""
    groups: dict[int | None, list[float]] = {}
    for row in rows:
        if row.reward is not None:
            groups.setdefault(row.group, []).append(row.reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    return float(np.mean([max(rewards) > min(rewards) for rewards in several])) if several else 0.0


def _any_spread(log: RunLog, spread: float) -> bool:
    """Whether rewards of a step differ, in completions, for a run that logs no deviation."""
    for step in log.rollouts.spread(8):
        rewards = [row.reward for row in log.rollouts.rows(step) if row.reward is not None]
        if rewards and max(rewards) - min(rewards) > spread:
            return True
    return False

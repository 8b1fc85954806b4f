"""What held-out figures say, and whether there are enough of any to say something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import change, score
from melior.inspect.logs.log import RunLog


@dataclass(frozen=True)
class PassAtKFalls(Check):
    """pass@1 rises while pass@k falls: the policy is surer of what it could do and loses what it could find.

    Of the held-out `eval/pass@1` and the `eval/pass@K` of the largest k: from the first to the last evaluation pass@1
    has not fallen, and pass@k has fallen by at least `loss`, either with intervals that do not overlap or, with five
    evaluations or more, in rank along the steps (Spearman's rho at most -0.7). Without such
    figures, in kept completions of at most `read` evenly spaced steps: from their first to their last third the share
    of groups with a passing completion falls, and the pass rate rises, both by rank (3.5 standard deviations).

    Attributes:
        loss: of pass@k, at least.
        read: steps that are read, at most.
    """

    loss: float = 0.05
    read: int = 48

    name = "pass-at-k-falls"
    needs = ("completions|eval/pass@1",)
    explained_by = ("step-too-large", "overfitting")

    def __call__(self, log: RunLog) -> Finding | None:
        names = [name for name in log.metrics if name.startswith("eval/pass@") and name[10:].isdigit()]
        large = max(names, key=lambda name: int(name[10:]), default="eval/pass@1")
        if large != "eval/pass@1" and "eval/pass@1" in names:
            return self._held_out(log, large)
        return self._sampled(log)

    def _held_out(self, log: RunLog, name: str) -> Finding | None:
        one, many = log.metric("eval/pass@1"), log.metric(name)
        known = np.isfinite(one) & np.isfinite(many)
        one, steps = one[known], log.steps[known]
        many, low, high = (log.metric(each)[known] for each in (name, f"{name}_low", f"{name}_high"))
        if len(many) < 2 or one[-1] < one[0] or many[0] - many[-1] < self.loss:
            return None
        apart = bool(high[-1] < low[0])
        falling = (
            len(many) >= 5 and float(np.corrcoef(np.argsort(np.argsort(-many)), np.arange(len(many)))[0, 1]) >= 0.7
        )
        if not apart and not falling:
            return None
        said = f"pass@1 went from {one[0]:.3g} to {one[-1]:.3g}, {name[5:]} from {many[0]:.3g} to {many[-1]:.3g}"
        numbers = {"pass@1_first": one[0], "pass@1_last": one[-1], "pass@k_first": many[0], "pass@k_last": many[-1]}
        evidence = Evidence(said, (int(steps[0]), int(steps[-1])), {key: float(v) for key, v in numbers.items()})
        return self._finding(evidence, ("eval/pass@1", name), (many[0] - many[-1]) / self.loss, len(many) / 3)

    def _sampled(self, log: RunLog) -> Finding | None:
        limit = float(log.settings.get("pass_at", 1.0))
        steps, solved, passed = [], [], []
        for step in log.rollouts.spread(self.read):
            groups: dict[int | None, list[bool]] = {}
            for row in log.rollouts.rows(step):
                if row.outcome is not None:
                    groups.setdefault(row.group, []).append(row.outcome >= limit)
            if len(groups) > 1 and min(map(len, groups.values())) > 1:
                steps.append(step)
                solved.append(float(np.mean([any(each) for each in groups.values()])))
                passed.append(float(np.mean([one for each in groups.values() for one in each])))
        third = len(steps) // 3
        if third < 4:
            return None
        any_, mean = change(solved[:third], solved[-third:]), change(passed[:third], passed[-third:])
        if not any_.falls or not mean.rises or any_.before - any_.after < self.loss:
            return None
        said = (
            f"the share of groups with a passing completion went from {any_.before:.3g} to {any_.after:.3g}, the pass "
            f"rate from {mean.before:.3g} to {mean.after:.3g}"
        )
        numbers = {
            "any_before": any_.before,
            "any_after": any_.after,
            "pass_before": mean.before,
            "pass_after": mean.after,
        }
        evidence = Evidence(said, (steps[0], steps[-1]), numbers)
        return self._finding(evidence, ("pass_rate", "mixed_share"), (any_.before - any_.after) / self.loss, third / 4)

    def _finding(self, evidence: Evidence, plotted: tuple[str, ...], margin: float, support: float) -> Finding:
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(margin, support),
            says="pass@1 rises while pass@k falls: the policy sharpens what it already did and forgets other ways to "
            "the answer.",
            evidence=(evidence,),
            plot=Plot((*plotted, "entropy"), evidence.steps),
            try_=(
                "leave unlikely tokens room to grow: a higher upper clip, as in `dapo` (`objective.clip.high`)",
                "a KL term to the starting point, as in `grpo` (`ReferenceKL`)",
                "no division by the group's deviation, as in `dr-grpo`; more completions: `settings.n`",
                "choose the checkpoint by the k that will be used: `settings.eval_k`, `settings.keep_best`",
            ),
        )


@dataclass(frozen=True)
class TooFewSamples(Check):
    """There is too little to tell: what was not found may still be there.

    The run has fewer than `steps` steps with a score. Or the score does not move (the thirds differ by less than 2
    standard deviations of Mann-Whitney) and is too noisy to exclude that it does: twice the standard error of the
    difference of its first and last third, by the step-to-step differences, is more than `least` (of a pass rate), or
    more than `least` times its size (of a reward).

    Attributes:
        steps: of the run, at least.
        least: change of the score that should be seen.
    """

    steps: int = 20
    least: float = 0.15

    name = "too-few-samples"
    needs = ()

    def __call__(self, log: RunLog) -> Finding | None:
        raised = score(log)
        if len(raised) < self.steps:
            count = int(np.sum(log.steps > 0))
            said = f"{len(raised)} of {count} steps have a score" if len(raised) < count else f"{count} steps so far"
            return self._finding(log, f"{said}; {self.steps} are needed", {"steps": float(len(raised))})
        third = len(raised) // 3
        jumps = np.abs(np.diff(raised.values))
        noise = float(np.median(jumps)) / 0.954  # the median |difference| of two normal values is 0.954 deviations
        error = 2 * noise * float(np.sqrt(2 / third))
        moved = raised.change()
        size = 1.0 if raised.name == "pass_rate" else max(abs(moved.before), abs(moved.after))
        if abs(moved.z) >= 2 or error <= self.least * size:
            return None
        said = (
            f"{raised.name} {moved.before:.3g} in the first third and {moved.after:.3g} in the last, give or take "
            f"{error:.2g}"
        )
        return self._finding(log, said, {"before": moved.before, "after": moved.after, "error": error})

    def _finding(self, log: RunLog, said: str, numbers: dict[str, float]) -> Finding:
        span = (int(log.steps[0]), int(log.steps[-1])) if len(log.steps) else (0, 0)
        return Finding(
            name=self.name,
            severity="unknown",
            sure="certain",
            says="There is too little to tell by: the run may be healthy or ill.",
            evidence=(Evidence(said, span, numbers),),
            plot=Plot((score(log).name,), span),
            try_=(
                "more steps: `settings.steps`; `melior doctor --watch RUN` follows a run as it goes on",
                "more completions a step: `settings.prompts`, `settings.n`; more held-out prompts: "
                "`settings.eval_prompts`",
            ),
        )

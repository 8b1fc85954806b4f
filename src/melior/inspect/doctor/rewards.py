"""Rewards that are earned in the wrong way."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import Change, Series, rank_correlation, ranks, series
from melior.inspect.logs.log import RunLog

COUNTED = re.compile(r"_(std|timeouts|failures|low|high|min|max)$")


def components(log: RunLog) -> dict[str, Series]:
    """The raw reward components of a run by name."""
    names = [name for name in log.metrics if name.startswith("reward/") and not COUNTED.search(name)]
    return {name[7:]: found for name in names if len(found := series(log, name))}


@dataclass(frozen=True)
class TradedComponents(Check):
    """One reward component is bought with another.

    From the first to the last third of at least `steps` steps one component rises and another falls, each by rank
    (3.5 standard deviations of Mann-Whitney) and by size: the rising one by at least `gain`, the falling one by at
    least `loss`, both as a share of the larger of the two medians of that component.

    Attributes:
        gain: of the rising component, at least.
        loss: of the falling component, at least.
        steps: of the run, at least.
    """

    gain: float = 0.1
    loss: float = 0.2
    steps: int = 20

    name = "traded-components"
    needs = ("components",)
    explained_by = ("step-too-large",)

    def missing(self, log: RunLog) -> tuple[str, ...]:
        """Two components at least."""
        return () if len(components(log)) > 1 else ("two reward components",)

    def __call__(self, log: RunLog) -> Finding | None:
        long = {name: found for name, found in components(log).items() if len(found) >= self.steps}
        moves = {name: found.change() for name, found in long.items()}
        up = {name: _moved(each) for name, each in moves.items() if each.rises and _moved(each) >= self.gain}
        down = {name: _moved(each) for name, each in moves.items() if each.falls and _moved(each) >= self.loss}
        if not up or not down:
            return None
        bought, paid = max(up, key=lambda name: up[name]), max(down, key=lambda name: down[name])
        a, b = moves[bought], moves[paid]
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(down[paid] / self.loss, len(long[paid]) / self.steps),
            says=f"The policy buys '{bought}' with '{paid}': one rises while the other falls, and their sum hides it.",
            evidence=(
                Evidence(
                    f"{bought} went from {a.before:.3g} to {a.after:.3g}, {paid} from {b.before:.3g} to {b.after:.3g}",
                    long[paid].span,
                    {"up_before": a.before, "up_after": a.after, "down_before": b.before, "down_after": b.after},
                ),
            ),
            plot=Plot((f"reward/{bought}", f"reward/{paid}", "reward"), long[paid].span),
            try_=(
                "standardize each reward in its group before they are summed, as `gdpo` does",
                "weigh them anew: `settings.reward_weights`",
                "give the one only where the other is earned: one reward function that says so",
            ),
        )


@dataclass(frozen=True)
class FormatFailure(Check):
    """Completions do not have the form that the reward looks for.

    Either a component whose name speaks of form (`words`) has a median of at most `share` of its best step (at least of
    1) over the last `steps` steps and does not rise; or in the last kept completions (of up to `steps` steps) a share
    of at least `empty` is empty or nothing but blanks.

    Attributes:
        share: of what the component can reach, at most.
        empty: share of empty completions, at least.
        steps: how many last steps are looked at.
        words: what the name of such a component contains.
    """

    share: float = 0.2
    empty: float = 0.3
    steps: int = 10
    words: tuple[str, ...] = ("format", "form", "structure", "syntax", "parse", "valid", "xml", "tag", "boxed", "json")

    name = "format-failure"
    needs = ("components|completions",)
    explained_by = ("step-too-large", "truncation", "dead-reward")

    def missing(self, log: RunLog) -> tuple[str, ...]:
        """Such a component, or completions."""
        return () if self._about_form(log) or log.rollouts.steps else ("a component about form, or completions",)

    def __call__(self, log: RunLog) -> Finding | None:
        for name, found in self._about_form(log).items():
            last, best = found.last(self.steps), max(1.0, float(found.values.max()))
            if len(last) < self.steps or last.median > self.share * best or found.change().z >= 2:
                continue
            held = found.held(lambda v, best=best: v <= self.share * best, self.steps)  # type: ignore[misc]
            said = f"'{name}' is {last.median:.2g} of {best:.2g} (median of {self.steps} steps) and does not rise"
            evidence = Evidence(said, last.span, {name: last.median})
            return self._finding(
                evidence, (f"reward/{name}", "reward"), self.share * best / max(last.median, 0.01), held
            )
        return self._blank(log)

    def _about_form(self, log: RunLog) -> dict[str, Series]:
        found = components(log).items()
        return {name: each for name, each in found if any(word in name.lower() for word in self.words)}

    def _blank(self, log: RunLog) -> Finding | None:
        steps = log.rollouts.steps[-self.steps :]
        texts = [row.text for step in steps for row in log.rollouts.rows(step) if row.text is not None]
        share = float(np.mean([not text.strip() for text in texts])) if texts else 0.0
        if share < self.empty or len(steps) < self.steps // 2:
            return None
        said = f"{share:.0%} of the last {len(texts)} completions are empty"
        evidence = Evidence(said, (steps[0], steps[-1]), {"empty": share})
        return self._finding(evidence, ("length_mean", "reward"), share / self.empty, len(steps) / self.steps)

    def _finding(self, evidence: Evidence, plotted: tuple[str, ...], margin: float, support: float) -> Finding:
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(margin, support),
            says="Completions do not have the form that the reward looks for, so it never gets to judge their content.",
            evidence=(evidence,),
            plot=Plot(plotted, evidence.steps),
            try_=(
                "show the form in the prompt: `settings.system`, `settings.prompt_template`, or begin the completion "
                "in it: `settings.prefill`",
                "see that the chat template is the model's own: `settings.chat`",
                "a reward that pays parts of the form, beside the one for the answer: `settings.reward`",
                "a short supervised phase on a few right examples",
            ),
        )


@dataclass(frozen=True)
class RewardTracksLength(Check):
    """The reward follows the length: what is learnt is to write more.

    In at most `steps` evenly spaced steps with kept completions, lengths (in characters, where tokens were not counted)
    and rewards are ranked within each group and correlated over the step (Spearman's rho; groups without differences
    are left out, at least `rows` rows are needed). Found when over at least 5 such steps the median rho is at least
    `alone` and rewards take 4 or more values in a step; or it is at least `rho` and `length_mean` has grown by `growth`
    from the first to the last third of the run, also by rank (3.5 standard deviations). That long completions earn less
    is no finding: those that are cut off do.

    Attributes:
        rho: median correlation that counts where lengths grow, at least.
        alone: median correlation that counts by itself, at least.
        growth: of the mean length, as a share, at least.
        rows: of a step, at least.
        steps: that are read, at most.
    """

    rho: float = 0.5
    alone: float = 0.85
    growth: float = 0.2
    rows: int = 12
    steps: int = 24

    name = "reward-tracks-length"
    needs = ("completions.reward",)

    def __call__(self, log: RunLog) -> Finding | None:
        found = {step: self._correlation(log, step) for step in log.rollouts.spread(self.steps)}
        known = {step: each for step, each in found.items() if each is not None}
        if len(known) < 5:
            return None
        rho = float(np.median([each[0] for each in known.values()]))
        graded = float(np.median([each[1] for each in known.values()])) >= 4
        lengths = series(log, "length_mean")
        moved = lengths.change()
        grows = moved.rises and moved.after >= (1 + self.growth) * moved.before
        if not (rho >= self.alone and graded) and not (rho >= self.rho and grows):
            return None
        span = min(known), max(known)
        numbers, went = {"rho": rho}, ""
        if len(lengths):
            numbers |= {"length_before": moved.before, "length_after": moved.after}
            went = f"; mean length {moved.before:.4g} in the first third, {moved.after:.4g} in the last"
        return Finding(
            name=self.name,
            severity="warning",
            sure="certain" if grows and rho >= self.alone else "likely",
            says="The reward follows the length of the completion: among answers to one prompt the longer one earns "
            "more, and the policy learns to write more rather than better.",
            evidence=(
                Evidence(
                    f"rank correlation of reward and length in groups {rho:.2f} (median of {len(known)} steps){went}",
                    span,
                    numbers,
                ),
            ),
            plot=Plot(("length_mean", "reward"), span),
            try_=(
                "read the best completions: `melior rollouts RUN --best 5`; is it the content that is paid?",
                "let the reward not depend on length, or punish what exceeds a budget, as `dapo` does "
                "(`OverlongPenalty`)",
                "a loss that does not favor long rows: `dr-grpo`, or `aggregate` `TokenMean`",
            ),
        )

    def _correlation(self, log: RunLog, step: int) -> tuple[float, float] | None:
        """Spearman's rho within groups, and how many different rewards there are in them."""
        groups: dict[int | None, list[tuple[float, float]]] = {}
        for row in log.rollouts.rows(step):
            length = row.length if row.length is not None or row.text is None else len(row.text)
            if row.reward is not None and length is not None:
                groups.setdefault(row.group, []).append((float(length), row.reward))
        lengths, rewards = [], []
        values: set[float] = set()
        for pairs in groups.values():
            a, b = np.array(pairs).T
            if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
                continue
            lengths.append(_centered_ranks(a))
            rewards.append(_centered_ranks(b))
            values.update(b.tolist())
        if not lengths or sum(map(len, lengths)) < self.rows:
            return None
        return rank_correlation(np.concatenate(lengths), np.concatenate(rewards)), float(len(values))


def _moved(each: Change) -> float:
    """By how much of the larger median it moved."""
    largest = max(abs(each.before), abs(each.after))
    return abs(each.after - each.before) / largest if largest > 0 else 0.0


def _centered_ranks(values: np.ndarray) -> np.ndarray:
    order = ranks(values)
    return (order - order.mean()) / len(order)

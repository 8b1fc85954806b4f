"""How far the policy moves: too far, hardly at all, in jolts, or away from where it started."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, Sure, sureness
from melior.inspect.doctor.series import Series, learns, score, series
from melior.inspect.logs.log import RunLog


@dataclass(frozen=True)
class StepTooLarge(Check):
    """Steps are too large: an update moves the policy further than its data can vouch for.

    Either the median `kl_proximal`, the divergence within one update, is at least `nats` over the last `steps` steps
    (in runs with several optimizer steps a batch; with one it is 0 by construction). Or the score breaks down: at
    one step it falls by half of the way at least, `within` steps later and from then on its median is at most `share`
    of that over up to `steps` steps before, and around the fall the policy jumped, which is to say that one of these
    moved: `entropy` by a factor of `jump` or more either way, `length_mean` by 1.5, `kl_reference` by 1 nat,
    `truncated_share` by 0.5. A pass rate must have been 0.05 at least; another score must also fall by twice the median
    of `reward_std`. Either 3 steps before the fall are known and nine in ten of the later ones are below all of them,
    or there are held-out figures and `eval/score` fell to `share` or below as well.

    Attributes:
        nats: divergence within an update, a token, at least.
        share: of the score before, at most.
        within: steps of the fall, at most.
        jump: factor on the entropy, at least.
        steps: how many steps the medians are over.
    """

    nats: float = 0.1
    share: float = 0.5
    within: int = 5
    jump: float = 2.0
    steps: int = 10

    name = "step-too-large"
    needs = ("kl_proximal|pass_rate|reward|return",)
    explained_by = ("dead-reward",)

    def __call__(self, log: RunLog) -> Finding | None:
        return self._breakdown(log) or self._divergence(log)

    def _divergence(self, log: RunLog) -> Finding | None:
        moved = series(log, "kl_proximal")
        last = moved.last(self.steps)
        if len(last) < self.steps or last.median < self.nats:
            return None
        says = "Each update moves the policy far from the one that sampled its batch, further than the batch can tell."
        evidence = Evidence(
            f"{last.median:.2g} nats a token within an update (median of {self.steps} steps)",
            last.span,
            {"kl_proximal": last.median},
        )
        sure = sureness(last.median / self.nats, moved.held(lambda v: v >= self.nats, self.steps))
        return self._finding(says, evidence, sure, ("kl_proximal", "ess"), moved.span)

    def _breakdown(self, log: RunLog) -> Finding | None:
        raised = score(log)
        for place in range(1, len(raised) - self.within):
            before, after = raised.values[max(0, place - self.steps) : place], raised.values[place + self.within :]
            level, rest = float(np.median(before)), float(np.median(after))
            begun = level - raised.values[place] >= (level - rest) / 2  # the fall is dated by its first step
            if not begun or not self._fell(log, raised, level, rest) or not self._known(log, before, after):
                continue
            first, last = int(raised.steps[place - 1]), int(raised.steps[place + self.within])
            jumps = self._jumps(log, first, last)
            if not jumps:
                continue
            said = f"{raised.name} fell from {level:.3g} to {rest:.3g} at step {int(raised.steps[place])}"
            numbers = {"before": level, "after": rest, **{name: each[1] for name, each in jumps.items()}}
            moved = "; ".join(f"{name} went from {a:.3g} to {b:.3g}" for name, (a, b) in jumps.items())
            says = "A step was too large: the score broke down at once and did not come back."
            sure = sureness(self.share * level / max(rest, 1e-12) if level > 0 else 2.0, len(after) / self.steps)
            evidence = Evidence(f"{said}, while {moved}", (first, int(raised.steps[-1])), numbers)
            return self._finding(says, evidence, sure, (raised.name, *jumps), raised.span)
        return None

    def _fell(self, log: RunLog, raised: Series, level: float, rest: float) -> bool:
        if raised.name == "pass_rate":
            return level >= 0.05 and rest <= self.share * level
        spread = series(log, "reward_std").median if raised.name == "reward" else float(np.std(raised.values))
        return level - rest >= max(self.share * abs(level), 2 * spread if np.isfinite(spread) else 0.0)

    def _known(self, log: RunLog, before: np.ndarray, after: np.ndarray) -> bool:
        if len(before) >= 3:
            return float(np.quantile(after, 0.9)) <= float(before.min()) and len(after) >= 3
        held = log.metric("eval/score")
        held = held[np.isfinite(held)]
        return len(held) >= 2 and held[0] > 0 and float(held[-1]) <= self.share * float(held[0])

    def _jumps(self, log: RunLog, first: int, last: int) -> dict[str, tuple[float, float]]:
        """Figure -> (before, after the fall) of what shows that the policy itself moved."""
        found: dict[str, tuple[float, float]] = {}
        for name, factor, difference in (
            ("entropy", self.jump, np.inf),
            ("length_mean", 1.5, np.inf),
            ("kl_reference", np.inf, 1.0),
            ("truncated_share", np.inf, 0.5),
        ):
            figure = series(log, name)
            a, b = figure.before(first + 1).last(3).median, figure.since(last).first(5).median
            if not (np.isfinite(a) and np.isfinite(b)):
                continue
            if abs(b - a) >= difference or max(a, b) >= factor * max(min(a, b), 1e-12):
                found[name] = (a, b)
        return found

    def _finding(
        self, says: str, evidence: Evidence, sure: Sure, plotted: tuple[str, ...], span: tuple[int, int]
    ) -> Finding:
        return Finding(
            name=self.name,
            severity="critical",
            sure=sure,
            says=says,
            evidence=(evidence,),
            plot=Plot(plotted, span),
            try_=(
                "a `settings.lr` ten times smaller, with `settings.warmup`",
                "a bound on the gradient: `settings.clip_grad`",
                "end an update when the policy has moved enough: `update.kl_stop`; fewer `update.epochs`",
                "go on from a checkpoint before the fall; larger batches (`settings.prompts`) bear larger steps",
            ),
        )


@dataclass(frozen=True)
class StepTooSmall(Check):
    """Steps are too small: there is a signal, and the policy does not follow it.

    After at least `steps` steps the score has not risen, the median share of mixed groups is at least `mixed` (where
    it is known) or the rewards of a step differ, and the policy has not moved: the median `kl_reference` of the last 10
    steps is at most `nats`. Where no `kl_reference` is known, `entropy` must not have moved: its first and last third
    differ by at most 1 % and not by rank, after twice as many steps.

    Attributes:
        nats: divergence from the start, a token, at most.
        mixed: share of mixed groups, at least.
        steps: of the run, at least.
    """

    nats: float = 1e-3
    mixed: float = 0.2
    steps: int = 30

    name = "step-too-small"
    needs = ("kl_reference|entropy", "pass_rate|reward|return")
    explained_by = ("no-signal", "dead-reward", "stale-rollouts")

    def __call__(self, log: RunLog) -> Finding | None:
        raised, mixed = score(log), series(log, "mixed_share")
        if len(raised) < self.steps or learns(log) or (len(mixed) and mixed.median < self.mixed):
            return None
        if not len(mixed) and not series(log, "reward_std").median > 0:
            return None
        reference = series(log, "kl_reference")
        if len(reference) >= self.steps:
            end = reference.last(10).median
            if end > self.nats:
                return None
            margin, name = self.nats / max(end, 1e-12), "kl_reference"
            said = f"{end:.2g} nats a token from where it started"
            part = reference.last(10)
        else:
            entropy = series(log, "entropy")
            moved = entropy.change()
            if len(entropy) < 2 * self.steps or abs(moved.z) >= 2:
                return None
            if abs(moved.after - moved.before) > 0.01 * abs(moved.before):
                return None
            margin, name, part, end = 1.0, "entropy", entropy, moved.after
            said = f"its entropy has stayed at {moved.after:.3g} nats a token"
        change = raised.change()
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(margin, len(raised) / self.steps),
            says="Steps are too small: there is something to learn from, and the policy stays where it was.",
            evidence=(
                Evidence(f"after {len(raised)} steps the policy is {said}", part.span, {name: end}),
                Evidence(
                    f"{raised.name} {change.before:.3g} in the first third, {change.after:.3g} in the last",
                    raised.span,
                    {"before": change.before, "after": change.after},
                ),
            ),
            plot=Plot((name, raised.name, "update_norm"), raised.span),
            try_=(
                "a `settings.lr` three to ten times larger (LoRA wants about ten times that of all weights)",
                "see that the bound on the gradient is not far below its norm: `settings.clip_grad`, `grad_norm`",
                "a weaker KL term: its weight in `objective`",
            ),
        )


@dataclass(frozen=True)
class GradientSpikes(Check):
    """Single gradients tower over the others.

    A spike is a `grad_norm` above `times` the upper quartile of all earlier steps (at least 10 of them, zeros left out)
    and above 4 times the median of its three neighbors on either side. Found at `count` spikes or more, and at least
    one in 50 steps.

    Attributes:
        times: the upper quartile of the steps before, at least.
        count: spikes, at least.
    """

    times: float = 10.0
    count: int = 3

    name = "gradient-spikes"
    needs = ("grad_norm",)
    explained_by = ("step-too-large",)

    def __call__(self, log: RunLog) -> Finding | None:
        norms = series(log, "grad_norm")
        spikes = [place for place in range(10, len(norms)) if self._spike(norms.values, place)]
        if len(spikes) < max(self.count, len(norms) / 50):
            return None
        steps, sizes = norms.steps[spikes], norms.values[spikes]
        usual = float(np.median(norms.values))
        shown = ", ".join(str(int(step)) for step in steps[:5]) + (", ..." if len(steps) > 5 else "")
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(float(np.median(sizes)) / (self.times * max(usual, 1e-12)), len(spikes) / self.count),
            says="The gradient spikes: single steps carry many times the usual norm and undo what others built.",
            evidence=(
                Evidence(
                    f"{len(spikes)} spikes (steps {shown}) of up to {sizes.max():.3g} where {usual:.3g} is usual",
                    (int(steps[0]), int(steps[-1])),
                    {"spikes": float(len(spikes)), "largest": float(sizes.max()), "usual": usual},
                ),
            ),
            plot=Plot(("grad_norm", "update_norm", "reward"), norms.span),
            try_=(
                "a bound near the usual norm: `settings.clip_grad`",
                "larger batches: `settings.prompts`, `settings.n`",
                "read the completions of such a step: `melior rollouts RUN --step N --worst 5`",
                "where ratios cause them: a bound on both sides, as in `grpo`, or a capped weight, as in `cispo`",
            ),
        )

    def _spike(self, norms: np.ndarray, place: int) -> bool:
        earlier = norms[:place][norms[:place] > 0]
        if len(earlier) < 10 or norms[place] <= self.times * float(np.quantile(earlier, 0.75)):
            return False
        around = np.concatenate([norms[max(0, place - 3) : place], norms[place + 1 : place + 4]])
        return bool(norms[place] > 4 * float(np.median(around)))


@dataclass(frozen=True)
class KLBlowUp(Check):
    """The policy runs away from where it started.

    The median `kl_reference` of the last 5 steps is at least `nats`, at least `times` its median over the middle half
    of the run, and the score does not rise from that middle on; or it is at least `always`, whatever the score does.
    Needs `steps` steps.

    Attributes:
        nats: a token, at least.
        times: the median of the middle half, at least.
        always: nats a token that are too many for any run.
        steps: of the run, at least.
    """

    nats: float = 0.5
    times: float = 5.0
    always: float = 10.0
    steps: int = 20

    name = "kl-blow-up"
    needs = ("kl_reference",)
    explained_by = ("step-too-large",)

    def __call__(self, log: RunLog) -> Finding | None:
        reference = series(log, "kl_reference")
        if len(reference) < self.steps:
            return None
        quarter = len(reference) // 4
        middle = Series(reference.name, reference.steps[quarter:-quarter], reference.values[quarter:-quarter])
        last = reference.last(5)
        grown = last.median >= self.nats and last.median >= self.times * middle.median
        if not (grown and not learns(log, since=middle.span[0])) and last.median < self.always:
            return None
        limit = self.always if last.median >= self.always else self.times * max(middle.median, 1e-12)
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(last.median / limit, reference.held(lambda v: v >= self.nats, 5)),
            says="The divergence from the starting point blows up: the policy leaves what the model knew, without the "
            "score to show for it.",
            evidence=(
                Evidence(
                    f"{last.median:.3g} nats a token in the last steps, {middle.median:.3g} in the middle of the run",
                    (middle.span[0], last.span[1]),
                    {"kl_reference": last.median, "middle": middle.median},
                ),
            ),
            plot=Plot(("kl_reference", score(log).name), reference.span),
            try_=(
                "a KL term, or more of it, as in `grpo` (`ReferenceKL`)",
                "a smaller `settings.lr`, or one that falls: `settings.schedule`",
                "go on from a checkpoint before the rise; `settings.keep_best` keeps the best",
            ),
        )


@dataclass(frozen=True)
class LossNearZero(Check):
    """A loss near zero that is healthy: a note, not an illness.

    The median |`loss`| is at most `size` although the policy learns: the gradient is there (median `grad_norm` above 0)
    and the weights move (`update_norm` above 0, where it is known). Advantages are centered within their group and the
    ratio is 1 on the first pass, so their sum cancels by construction; what remains is a KL term. The gradient does not
    cancel. Needs `steps` steps.

    Attributes:
        size: of the loss, at most.
        steps: of the run, at least.
    """

    size: float = 0.05
    steps: int = 10

    name = "loss-near-zero"
    needs = ("loss", "grad_norm")

    def __call__(self, log: RunLog) -> Finding | None:
        loss, norms, moves = series(log, "loss"), series(log, "grad_norm"), series(log, "update_norm")
        size = float(np.median(np.abs(loss.values))) if len(loss) else np.inf
        if len(loss) < self.steps or size > self.size or not norms.median > 0:
            return None
        if len(moves) and not moves.median > 0:
            return None
        return Finding(
            name=self.name,
            severity="note",
            sure=sureness(self.size / max(size, 1e-12), len(loss) / self.steps),
            says="The loss is near zero, and that is healthy: advantages are centered, so their sum cancels while "
            "their gradient does not. Judge by the reward and the held-out score; the loss measures no progress.",
            evidence=(
                Evidence(
                    f"|loss| {size:.2g} (median), with a gradient norm of {norms.median:.3g}",
                    loss.span,
                    {"loss": size, "grad_norm": norms.median},
                ),
            ),
            plot=Plot(("loss", "grad_norm", "reward"), loss.span),
            try_=("nothing: judge by `melior eval` and `settings.eval_every`",),
        )

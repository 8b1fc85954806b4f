"""Off-policyness: importance ratios, what clips them, and samplers that draw from something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import Series, learns, series
from melior.inspect.logs.log import RunLog


@dataclass(frozen=True)
class HeavyRatios(Check):
    """Importance ratios are heavy-tailed: a few tokens carry the weight of the batch.

    The median `ess`, the effective sample size of the token weights policy / sampler as a share of the tokens, is at
    most `share` over the last `steps` steps.

    Attributes:
        share: of the tokens, at most.
        steps: how many last steps are looked at.
    """

    share: float = 0.5
    steps: int = 10

    name = "heavy-tailed-ratios"
    needs = ("ess",)
    explained_by = ("sampler-mismatch", "stale-rollouts", "step-too-large")

    def __call__(self, log: RunLog) -> Finding | None:
        ess = series(log, "ess")
        last = ess.last(self.steps)
        if len(last) < self.steps or last.median > self.share:
            return None
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(self.share / max(last.median, 1e-12), ess.held(lambda v: v <= self.share, self.steps)),
            says="The importance ratios are heavy-tailed: the policy has moved so far from the one that sampled that a "
            "few tokens carry most of the weight, and the gradient is as noisy as that of a much smaller batch.",
            evidence=(
                Evidence(
                    f"effective sample size {last.median:.0%} of the tokens (median of {self.steps} steps)",
                    last.span,
                    {"ess": last.median},
                ),
            ),
            plot=Plot(("ess", "kl_proximal"), ess.span),
            try_=(
                "fewer steps on one batch: `update.epochs`, `update.minibatches`; or a smaller `settings.lr`",
                "cap the weight and keep the gradient, as `cispo` does, or one ratio for a completion, as `gspo` does",
                "end an update when the policy has moved enough: `update.kl_stop`",
            ),
        )


@dataclass(frozen=True)
class ClippingEverywhere(Check):
    """Clipping binds on nearly all tokens: hardly any has a gradient left.

    `clip_low` + `clip_high` (where they are not told apart `clip_share`), the share of tokens whose gradient a bound
    stops, has a median of at least `share` over the last `steps` steps.

    Attributes:
        share: of the tokens, at least.
        steps: how many last steps are looked at.
    """

    share: float = 0.4
    steps: int = 10

    name = "clipping-everywhere"
    needs = ("clip_share|clip_low|clip_high",)
    explained_by = ("step-too-large", "sampler-mismatch", "stale-rollouts")

    def __call__(self, log: RunLog) -> Finding | None:
        clipped = _clipped(log)
        last = clipped.last(self.steps)
        if len(last) < self.steps or last.median < self.share:
            return None
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(last.median / self.share, clipped.held(lambda v: v >= self.share, self.steps)),
            says="Clipping binds on nearly all tokens: the policy is outside its trust region most of the time, and "
            "most of what was sampled does not teach.",
            evidence=(
                Evidence(
                    f"{last.median:.0%} of the tokens are clipped (median of {self.steps} steps)",
                    last.span,
                    {"clipped": last.median},
                ),
            ),
            plot=Plot(("clip_low", "clip_high"), clipped.span),
            try_=(
                "fewer steps on one batch: `update.epochs`, `update.minibatches`; or a smaller `settings.lr`",
                "wider bounds: `objective.clip.low`, `objective.clip.high`; those of `gspo` are for ratios of whole "
                "completions and far too narrow for tokens",
                "keep every token's gradient and cap its weight, as `cispo` does",
            ),
        )


@dataclass(frozen=True)
class ClippingNever(Check):
    """Clipping binds on no token although the policy moves between steps on the same batch, and the score stands still.

    In runs with at least 2 optimizer steps a batch (`updates`; with one the ratio is 1 and nothing can be clipped),
    `clip_low` + `clip_high` is at most `share` in every one of the last `steps` steps, and the score does not rise over
    them.

    Attributes:
        share: of the tokens, at most.
        steps: how many last steps are looked at.
    """

    share: float = 1e-5
    steps: int = 30

    name = "clipping-never"
    needs = ("clip_share|clip_low|clip_high", "updates")
    explained_by = ("step-too-small", "no-signal", "dead-reward", "entropy-collapse", "early-saturation")

    def __call__(self, log: RunLog) -> Finding | None:
        clipped, updates = _clipped(log), series(log, "updates").last(self.steps)
        last = clipped.last(self.steps)
        if len(last) < self.steps or updates.median < 2 or float(last.values.max()) > self.share:
            return None
        if learns(log, since=last.span[0]) or learns(log):
            return None
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(1.0, clipped.held(lambda v: v <= self.share, self.steps)),
            says="Clipping binds on no token at all while the score stands still: the trust region is never reached, "
            "so steps could be larger.",
            evidence=(
                Evidence(
                    f"no token clipped in {self.steps} steps of {updates.median:.0f} updates each",
                    last.span,
                    {"clipped": float(last.values.max()), "updates": updates.median},
                ),
            ),
            plot=Plot(("clip_low", "clip_high", "kl_proximal"), clipped.span),
            try_=(
                "a larger `settings.lr`, two to five times",
                "more steps on one batch: `update.epochs`, `update.minibatches`",
                "narrower bounds, if they were set wide on purpose: `objective.clip.low`, `objective.clip.high`",
            ),
        )


@dataclass(frozen=True)
class SamplerMismatch(Check):
    """Sampler and trainer disagree about what was sampled: the gradient is that of another policy.

    Over the last `steps` steps the median `gap_mean`, the absolute difference of the two log-probabilities of a token,
    is at least `nats`; or the median `gap_outside`, the share of tokens more than a tenth likelier or less likely to
    the trainer, is at least `outside`. (Computation in bfloat16 makes about 0.03 nats.)

    Attributes:
        nats: mean difference, at least.
        outside: share of tokens, at least.
        steps: how many last steps are looked at.
    """

    nats: float = 0.1
    outside: float = 0.15
    steps: int = 5

    name = "sampler-mismatch"
    needs = ("gap_mean|gap_outside",)
    explained_by = ("stale-rollouts",)

    def __call__(self, log: RunLog) -> Finding | None:
        limits: Mapping[str, float] = {"gap_mean": self.nats, "gap_outside": self.outside}
        last = {name: series(log, name).last(self.steps) for name in limits}
        beyond = {
            name: part.median / limits[name]
            for name, part in last.items()
            if len(part) >= self.steps and part.median >= limits[name]
        }
        if not beyond:
            return None
        name = max(beyond, key=lambda each: beyond[each])
        part, whole = last[name], series(log, name)
        size = f"{part.median:.2g} nats a token" if name == "gap_mean" else f"{part.median:.0%} of the tokens"
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(beyond[name], whole.held(lambda v: v >= limits[name], self.steps)),
            says="Sampler and trainer give the same tokens different probabilities: the completions come from another "
            "distribution than the one that is trained.",
            evidence=(
                Evidence(f"they differ by {size} (median of {self.steps} steps)", part.span, {name: part.median}),
            ),
            plot=Plot(("gap_mean", "gap_p95", "kl_sampler"), whole.span),
            try_=(
                "see that the sampler takes the new weights, and its precision and quantization: `settings.sampler`, "
                "`settings.dtype`",
                "let both apply the same temperature and no penalties or truncation: `settings.temperature`",
                "see that both get the same prompt tokens (chat template, special tokens): `settings.chat`",
                "sample in the process that trains: `settings.sampler` = local",
            ),
        )


@dataclass(frozen=True)
class StaleRollouts(Check):
    """Completions come from weights that are long gone.

    Either the weights they were sampled from never change: over at least `steps` steps with kept completions (of which
    at most 24 are read) all have one version, although the policy moves (`update_norm` above 0, where it is known). Or
    they lag: the median `version_lag` of the last `steps` steps is at least `lag`.

    Attributes:
        lag: versions behind the newest weights, at least.
        steps: that must show it.
    """

    lag: float = 4.0
    steps: int = 5

    name = "stale-rollouts"
    needs = ("completions.version|version_lag",)

    def __call__(self, log: RunLog) -> Finding | None:
        return self._frozen(log) or self._lagging(log)

    def _frozen(self, log: RunLog) -> Finding | None:
        seen = {step: [row.version for row in log.rollouts.rows(step)] for step in log.rollouts.spread(24)}
        versions = {step: {v for v in found if v is not None} for step, found in seen.items()}
        steps = [step for step, found in versions.items() if found]
        moves = series(log, "update_norm").last(self.steps)
        if len(steps) < self.steps or len(set().union(*(versions[step] for step in steps))) > 1:
            return None
        if steps[-1] - steps[0] < self.steps - 1 or (len(moves) and float(moves.values.max()) <= 0):
            return None
        (version,) = versions[steps[0]]
        said = f"every completion from step {steps[0]} to {steps[-1]} was sampled from version {version} of the weights"
        says = (
            "The sampler never gets the new weights: all completions come from the same old ones, whatever is learnt."
        )
        support = (steps[-1] - steps[0] + 1) / self.steps
        evidence = Evidence(said, (steps[0], steps[-1]), {"version": float(version)})
        return self._finding(says, evidence, sureness(2.0, support))

    def _lagging(self, log: RunLog) -> Finding | None:
        lag = series(log, "version_lag")
        last = lag.last(self.steps)
        if len(last) < self.steps or last.median < self.lag:
            return None
        says = "The rollouts are stale: they were sampled many updates ago, and ratios have to bridge the distance."
        said = f"{last.median:.0f} versions behind the newest weights (median of {self.steps} steps)"
        sure = sureness(last.median / self.lag, lag.held(lambda v: v >= self.lag, self.steps))
        return self._finding(says, Evidence(said, last.span, {"version_lag": last.median}), sure)

    def _finding(self, says: str, evidence: Evidence, sure: str) -> Finding:
        return Finding(
            name=self.name,
            severity="critical",
            sure=sure,  # type: ignore[arg-type]
            says=says,
            evidence=(evidence,),
            plot=Plot(("version_lag", "kl_sampler", "ess"), evidence.steps),
            try_=(
                "see that weights reach the sampler after each step: its log, `settings.sampler`, "
                "`settings.sampler_folder`; with LoRA, that the adapter is loaded anew",
                "hand over weights more often, or hold fewer batches in flight",
                "where staleness is wanted, cap the weights of old tokens: `cispo`",
            ),
        )


def _clipped(log: RunLog) -> Series:
    """Share of tokens that a bound stops, of whichever bounds are logged."""
    whole = series(log, "clip_share")
    if len(whole):
        return whole
    parts: Sequence[np.ndarray] = [log.metric(name) for name in ("clip_low", "clip_high") if name in log.metrics]
    if not parts:
        return Series("clipped", np.zeros(0, int), np.zeros(0))
    stacked = np.stack(parts)
    known = np.isfinite(stacked).any(axis=0) & (log.steps > 0)
    return Series("clipped", log.steps[known], np.nansum(stacked, axis=0)[known])

"""Whether a sampler elsewhere draws from the policy, and says so: its log-probabilities against the policy's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float

from melior.diagnostics import outside_share
from melior.engines.protocol import Drawn, Order
from melior.errors import UserError
from melior.policies.policy import TextPolicy
from melior.trajectories import Trajectories

# Mean difference in nats beyond which two models do not compute the same distribution; bfloat16 makes about 0.03.
FOREIGN = 0.3
# Share of sampled tokens that may be more than a tenth likelier or less likely to the trainer.
WARN_SHARE = 0.1
CHECKS = (
    "check that it takes the weights (its log, the versions of the tokens), its dtype and quantization, that it draws "
    "at the run's temperature without penalties of its own, and that both see the same prompt (chat template, special "
    "tokens); docs/samplers.md says more"
)


def check_agreement(policy: TextPolicy, order: Order, drawn: Drawn, who: str) -> tuple[str, ...]:
    """Compares the probe's log-probabilities with the policy's; returns a warning when they differ much.

    Raises:
        UserError: they are those of temperature 1, or of another model.
    """
    present = torch.arange(drawn.sampled.tokens.shape[1]) < drawn.sampled.length[:, None]
    own = _scored(policy, order, drawn, present, policy.temperature)
    gap = _mean_gap(own, drawn.sampled.logp, present)
    if order.temperature != 1:
        raw = _mean_gap(_scored(policy, order, drawn, present, 1.0), drawn.sampled.logp, present)
        if raw < gap / 2:
            raise UserError(
                f"{who} returns log-probabilities at temperature 1 (mean difference {raw:.2g} nats) although it draws "
                f"at {order.temperature:g} ({gap:.2g} nats); start vLLM with --logprobs-mode processed_logprobs, or "
                "use --temperature 1"
            )
    if gap > FOREIGN:
        raise UserError(
            f"after taking the weights, {who} gives its tokens log-probabilities that differ from the policy's by "
            f"{gap:.2g} nats on average, so it samples from another distribution: {CHECKS}"
        )
    share = float(outside_share(own, drawn.sampled.logp, present))
    return (warning(who, share),) if share > WARN_SHARE else ()


def gap_warning(figures: Mapping[str, float], who: str) -> str:
    """A sentence when the figures of a step show a large gap between sampler and trainer, else nothing."""
    share = figures.get("gap_outside", 0.0)
    return warning(who, share) if share > WARN_SHARE else ""


def warning(who: str, share: float) -> str:
    """What a share of tokens outside says, and what to look at."""
    return (
        f"sampler and trainer disagree: {share:.0%} of the tokens that {who} drew are more than a tenth likelier or "
        f"less likely to the trainer; {CHECKS}"
    )


def _mean_gap(
    own: Float[torch.Tensor, "B T"], other: Float[torch.Tensor, "B T"], present: Bool[torch.Tensor, "B T"]
) -> float:
    return float((own - other).abs()[present].mean())


def _scored(
    policy: TextPolicy, order: Order, drawn: Drawn, present: torch.Tensor, temperature: float
) -> Float[torch.Tensor, "B T"]:
    """The policy's own log-probabilities of what was drawn, at a temperature."""
    prompts = tuple(prompt for prompt in order.prompts for _ in range(order.n))
    group = torch.arange(len(order.prompts)).repeat_interleave(order.n)
    batch = Trajectories(present, group, prompts, tokens=drawn.sampled.tokens)
    batch, usual = batch.column(length=drawn.sampled.length), policy.temperature
    policy.temperature = temperature
    try:
        with torch.no_grad():
            return policy.evaluate(batch).logp.cpu()
    finally:
        policy.temperature = usual

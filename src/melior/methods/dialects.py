"""GRPO as other libraries read it in 2026, so that `melior diff grpo trl:grpo` can show the difference."""

from __future__ import annotations

from melior.advantages import GroupRelative
from melior.method import Entry
from melior.methods.group_relative import GRPO
from melior.objectives import Clip, TokenMean

TRL_GRPO = Entry(
    GRPO.record.but("trl:grpo", advantage=GroupRelative(eps=1e-4), objective=Clip(), aggregate=TokenMean()),
    paper=GRPO.paper,
    track="dialect",
    evidence="TRL 1.16, released code: default loss type, epsilon, ddof and coefficients",
    problem="GRPO as TRL's defaults have it.",
    move="Mean over all tokens of the optimization step, epsilon 1e-4, no KL term.",
    formula="loss = -min(rho A, clip(rho, 0.8, 1.2) A), mean over all tokens",
    use_when="A TRL run should be reproduced.",
    beware="TRL's KL term, when turned on, is k3 multiplied by the ratio: ReferenceKL(ratio=TokenRatio()).",
    settings={"lr": 1e-6, "n": 8, "temperature": 1.0},
)

VERL_GRPO = Entry(
    GRPO.record.but(
        "verl:grpo", advantage=GroupRelative(single="reward"), objective=Clip(dual=3.0), aggregate=TokenMean()
    ),
    paper=GRPO.paper,
    track="dialect",
    evidence="verl 0.9, released code: default loss aggregation, clips, epsilon and the group of one",
    problem="GRPO as verl's defaults have it.",
    move="Mean over all tokens, dual clip 3 for negative advantages, no KL term; a group of one keeps its reward.",
    formula="loss = -min(rho A, clip(rho, 0.8, 1.2) A), at most 3 |A| where A < 0, mean over all tokens",
    use_when="A verl run should be reproduced.",
    beware="A group of one learns from its raw reward: r / (1 + eps).",
    settings={"lr": 1e-6},
)

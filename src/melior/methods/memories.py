"""Methods whose baseline is remembered rather than sampled."""

from __future__ import annotations

from melior.advantages import SiblingBaseline
from melior.memories import RidgeProbe
from melior.method import Entry, Paper
from melior.methods.group_relative import GRPO
from melior.objectives import Clip, TokenMean

POISE = Entry(
    GRPO.record.but(
        "poise",
        advantage=SiblingBaseline("prediction"),
        objective=Clip(),
        aggregate=TokenMean(),
        memory={"probe": RidgeProbe()},
        pins={"n": 2},
    ),
    paper=Paper(
        "Your Language Model is Its Own Critic: Reinforcement Learning with Value Estimation from Actor's Internal "
        "States",
        "Choi, Lim et al.",
        2026,
        "2605.07579",
    ),
    track="lm-credit",
    evidence="code and its README; the scale of the ridge penalty and the token mean are inferred. The features are "
    "the answer's hidden state and entropy: the prompt's hidden state, the entropies of reasoning and answer apart, "
    "and probes for single domains are left out",
    problem="A baseline costs GRPO many answers to each prompt, and PPO a second network.",
    move="Two answers a prompt: a ridge regression on the policy's own hidden states and entropy predicts the reward, "
    "and each answer is judged against the prediction for its sibling, which knows nothing of its own tokens.",
    formula="A_1 = r_1 - g(z_2), A_2 = r_2 - g(z_1), g(z) = clip(w z + b, 0, 1);  (w, b) minimize sum (w z + b - y)^2 "
    "+ 100 |w|^2 over the buffer of pairs (z_1, r_2), (z_2, r_1)",
    use_when="Answers are expensive, prompts are many, and rewards lie between 0 and 1.",
    beware="Predictions are clipped to 0..1: rescale other rewards. Two equal rewards still teach something. The first "
    "16 steps are RLOO while the probe's buffer fills, so short runs see nothing of it. An answer without a sibling "
    "has no baseline at all.",
    settings={"prompts": 256},
)

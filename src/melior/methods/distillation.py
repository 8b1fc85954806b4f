"""Methods that learn from another model's distributions instead of rewards."""

from __future__ import annotations

from melior.method import Entry, Method, Paper
from melior.objectives import Divergence, TokenMean
from melior.parts import AsIs, Scorer
from melior.rewards import Sum
from melior.rollouts import Group, TrustBlend
from melior.updates import Gradient

TRB = Entry(
    Method(
        "trb",
        rollout=Group(blend=TrustBlend(eps=0.05, anneal=25)),
        reward=Sum(),
        advantage=AsIs(),
        objective=1.0 * Divergence("teacher", k=16),
        aggregate=TokenMean(),
        update=Gradient(),
        scorers={"teacher": Scorer(weights="")},
    ),
    paper=Paper(
        "Trust-Region Behavior Blending for On-Policy Distillation", "Plyusov, Gorbatovski et al.", 2026, "2605.31159"
    ),
    track="distillation",
    evidence="paper text; the number of halvings of the bisection is a guess",
    problem="In on-policy distillation a weak student first visits prefixes so poor that the teacher's advice on them "
    "is worth little.",
    move="For the first steps sample from the distribution nearest to the teacher that is still within eps of the "
    "student, anneal eps to zero, and leave the loss as it is.",
    formula="mu = argmin KL(mu || T) with KL(mu || S) <= eps_k, mu ~ S^(1-b) T^b;  eps_k = 0.05 max(0, 1 - k / 25);  "
    "loss = sum over the student's 16 likeliest tokens v of S(v) (log S(v) - log T(v)), mean over tokens",
    use_when="A stronger model with the same tokenizer is at hand: --set scorers.teacher.weights=PATH. Rewards do not "
    "steer the training; they are only reported.",
    beware="The teacher must share the vocabulary, end-of-sequence token included. During the warm-up each token costs "
    "a pass of both models. The loss over 16 tokens is not renormalized and can be negative. eps = 0 or anneal = 0 is "
    "plain on-policy distillation; eps = inf samples the teacher.",
    settings={"lr": 1e-5, "weight_decay": 0.01, "warmup": 15, "prompts": 64, "n": 4, "max_tokens": 7168},
)

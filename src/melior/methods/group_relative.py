"""GRPO and the methods that change one or two of its parts."""

from __future__ import annotations

from melior.advantages import GroupDecoupled, GroupRelative, PrefixTree
from melior.curricula import MixedGroups
from melior.method import Entry, Method, Paper
from melior.objectives import (
    CappedWeight,
    Clip,
    ConstantLength,
    PolicyGradient,
    PromptMean,
    ReferenceKL,
    SegmentRatio,
    SequenceMean,
    TargetMatching,
    TokenMean,
)
from melior.rewards import OverlongPenalty, Sum
from melior.rollouts import Group
from melior.updates import Gradient

GRPO = Entry(
    Method(
        "grpo",
        rollout=Group(),
        reward=Sum(),
        advantage=GroupRelative(),
        objective=Clip() + 0.04 * ReferenceKL("k3"),
        aggregate=SequenceMean(),
        update=Gradient(),
    ),
    paper=Paper(
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "Shao, Wang et al.",
        2024,
        arxiv="2402.03300",
    ),
    track="lm-base",
    evidence="paper text; conventions of the released readings compared (see trl:grpo, verl:grpo)",
    problem="PPO needs a critic as large as the policy to know whether an answer was better than expected.",
    move="Sample several answers to each prompt and let their own mean and spread be the yardstick.",
    formula="A_i = (r_i - mean) / (std + eps);  loss = -min(rho A, clip(rho, 0.8, 1.2) A) + 0.04 k3, mean over tokens "
    "of each answer, then over answers",
    use_when="Answers can be scored by a rule and some of a group succeed while others fail.",
    beware="A group whose rewards are all equal teaches nothing. Dividing by the group's spread weighs very easy and "
    "very hard prompts up; the per-answer mean favors short right and long wrong answers (see dr-grpo).",
    settings={"lr": 1e-6, "n": 64, "max_tokens": 1024},
)

DR_GRPO = Entry(
    GRPO.record.but("dr-grpo", advantage=GroupRelative(scale=None), objective=Clip(), aggregate=ConstantLength()),
    paper=Paper("Understanding R1-Zero-Like Training: A Critical Perspective", "Liu, Chen et al.", 2025, "2503.20783"),
    track="lm-base",
    evidence="paper text",
    problem="GRPO's two divisions (by an answer's length, by the group's spread) bias it toward long wrong answers and "
    "toward prompts that are almost always solved or failed.",
    move="Drop both: center only, and divide by a constant length.",
    formula="A_i = r_i - mean;  loss = sum over tokens of the clipped surrogate / (answers * longest length allowed)",
    use_when="Answer length grows without the score, or prompts differ widely in difficulty.",
    beware="Steps are shorter than GRPO's by the missing divisions: tune the learning rate anew.",
    settings={"lr": 1e-6, "n": 8, "max_tokens": 3000},
)

DAPO = Entry(
    GRPO.record.but(
        "dapo",
        reward=Sum() | OverlongPenalty(),
        objective=Clip(0.2, 0.28),
        aggregate=TokenMean(),
        curriculum=MixedGroups(refill=10),
    ),
    paper=Paper(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "Yu, Zhang et al.", 2025, "2503.14476"
    ),
    track="lm-base",
    evidence="paper text; the bound on refill rounds follows the released code",
    problem="Long training with GRPO loses entropy, wastes rollouts on unanimous groups, and underweighs long answers.",
    move="A higher upper clip, a mean over all tokens, resampling until every group is mixed, a soft length penalty.",
    formula="loss = -min(rho A, clip(rho, 0.8, 1.28) A), mean over all tokens of the batch",
    use_when="Long reasoning, many prompts that are already solved or hopeless, entropy that collapses.",
    beware="A step costs up to refill + 1 rounds of sampling: compare at equal rollouts, not equal steps.",
    settings={"lr": 1e-6, "n": 16, "prompts": 512, "max_tokens": 20480},
)

GSPO = Entry(
    GRPO.record.but("gspo", objective=Clip(3e-4, 4e-4, ratio=SegmentRatio("row"))),
    paper=Paper("Group Sequence Policy Optimization", "Zheng, Liu et al.", 2025, "2507.18071"),
    track="lm-base",
    evidence="paper text",
    problem="Rewards belong to whole answers, but GRPO weighs and clips single tokens, whose ratios are noisy.",
    move="One ratio an answer: the exponential of its mean log-ratio, clipped in a very narrow band.",
    formula="s_i = exp(mean_t(log pi - log pi_old));  loss = -min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A)",
    use_when="Several updates a batch, mixture-of-experts models, long answers.",
    beware="On the first update the ratio is 1 and it equals GRPO without the KL term; the band must be retuned when "
    "answers are short.",
    settings={"n": 8},
)

CISPO = Entry(
    GRPO.record.but("cispo", objective=CappedWeight(high=5.0), aggregate=TokenMean()),
    paper=Paper(
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", "MiniMax", 2025, "2506.13585"
    ),
    track="lm-base",
    evidence="paper text; the cap is a hyper-parameter that the paper leaves open",
    problem="Clipping removes the gradient of exactly the rare tokens that turn an argument.",
    move="Cap the importance weight instead and keep every token's gradient.",
    formula="loss = -sg(min(rho, 1 + high)) A log pi, mean over all tokens",
    use_when="Several updates a batch and rare but decisive tokens.",
    beware="There is no lower bound, so stale negative tokens fade rather than stop.",
)

RGRA = Entry(
    GRPO.record.but("rgra", advantage=GroupRelative(eps=1e-4), objective=PolicyGradient() + 0.04 * ReferenceKL("k3")),
    paper=Paper(
        "Are complicated loss functions necessary for teaching LLMs to reason?",
        "Carrino, Sassella et al.",
        2026,
        "2603.18756",
    ),
    track="lm-objective",
    evidence="reconstructed from the abstract and overviews; sequence mean, the k3 term and its weight are inferred",
    problem="GRPO's ratio and clip are inherited from PPO; nobody asked whether they still do anything.",
    move="Ablate them: what is left is REINFORCE with the group's mean and spread as baseline and scale.",
    formula="loss = -(A log pi - 0.04 k3), mean over tokens of each answer, then over answers",
    use_when="One update a batch, strictly on-policy: simpler, and its gradient is GRPO's.",
    beware="With several updates a batch nothing holds the policy near where it sampled. Learning from above-average "
    "answers alone stalls: add `| PositiveOnly()` to the advantage to see it.",
    settings={"lr": 1e-6, "n": 8},
)

TWO_GRPO = Entry(
    GRPO.record.but("two-grpo", advantage=GroupRelative(ddof=0), objective=Clip(), pins={"n": 2}),
    paper=Paper("It Takes Two: Your GRPO Is Secretly DPO", "Wu et al.", 2025, "2510.00977"),
    track="lm-credit",
    evidence="paper text; ddof and epsilon of the training code are not stated (the analysis uses ddof 0)",
    problem="Large groups are expensive, and thought necessary to estimate the mean and spread of the rewards.",
    move="Two answers a prompt: what matters is the contrast of a better and a worse one, not the statistics.",
    formula="A = (+1, -1) when the rewards differ, (0, 0) when they are equal",
    use_when="Rollouts are the bottleneck; give the saved ones to more prompts.",
    beware="At equal steps it sees a quarter of the rollouts of n = 8: compare at equal rollouts. Only the sign of a "
    "reward difference counts, so dense rewards lose their size.",
    settings={"lr": 1e-6, "prompts": 256},
)

GDPO = Entry(
    GRPO.record.but("gdpo", advantage=GroupDecoupled(), objective=Clip()),
    paper=Paper(
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
        "Liu, Dong et al.",
        2026,
        "2601.05242",
    ),
    track="lm-credit",
    evidence="code (three ports read) and overviews",
    problem="Summed rewards hide which of them was earned, and a large one drowns a small one.",
    move="Standardize every reward within its group, sum them by weight, whiten the sums over the batch.",
    formula="s_i = sum_k w_k (r_ik - mean_gk) / (std_gk + eps);  A = (s - mean_B s) / (std_B s + eps)",
    use_when="Several rewards of different scale or difficulty (correct, well-formed, short).",
    beware="Weights act on normalized rewards. With one reward it is GRPO up to the last whitening.",
)

TEMPO = Entry(
    GRPO.record.but("tempo", advantage=PrefixTree(), objective=Clip()),
    paper=Paper(
        "Exploiting Tree Structure for Credit Assignment in RL Training of LLMs", "Tran, Yao & Yu", 2025, "2509.18314"
    ),
    track="lm-credit",
    evidence="overview pages and public reviews; epsilon and ddof assumed",
    problem="GRPO gives every token of an answer the same credit, although siblings often differ at a single token.",
    move="Merge the siblings into a prefix tree; where they part, the parting token earns the change in mean reward.",
    formula="A_it = (r_i - mean + V(s_{i,t+1}) - V(s_{i,t})) / (std + eps)",
    use_when="Siblings share long prefixes: small vocabularies, low temperature, early decisions.",
    beware="Its update is about twice as long as GRPO's: compare at equal step norm. Unique tails have no branches, so "
    "late decisions in small groups gain nothing.",
    also="Not Tempo (test-time training) nor the TEMPO time-series model.",
)

TPO = Entry(
    GRPO.record.but(
        "tpo",
        advantage=GroupRelative(eps=0.0, ddof=0, floor=1e-6),
        objective=TargetMatching(),
        aggregate=PromptMean(),
        update=Gradient(epochs=4),
    ),
    paper=Paper("Target Policy Optimization", "Kaddour", 2026, "2604.06159"),
    track="lm-objective",
    evidence="paper text and code",
    problem="A policy gradient mixes which answers should gain probability with how far the parameters move.",
    move="Compute the target over the sampled answers in closed form, then fit it by cross-entropy.",
    formula="q = softmax_i(log p_old + u / eta);  loss = -sum_i q_i log p_i, p the softmax of the answers' whole "
    "log-probabilities",
    use_when="A batch should be reused several times: the gradient vanishes once the target is met.",
    beware="Repeated answers are separate entries. Standardizing a tiny spread tilts as hard as a wide one.",
    settings={"lr": 1e-5, "n": 16, "prompts": 16},
    also="Not Target Preference Optimization nor Test-time Preference Optimization.",
)

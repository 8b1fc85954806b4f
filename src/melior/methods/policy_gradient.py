"""The roots: REINFORCE and its baselines, and PPO on tokens."""

from __future__ import annotations

from melior.advantages import GAE, LeaveOneOut, Reward, TerminalReward, Whiten
from melior.method import Entry, Method, Paper
from melior.objectives import Clip, PolicyGradient, SequenceMean, SequenceSum, TokenMean, ValueLoss
from melior.rewards import Sum
from melior.rollouts import Group, GroupWithGreedy
from melior.updates import Gradient

REINFORCE = Entry(
    Method(
        "reinforce",
        rollout=Group(),
        reward=Sum(),
        advantage=Reward(),
        objective=1.0 * PolicyGradient(),
        aggregate=SequenceMean(),
        update=Gradient(),
    ),
    paper=Paper(
        "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
        "Williams",
        1992,
        url="doi:10.1007/BF00992696",
    ),
    track="lm-base",
    evidence="textbook form",
    problem="Improve a policy from the score of what it did, without a model of why it scored.",
    move="Raise the log-probability of every action by the reward that followed.",
    formula="loss = -r log pi, mean over tokens of each answer, then over answers",
    use_when="As the root that others are compared with.",
    beware="Without a baseline its variance is large: set advantage.baseline to a remembered mean, or use rloo.",
)

RLOO = Entry(
    REINFORCE.record.but("rloo", advantage=LeaveOneOut(), aggregate=SequenceSum()),
    paper=Paper(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        "Ahmadian et al.",
        2024,
        "2402.14740",
    ),
    track="lm-base",
    evidence="paper text",
    problem="REINFORCE needs a baseline; a critic is expensive, and a mean that contains the answer itself is biased.",
    move="The mean reward of the other siblings is an unbiased baseline for each.",
    formula="A_i = r_i - mean of the others = G / (G - 1) (r_i - mean);  loss = -A log pi summed over tokens",
    use_when="One update a batch, unbiased, nothing to tune.",
    beware="The sum over tokens makes long answers step further: learning rates are smaller than for grpo.",
)

REMAX = Entry(
    REINFORCE.record.but(
        "remax", rollout=GroupWithGreedy(), advantage=Reward(baseline="greedy"), aggregate=SequenceSum()
    ),
    paper=Paper(
        "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
        "Li et al.",
        2023,
        "2310.10505",
    ),
    track="lm-base",
    evidence="paper text",
    problem="REINFORCE needs a baseline that costs less than a critic and works with one answer a prompt.",
    move="Subtract the reward of the greedy answer to the same prompt.",
    formula="A = r - r(greedy);  loss = -A log pi summed over tokens",
    use_when="Few answers a prompt.",
    beware="The greedy answer costs one more rollout a prompt.",
)

PPO_LM = Entry(
    REINFORCE.record.but(
        "ppo-lm",
        advantage=TerminalReward(beta=0.05) | GAE(gamma=1.0, lam=0.95) | Whiten(),
        objective=Clip() + 0.1 * ValueLoss(clip=0.2),
        aggregate=TokenMean(),
        update=Gradient(epochs=2, minibatches=2),
    ),
    paper=Paper("Proximal Policy Optimization Algorithms", "Schulman, Wolski et al.", 2017, "1707.06347"),
    track="lm-base",
    evidence="paper text; its form on tokens follows common practice",
    problem="A reward at the end of an answer says nothing about which token earned it.",
    move="A critic on the policy's own trunk predicts the return at each token; the clip keeps several updates safe.",
    formula="A = GAE(1, 0.95) on r at the last token minus 0.05 k1 on every token, whitened; "
    "loss = clipped surrogate + 0.1 clipped value loss",
    use_when="Long answers and enough data to learn a critic.",
    beware="Until the critic knows something it is REINFORCE with noise; group methods usually start faster.",
)

"""On-policy methods for environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melior.advantages import GAE, Whiten
from melior.method import Entry, Method, Paper
from melior.objectives import Clip, EntropyBonus, TokenMean, ValueLoss
from melior.parts import AsIs
from melior.rollouts.environments import VectorEnvs
from melior.updates import Gradient

# Environment -> (fields of the record and of the settings, where they were published).
TUNED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "CartPole-v1": (
        {
            "advantage": GAE(0.98, 0.8),
            "objective": Clip() + 1.0 * ValueLoss(),
            "update": Gradient(epochs=20, unit="step", each=Whiten(single="keep")),
            "envs": 8,
            "horizon": 32,
            "steps": 390,
            "lr": 1e-3,
            "schedule": "linear",
        },
        "Stable-Baselines3 zoo, ppo.yml (100,000 steps), with a constant clip",
    ),
}

PPO = Entry(
    Method(
        "ppo",
        rollout=VectorEnvs(),
        reward=AsIs(),
        advantage=GAE(0.99, 0.95),
        objective=Clip() + 0.5 * ValueLoss() + 0.01 * EntropyBonus(),
        aggregate=TokenMean(),
        update=Gradient(epochs=4, minibatches=4, unit="step", each=Whiten(single="keep")),
    ),
    paper=Paper("Proximal Policy Optimization Algorithms", "Schulman, Wolski et al.", 2017, "1707.06347"),
    track="control-onpolicy",
    evidence="released code compared (CleanRL, Stable-Baselines3 and its zoo, baselines); the paper from memory",
    problem="A policy gradient is good for one step: after it the data are no longer the policy's own, and a step that "
    "is too long can ruin the policy.",
    move="Reuse each batch for several epochs of minibatches, and stop paying for a probability ratio that has moved "
    "further than the clip.",
    formula="delta_t = r_t + gamma V(s') - V(s), A = GAE(gamma, lambda), whitened in each minibatch;  "
    "loss = -min(rho A, clip(rho, 0.8, 1.2) A) + 0.5 * (V - R)^2 / 2 - 0.01 H, mean over steps",
    use_when="Simulated steps are cheap: a robust first choice for any environment, discrete or continuous.",
    beware="An episode that a time limit cuts off is bootstrapped from its last observation, not treated as ended. "
    "Discount and lambda matter more than anything else: --tuned takes published ones. Observations and rewards are "
    "not normalized; actions are stored as drawn and clipped only for the environment.",
    settings={"envs": 4, "horizon": 128, "lr": 2.5e-4, "schedule": "linear"},
    tuned=TUNED,
    also="On tokens it is ppo-lm, with the very same clip.",
)

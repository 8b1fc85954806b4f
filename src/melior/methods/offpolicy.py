"""Off-policy methods for environments: records of the actor-critic frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melior.actor_critic.acting import Explore
from melior.actor_critic.losses import Ascend, TDError
from melior.actor_critic.networks import Actor, Critics
from melior.actor_critic.replay import Replay
from melior.frames import ActorCritic, Phase, Polyak, Step
from melior.method import Entry, Paper
from melior.policies.networks import MLP

# Environment -> (fields of the record and of the settings, where they were published).
TUNED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "Pendulum-v1": (
        {
            "nets": {
                "actor": Actor(MLP((64, 64), "relu", "uniform")),
                "q": Critics(MLP((64, 64), "relu", "uniform")),
            },
            "phases": (
                Phase(
                    (Step("q", TDError()), Step("actor", Ascend(), every=2), Polyak(("actor", "q"), every=2)), batch=128
                ),
            ),
            "act": Explore(start=1_000),
            "horizon": 1_000,
            "steps": 10,
            "lr": 1e-3,
        },
        "chosen for this library, nowhere published: seeds 1 to 3 reached -140, -132 and -227 after 7,000 steps",
    ),
}

TD3 = Entry(
    ActorCritic(
        "td3",
        nets={"actor": Actor(), "q": Critics()},
        phases=(Phase((Step("q", TDError()), Step("actor", Ascend(), every=2), Polyak(("actor", "q"), every=2))),),
        act=Explore(start=25_000),
        replay=Replay(),
    ),
    paper=Paper(
        "Addressing Function Approximation Error in Actor-Critic Methods",
        "Fujimoto, van Hoof and Meger",
        2018,
        "1802.09477",
    ),
    track="control-base",
    evidence="the authors' code for the update; the paper's abstract",
    problem="A policy that maximizes a learned value finds its errors: the critic's overestimates feed its own targets "
    "and grow.",
    move="Learn two critics and believe the smaller; smooth the target over nearby actions; let actor and targets move "
    "half as often as the critics.",
    formula="y = r + gamma (1 - terminated) min_k Q'_k(s', clip(mu'(s') + clip(0.2 N, -0.5, 0.5)));  "
    "L_Q = sum_k mean (Q_k(s,a) - y)^2;  every second update L_mu = -mean Q_1(s, mu(s)), targets <- 0.005 w + 0.995 w'",
    use_when="Actions are real vectors within bounds and environment steps are dear: it learns from each many times.",
    beware="The first 25,000 steps are random actions without learning: for short runs lower act.start. One update a "
    "step makes it slow in wall-clock time where steps are cheap. Episodes cut off by a time limit are bootstrapped.",
    settings={"steps": 1_000, "lr": 3e-4},
    tuned=TUNED,
    also="With one critic, no smoothing and no delay it is DDPG.",
)

"""Rule 9: the user's columns and objects reach every part of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from melior.advantages import GroupRelative
from melior.loops.iteration import iterate
from melior.methods.policy_gradient import REINFORCE
from melior.objectives import PolicyGradient, ReferenceKL
from melior.parts import AsIs, Memory, Rollout, Stats, Transform
from melior.prompts import Prompts
from melior.run import Run
from melior.trajectories import Trajectories
from melior.updates import Gradient
from toys import TinyNetwork, language_batch, run_of

PLAIN = REINFORCE.record.but("plain", reward=AsIs())


def unscored() -> Trajectories:
    """The random batch as a sampler leaves it, known to no scorer."""
    return language_batch().with_(proximal_logp=None, scores={}, advantage=None, features={})


@dataclass(frozen=True)
class Fixed(Rollout):
    """Hands the world's batch to one or two learners."""

    to: tuple[str, ...] = ("policy",)

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        return {name: run.sample(prompts, 1, name) for name in self.to}


# ---- rule 9: user columns reach every part


SEEN: dict[str, list[Any]] = {}


def note(where: str, batch: Trajectories) -> None:
    texts = [f"row {float(u):.6f}" for u in batch.columns["user"]]
    assert list(batch.objects["text"]) == texts, where
    SEEN.setdefault(where, []).extend(texts)


@dataclass(frozen=True)
class Watch(Transform):
    where: str

    def __call__(self, batch: Trajectories) -> Trajectories:
        note(self.where, batch)
        return batch


@dataclass(frozen=True)
class Given(Transform):
    """The user's column is the reward."""

    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch.with_(reward=batch.columns["user"])


@dataclass(frozen=True)
class WatchedLoss(PolicyGradient):
    def __call__(self, now: Any, batch: Trajectories) -> torch.Tensor:
        note("objective", batch)
        return super().__call__(now, batch)


@dataclass(frozen=True)
class WatchedMemory(Memory[int]):
    def init(self, run: Run) -> int:
        return 0

    def recall(self, state: int, batch: Trajectories) -> Trajectories:
        note("recall", batch)
        return batch

    def observe(self, state: int, batch: Trajectories, stats: Stats) -> int:
        note("observe", batch)
        return state + 1


class WatchedPolicy(TinyNetwork):
    def evaluate(self, batch: Trajectories, *rest: Any, **more: Any) -> Any:
        note("policy", batch)
        return super().evaluate(batch, *rest, **more)


def test_rule_9_user_columns_and_objects_reach_every_part():
    SEEN.clear()
    method = PLAIN.but(
        "watched",
        rollout=Fixed(),
        reward=Watch("reward") | Given(),
        teacher=Watch("teacher"),
        advantage=Watch("advantage") | GroupRelative(),
        objective=WatchedLoss() + ReferenceKL(),
        memory={"watch": WatchedMemory()},
        update=Gradient(epochs=2, minibatches=3, each=Watch("minibatch")),
    )
    run = run_of(method, WatchedPolicy(), unscored().with_(reward=None), rows_per_micro=2)
    run.learner().rows_per_micro = 2
    iterate(run)
    stages = {"reward", "teacher", "advantage", "objective", "recall", "observe", "minibatch", "policy"}
    assert set(SEEN) == stages
    assert all(set(SEEN[stage]) == set(unscored().objects["text"]) for stage in stages)
    assert len(SEEN["minibatch"]) == 22

"""The frames besides the line: phases of updates for control, solvers of finite problems, layouts of a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from melior.actor_critic.acting import Explore
from melior.actor_critic.losses import NetLoss
from melior.actor_critic.networks import Network
from melior.actor_critic.replay import Replay
from melior.parts import Part
from melior.settings import RunSettings

# ---- actor-critic: networks, and which of them is trained on what, how often


@dataclass(frozen=True)
class Step(Part):
    """One optimizer step of one network on one loss.

    Attributes:
        trains: the network's name in `ActorCritic.nets`.
        loss: what it descends.
        every: makes the step at every so many updates, the first at update `every`.
        lr: learning rate of this network; 0 takes the settings'.
    """

    trains: str
    loss: NetLoss
    every: int = 1
    lr: float = 0.0


@dataclass(frozen=True)
class Polyak(Part):
    """Target networks follow: target <- tau * network + (1 - tau) * target.

    Attributes:
        nets: the networks that have a target; it is a copy at the start, called NAME_target.
        tau: how far it moves.
        every: moves at every so many updates.
    """

    nets: tuple[str, ...]
    tau: float = 0.005
    every: int = 1


@dataclass(frozen=True)
class Phase(Part):
    """A stretch of updates: in each, the steps that are due are made in their order, all on the same transitions.

    Attributes:
        steps: what is trained and moved.
        batch: transitions in an update.
        updates: length of the phase; 0 goes on to the end of the run, as the last phase always does.
    """

    steps: tuple[Step | Polyak, ...]
    batch: int = 256
    updates: int = 0


@dataclass(frozen=True)
class ActorCritic(Part):
    """Control that learns from remembered transitions: networks, and phases of steps that train them.

    Attributes:
        name: what it is called.
        nets: name -> what builds the network; "actor" is the one that acts.
        phases: one after the other.
        act: how it explores; learning starts once `act.start` transitions are collected.
        replay: what is remembered.
    """

    world: ClassVar[str] = "actor-critic"

    name: str
    nets: Mapping[str, Network]
    phases: tuple[Phase, ...]
    act: Explore
    replay: Replay

    def but(self, name: str, **changes: Any) -> ActorCritic:
        """A new record that differs from this one in the named fields."""
        return replace(self, name=name, **changes)

    def phase(self, update: int) -> tuple[int, Phase]:
        """Number and record of the phase that an update, counted from 1, belongs to; the last one has no end."""
        for number, phase in enumerate(self.phases):
            if not phase.updates or update <= phase.updates:
                return number, phase
            update -= phase.updates
        return len(self.phases) - 1, self.phases[-1]

    def targets(self) -> tuple[str, ...]:
        """The networks that have a target."""
        steps = [step for phase in self.phases for step in phase.steps]
        return tuple(dict.fromkeys(name for step in steps if isinstance(step, Polyak) for name in step.nets))


@dataclass(frozen=True)
class ActorCriticSettings(RunSettings):
    """Settings of an actor-critic run. Widths of networks and sizes of updates belong to the record.

    Attributes:
        env: a Gymnasium id, or "path.py:function" that makes an environment.
        env_args: further arguments of the environment.
        envs: environments stepped side by side.
        horizon: steps of each environment in one step of the run.
        eval_episodes: episodes of one evaluation.
    """

    env: str = "Pendulum-v1"
    env_args: Mapping[str, Any] = field(default_factory=dict)
    envs: int = 1
    horizon: int = 1_000
    eval_episodes: int = 20
    lr: float = 3e-4
    clip_grad: float = 0.0


# ---- solvers of finite problems


@dataclass(frozen=True, eq=False)
class Solution:
    """A policy, its value, and how far from the best it can be.

    Attributes:
        policy: [S,A] probabilities of the actions in each state.
        value: [S] the solver's estimate of the best value.
        gap: a certificate: no state's best value differs from `value` by more.
        trace: the gap after each sweep.
    """

    policy: torch.Tensor
    value: torch.Tensor
    gap: float
    trace: tuple[float, ...]


class Solver(Part):
    """problem -> Solution."""

    world: ClassVar[str] = "solver"

    @property
    def name(self) -> str:
        """What it is called: ValueIteration -> value-iteration."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    def __call__(self, problem: Any) -> Solution:
        raise NotImplementedError("a Solver is a part of its own: write __call__(problem) -> Solution")


@dataclass(frozen=True)
class SolverSettings(RunSettings):
    """Settings of a solver's run, of which a step is a sweep.

    Attributes:
        problem: a named problem, such as "chain".
    """

    problem: str = "chain"


# ---- layouts of a micro-batch


class Layout(Part):
    """prompts, lengths, attention -> which rows of a micro-batch share one row of the forward pass.

    A layout changes what a step costs, never what it computes: policies apply it, and objectives cannot tell.
    """

    def __call__(
        self, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], attention: float
    ) -> list[list[int]] | None:
        raise NotImplementedError("a Layout is a part of its own: write __call__(prompts, lengths, attention) -> plan")

"""Control runs: settings become a `Run` in Gymnasium environments, stepped by the same iteration as language."""

from __future__ import annotations

import torch

from melior.errors import UserError
from melior.learner import Learner
from melior.loops.given import Given
from melior.loops.trainee import RunTrainee
from melior.method import Method
from melior.optimizers import make_optimizer
from melior.policies.control import control_policy
from melior.policies.networks import MLP, NetworkPolicy
from melior.run import Run
from melior.settings import ControlSettings
from melior.worlds.environments import EnvironmentWorld
from melior.worlds.making import seeds

SETTINGS = ControlSettings


def trainee(method: Method, settings: ControlSettings, given: Given | None = None) -> ControlTrainee:
    """A control run, ready for the outer loop."""
    return ControlTrainee(build(method, settings, given))


def build(method: Method, settings: ControlSettings, given: Given | None = None) -> Run:
    """A prepared run of the method in the environment that the settings name, or that is handed over.

    Raises:
        UserError: the method acts on text, or the environment is unknown or of a kind that is not understood.
    """
    if method.world != "environments":
        raise UserError(f"method '{method.name}' acts on text; in environments choose ppo, or rollout=VectorEnvs()")
    device = control_device(settings.device)
    world = EnvironmentWorld(settings, (given or Given()).env, device)
    learners = {"policy": _learner(method, settings, world, device, 0)}
    for number, (name, other) in enumerate(method.others.items(), 1):
        learners[name] = _learner(other, settings, world, device, number)
    run = Run(method, settings, world, learners)
    run.notes = tuple(filter(None, (world.environments.note,)))
    run.prepare()
    return run


class ControlTrainee(RunTrainee):
    """A control run as the outer loop sees it."""

    def preview(self, short: bool = False) -> str:
        """What the run is about to do, in words."""
        s, environments = self.run.settings, self.run.envs()
        policy: NetworkPolicy = self.run.learner().policy  # type: ignore[assignment]
        parameters = sum(p.numel() for p in self.run.learner().parameters())
        lines = [
            f"{self.run.method.name}: {s.steps} steps of {len(environments)} environments x {s.horizon} steps of "
            f"{environments.name} ({environments.spaces}); {policy.kind} policy, {parameters:,} trained parameters, "
            f"{s.optimizer} at {s.lr:g}, seed {s.seed}"
        ]
        if not short:
            lines += [f"{s.steps * s.horizon * len(environments):,} environment steps in all"]
            lines += [f"note: {note}" for note in self.run.notes]
        return "\n".join(lines)


def control_device(name: str) -> torch.device:
    """Where networks live; "auto" is the processor, which is faster for networks as small as control's."""
    return torch.device("cpu" if name == "auto" else name)


def _learner(
    method: Method, settings: ControlSettings, world: EnvironmentWorld, device: torch.device, number: int
) -> Learner:
    spaces, body = world.environments.spaces, MLP(settings.hidden, settings.activation)
    seed = seeds(settings.seed, "policy", number + 1)[number]
    policy = control_policy(spaces.observation, spaces.actions, spaces.discrete, body, seed).to(device)
    policy.prepare(method.needs())
    return Learner(
        policy,
        make_optimizer(dict(policy.named_parameters()), settings),
        method.aggregate,
        rows_per_micro=settings.rows_per_micro,
        clip_grad=settings.clip_grad,
    )

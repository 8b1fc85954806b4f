"""Actor-critic runs: act, remember, and train the networks on what is remembered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from melior.actor_critic.learner import NetLearner
from melior.actor_critic.replay import Transitions
from melior.errors import UserError
from melior.frames import ActorCritic, ActorCriticSettings
from melior.loops.control import control_device
from melior.loops.given import Given
from melior.storage.folder import RunFolder
from melior.updates.gradient import mean_stats
from melior.worlds.episodes import play
from melior.worlds.making import maker, name_of, seeds
from melior.worlds.stepping import Environments

SETTINGS = ActorCriticSettings


def trainee(method: ActorCritic, settings: ActorCriticSettings, given: Given | None = None) -> ActorCriticTrainee:
    """An actor-critic run, ready for the outer loop.

    Raises:
        UserError: the environment is unknown, or takes choices or action vectors without bounds.
    """
    return ActorCriticTrainee(method, settings, (given or Given()).env)


class ActorCriticTrainee:
    """One run of an `ActorCritic` record, as the outer loop sees it.

    A step is `horizon` steps of each of the `envs` environments. Once `act.start` transitions are collected, every
    further transition is followed by one update.

    Attributes:
        method: the resolved record.
        step: steps made so far.
        seen: transitions collected.
        learner: the networks and their optimizers.
        buffer: what is remembered.
        notes: what a user should know.
        intact: a failed `advance` leaves things half moved, so it stays False.
    """

    intact = False

    def __init__(self, method: ActorCritic, settings: ActorCriticSettings, env: Any = None) -> None:
        self.method, self.settings = method, settings
        self.step = self.seen = 0
        self.name = name_of(env, settings.env)
        self._device = control_device(settings.device)
        self._make = maker(settings.env if env is None else env, settings.env_args)
        self.environments = Environments(self._make(settings.envs), settings.seed, self.name, self._device)
        self.scale = ActionScale(self.environments, self.name)
        size = (self.environments.spaces.observation, self.environments.spaces.actions)
        self.rng = torch.Generator().manual_seed(seeds(settings.seed, "actor-critic", 1)[0])
        self.learner = NetLearner(method, settings, *size, self.rng).to(self._device)
        self.buffer = method.replay(*size)
        self.notes = tuple(filter(None, (self.environments.note,)))

    # ---- one step

    def advance(self) -> dict[str, float]:
        """Act, remember and learn, `horizon` times; the mean of each figure."""
        figures: list[dict[str, float]] = []
        self.learner.step = self.step
        began = self.seen
        for _ in range(self.settings.horizon):
            new = self.interact()
            for _ in range(min(new, self.seen - self.method.act.start)):
                batch = self.buffer.sample(self.method.phase(self.learner.updates + 1)[1].batch, self.rng)
                figures.append(self.learner.update(batch.to(self._device)))
        self.step += 1
        counts = {"env_steps": float(self.seen - began), "updates": float(len(figures))}
        return {**counts, **self._episodes(), **mean_stats(figures)}

    def interact(self) -> int:
        """One step of every environment, remembered; how many transitions that gave."""
        before, actions = self.environments.observation, self.environments.spaces.actions
        action = self.method.act(self.learner.nets, before, actions, self.seen, self.rng).cpu()
        stepped = self.environments.step(self.scale(action))
        new = Transitions(before, action, stepped.reward, stepped.reached, stepped.terminated, stepped.truncated).rows(
            stepped.real
        )
        self.buffer.add(new)
        self.seen += len(new)
        return len(new)

    def _episodes(self) -> dict[str, float]:
        ended = self.environments.finished()
        if not ended:
            return {"episodes": 0.0}
        mean_return, mean_length = (sum(each) / len(ended) for each in zip(*ended, strict=True))
        return {"episodes": float(len(ended)), "return": mean_return, "episode_length": mean_length}

    def evaluate(self) -> Mapping[str, Any]:
        """Returns of `eval_episodes` fresh episodes without exploration: "score", "return", "episode_length"."""

        def act(observation: torch.Tensor) -> torch.Tensor:
            return self.scale(self.method.act.best(self.learner.nets, observation).cpu())

        settings = self.settings
        return play(self._make, act, settings.eval_episodes, settings.seed, self.name, "test-0", self._device)

    def preview(self, short: bool = False) -> str:
        """What the run is about to do, in words."""
        s, spaces = self.settings, self.environments.spaces
        parameters = sum(p.numel() for net in self.learner.nets.values() for p in net.parameters() if p.requires_grad)
        transitions = s.steps * s.horizon * len(self.environments)
        lines = [
            f"{self.method.name}: {s.steps} steps of {len(self.environments)} environments x {s.horizon} steps of "
            f"{self.name} ({spaces}); {parameters:,} trained parameters, {s.optimizer} at {s.lr:g}, seed {s.seed}"
        ]
        if transitions <= self.method.act.start:
            start = self.method.act.start
            lines.append(f"nothing will be learned: act.start is {start:,}, and only {transitions:,} transitions come")
        if not short:
            lines += [f"{transitions:,} transitions and {max(transitions - self.method.act.start, 0):,} updates in all"]
            lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    # ---- remembering

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on: networks, optimizers, transitions, random numbers, environments."""
        return {
            "step": self.step,
            "seen": self.seen,
            "learner": self.learner.state(),
            "buffer": self.buffer.state(),
            "rng": self.rng.get_state(),
            "environments": self.environments.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put such a state back, bit for bit."""
        self.step, self.seen = int(state["step"]), int(state["seen"])
        self.learner.load_state(state["learner"])
        self.buffer.load_state(state["buffer"])
        self.rng.set_state(state["rng"])
        self.environments.load_state(state["environments"])

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """The same; the weights that `save` wrote are in the state too."""
        self.load_state(state)

    def save(self, folder: Path) -> None:
        """Writes `networks.safetensors` (plain torch layers) and `networks.json` (what they are)."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        nets = self.learner.nets.items()
        tensors = {f"{name}.{key}": t.contiguous() for name, net in nets for key, t in net.state_dict().items()}
        save_file(tensors, folder / "networks.safetensors")
        spaces = self.environments.spaces
        told = {
            "method": self.method.name,
            "observation": spaces.observation,
            "actions": spaces.actions,
            "low": self.scale.low.tolist(),
            "high": self.scale.high.tolist(),
            "networks": {name: repr(part) for name, part in self.method.nets.items()},
        }
        (folder / "networks.json").write_text(json.dumps(told, indent=2) + "\n")

    def record(self, folder: RunFolder) -> None:
        """Keeps no rollouts; what was seen is in the buffer."""

    def forget(self, folder: RunFolder) -> None:
        """There is nothing to remove."""


class ActionScale:
    """Actions in [-1, 1], as networks and buffer know them, to the environment's bounds."""

    def __init__(self, environments: Environments, name: str) -> None:
        spaces = environments.spaces
        if spaces.discrete or spaces.low is None or spaces.high is None:
            raise UserError(f"{name} takes choices; a deterministic actor needs action vectors (try ppo)")
        if not bool(spaces.low.isfinite().all() & spaces.high.isfinite().all()):
            raise UserError(f"{name} has action vectors without bounds; a deterministic actor needs bounds (try ppo)")
        self.low, self.high = spaces.low, spaces.high

    def __call__(self, unit: torch.Tensor) -> torch.Tensor:
        return self.low + (unit + 1) / 2 * (self.high - self.low)

"""The world of environments: policies act in Gymnasium environments side by side, and the return judges them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from melior.errors import UserError
from melior.parts import Blend
from melior.policies.control import load_control_policy
from melior.policies.networks import NetworkPolicy
from melior.policies.policy import Policy
from melior.prompts import Prompts
from melior.run import Run
from melior.settings import ControlSettings
from melior.trajectories import Trajectories
from melior.worlds.episodes import play
from melior.worlds.making import maker, name_of
from melior.worlds.stepping import Environments, Stepped


class EnvironmentWorld:
    """N environments that are stepped side by side and go on from batch to batch.

    A batch has one row for each environment and one column for each step: observations [N,T,d] in `prompt`, actions as
    they were drawn in `tokens`, `step_reward`, and the columns "terminated", "truncated", "cut" (either of them) and,
    for a policy with values, "value" and "next_value": the value of the observation that truly followed, before any
    new episode, and 0 after a termination.
    """

    def __init__(self, settings: ControlSettings, env: Any = None, device: torch.device | None = None) -> None:
        self.settings = settings
        self.name = name_of(env, settings.env)
        self.make = maker(settings.env if env is None else env, settings.env_args)
        self.environments = Environments(self.make(settings.envs), settings.seed, self.name, device)
        self._calls: dict[tuple[int, int], int] = {}

    # ---- acting

    def next_prompts(self, run: Run, n: int | None = None, split: str = "train") -> Prompts:
        """Environments begin their own episodes: there are no prompts."""
        return ()

    def sample(
        self,
        run: Run,
        prompts: Prompts = (),
        n: int = 1,
        policy: str = "policy",
        blend: Blend | None = None,
        greedy: bool = False,
    ) -> Trajectories:
        """`horizon` steps of every environment by the named learner's policy. Prompts and n mean nothing here.

        Random numbers are keyed by seed, step and call, and the environments go on where they were.
        """
        if blend is not None:
            raise UserError("a blend mixes next-token distributions; in environments the policy acts alone")
        actor: NetworkPolicy = run.learner(policy).policy  # type: ignore[assignment]
        key = (run.step, run.round)
        self._calls = {key: self._calls.get(key, 0) + 1}
        shape = (self.settings.horizon, len(self.environments))
        noise = actor.noise(shape, run.rng(f"actions-{self._calls[key]}"))
        seen, actions, logps, steps = [], [], [], []
        for each in noise:
            observation = self.environments.observation
            action, logp = actor.act(observation, each)
            if greedy:
                action = actor.best(observation)
            seen.append(observation)
            actions.append(action)
            logps.append(logp)
            steps.append(self.environments.step(action))
        rows = segments(torch.stack(seen, 1), torch.stack(actions, 1), torch.stack(logps, 1), steps)
        return with_values(rows, torch.stack([each.reached for each in steps], 1), actor) if actor.has_values else rows

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        """Environments reward every step as it is made: there is nothing left to judge."""
        return batch

    # ---- figures

    def evaluate(self, run: Run, split: str = "test", seed: int = 0) -> Mapping[str, Any]:
        """Returns of `eval_episodes` fresh episodes with the likeliest actions: "score", "return", "episode_length"."""
        actor: NetworkPolicy = run.learner().policy  # type: ignore[assignment]
        episodes, device = self.settings.eval_episodes, self.environments.device
        return play(self.make, actor.best, episodes, self.settings.seed, self.name, f"{split}-{seed}", device)

    def figures(self, run: Run, batch: Trajectories) -> Mapping[str, float]:
        """Steps taken, and mean return and length of the episodes that ended in this batch, if any did."""
        figures = {"env_steps": float(batch.mask.sum())}
        ended = self.environments.finished()
        figures["episodes"] = float(len(ended))
        if ended:
            figures["return"] = sum(total for total, _ in ended) / len(ended)
            figures["episode_length"] = sum(length for _, length in ended) / len(ended)
        return figures

    # ---- the rest of the protocol

    def load_policy(self, path: str) -> Policy:
        """See `World.load_policy`."""
        return load_control_policy(Path(path)).to(self.environments.device).frozen()

    def envs(self) -> Environments:
        """The environments."""
        return self.environments

    def state(self) -> Mapping[str, Any]:
        """The environments, as far as they can be saved (`Environments.note` says so where they cannot)."""
        return self.environments.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        self.environments.load_state(state)


def segments(observation: torch.Tensor, action: torch.Tensor, logp: torch.Tensor, steps: list[Stepped]) -> Trajectories:
    """One row for each environment of [N,T] steps; calls that only began an episode are masked out."""
    real = torch.stack([each.real for each in steps], 1)
    reward = torch.stack([each.reward for each in steps], 1)
    terminated = torch.stack([each.terminated for each in steps], 1)
    truncated = torch.stack([each.truncated for each in steps], 1)
    return Trajectories(
        mask=real,
        group=torch.arange(len(real), device=real.device),
        prompt=observation,
        tokens=action,
        behaviour_logp=logp,
        reward=reward.sum(1),
        step_reward=reward,
        columns={"terminated": terminated, "truncated": truncated, "cut": terminated | truncated | ~real},
    )


@torch.no_grad()
def with_values(batch: Trajectories, reached: torch.Tensor, policy: NetworkPolicy) -> Trajectories:
    """The batch with "value" of what was seen and "next_value" of what truly followed, 0 after a termination."""
    after = policy.values(reached)
    ended = batch.columns["terminated"]
    return batch.column(
        value=policy.values(batch.prompt), next_value=torch.where(ended, torch.zeros_like(after), after)
    )

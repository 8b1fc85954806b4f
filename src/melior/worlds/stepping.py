"""Environments side by side: one step of all of them, whatever their way of starting new episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from melior.errors import RunError, UserError
from melior.worlds.making import Spaces, gymnasium, seeds, spaces_of
from melior.worlds.restoring import load_env_state, restorable, save_env_state


@dataclass(frozen=True, eq=False)
class Stepped:
    """What one step of N environments brought.

    Attributes:
        reached: [N,d] the observation that truly followed, before any new episode began.
        reward: [N].
        terminated: [N] bool: the episode came to its own end.
        truncated: [N] bool: it was cut off (a time limit), and did not terminate at the same moment.
        real: [N] bool: False where the call took no action and only began a new episode.
    """

    reached: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    real: torch.Tensor

    @property
    def done(self) -> torch.Tensor:
        """[N] bool: the episode is over, either way."""
        return self.terminated | self.truncated


class Environments:
    """N environments that go on from batch to batch.

    All three ways of Gymnasium to begin new episodes are understood (`metadata["autoreset_mode"]`): on the next step
    (that step is not real), within the same step (the last observation is taken from the infos), and not at all (they
    are reset here). What is handed out is a copy: an environment may write its observations into one buffer.

    Every environment gets a seed of its own, from the run's seed and the stream.

    Attributes:
        observation: [N,d] what the policy acts on next.
        spaces: what the environments show and take.
        exact: whether `state` holds all of the environments, so that a resumed run goes on as if never stopped.
    """

    def __init__(
        self,
        envs: Any,
        seed: int,
        name: str = "environment",
        device: torch.device | None = None,
        stream: str = "train",
    ) -> None:
        self.envs, self.name, self._seed = envs, name, seed
        self.device = device or torch.device("cpu")
        self.spaces: Spaces = spaces_of(envs.single_observation_space, envs.single_action_space, name)
        mode = envs.metadata.get("autoreset_mode")
        self._modes = gymnasium().vector.AutoresetMode
        if mode is None:
            raise UserError(f"{name} does not say how it begins new episodes (metadata['autoreset_mode'])")
        self.mode = self._modes(mode)
        self.steps = 0
        self._pending = torch.zeros(0, dtype=torch.bool)  # environments that only begin an episode at the next step
        self.exact = self.mode == self._modes.DISABLED and restorable(envs)
        self._begin(stream)

    def __len__(self) -> int:
        return int(self.envs.num_envs)

    def step(self, actions: torch.Tensor) -> Stepped:
        """Send [N] choices or [N,a] vectors (clipped to the bounds) to the environments.

        Raises:
            RunError: an environment raised, or returned an observation or reward that is not finite.
        """
        try:
            shown, reward, terminated, truncated, infos = self.envs.step(self._sent(actions))
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise RunError(f"{self.name} failed at its step {self.steps + 1}: {text}") from error
        now = self._tensor(shown)
        over = np.asarray(terminated) | np.asarray(truncated)
        reached, real, pending = now, ~self._pending, torch.zeros_like(self._pending)
        if self.mode == self._modes.NEXT_STEP:
            pending = torch.as_tensor(over, device=self.device) & real
        elif over.any():
            reached, now = (self._same_step if self.mode == self._modes.SAME_STEP else self._reset)(now, over, infos)
        self.observation, self._pending = now, pending
        self.steps += 1
        end = torch.as_tensor(np.array(terminated, dtype=bool), device=self.device) & real
        cut = torch.as_tensor(np.array(truncated, dtype=bool), device=self.device) & real & ~end
        earned = torch.as_tensor(np.array(reward, dtype=np.float32), device=self.device)
        self._check(reached, earned)
        self._count(earned, end | cut, real)
        return Stepped(reached, torch.where(real, earned, torch.zeros_like(earned)), end, cut, real)

    def finished(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that ended since the last call."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def close(self) -> None:
        """Let the environments go."""
        self.envs.close()

    # ---- remembering

    def state(self) -> dict[str, Any]:
        """What goes on from batch to batch; "envs" holds the environments themselves where they allow it."""
        return {
            "steps": self.steps,
            "observation": self.observation,
            "returns": self._returns,
            "lengths": self._lengths,
            "envs": [save_env_state(env) for env in self.envs.envs] if self.exact else [],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state; environments that could not be saved begin new episodes."""
        self.steps = int(state["steps"])
        if not self.exact:
            self._begin(f"resume-{self.steps}")
            return
        if len(state["envs"]) != len(self):
            raise RunError(f"the checkpoint holds {len(state['envs'])} environments, and this run has {len(self)}")
        for env, saved in zip(self.envs.envs, state["envs"], strict=True):
            load_env_state(env, saved)
        self.observation = state["observation"].to(self.device)
        self._returns, self._lengths = state["returns"].clone(), state["lengths"].clone()

    @property
    def note(self) -> str:
        """What a resumed run should know; "" when it goes on exactly."""
        if self.exact:
            return ""
        return (
            f"{self.name} cannot be saved in the middle of an episode: after a resume every environment begins a new "
            "one, so later figures differ from those of a run that was never stopped"
        )

    # ---- inside

    def _begin(self, stream: str) -> None:
        shown, _ = self.envs.reset(seed=self._seeds(stream))
        self.observation = self._tensor(shown)
        self._pending = torch.zeros(len(self), dtype=torch.bool, device=self.device)
        self._returns = torch.zeros(len(self), dtype=torch.float64)
        self._lengths = torch.zeros(len(self), dtype=torch.long)
        self._ended: list[tuple[float, int]] = []

    def _seeds(self, stream: str) -> list[int] | int:
        each = seeds(self._seed, stream, len(self))
        return each if hasattr(self.envs, "envs") else each[0]  # array environments take a single seed

    def _sent(self, actions: torch.Tensor) -> np.ndarray:
        if self.spaces.discrete:
            return actions.cpu().numpy() + self.spaces.start
        assert self.spaces.low is not None and self.spaces.high is not None
        sent = torch.minimum(torch.maximum(actions.cpu(), self.spaces.low), self.spaces.high)
        space = self.envs.action_space
        return sent.numpy().astype(space.dtype).reshape(space.shape)

    def _tensor(self, shown: Any) -> torch.Tensor:
        copied = np.array(shown, dtype=np.float32).reshape(len(self), self.spaces.observation)
        return torch.from_numpy(copied).to(self.device)

    def _reset(self, now: torch.Tensor, over: np.ndarray, infos: Any) -> tuple[torch.Tensor, torch.Tensor]:
        shown, _ = self.envs.reset(options={"reset_mask": over})
        fresh = self._tensor(shown)
        return now, torch.where(torch.as_tensor(over, device=self.device)[:, None], fresh, now)

    def _same_step(self, now: torch.Tensor, over: np.ndarray, infos: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if "final_obs" not in infos:
            raise RunError(f"{self.name} began a new episode without telling the last observation (infos['final_obs'])")
        reached = now.clone()
        for i in over.nonzero()[0].tolist():
            last = np.array(infos["final_obs"][i], dtype=np.float32).reshape(-1)
            reached[i] = torch.from_numpy(last).to(self.device)
        return reached, now

    def _check(self, reached: torch.Tensor, reward: torch.Tensor) -> None:
        if bool(reached.isfinite().all()) and bool(reward.isfinite().all()):
            return
        bad = (~(reached.isfinite().all(-1) & reward.isfinite())).nonzero().flatten().tolist()
        raise RunError(f"{self.name} returned a value that is not finite at step {self.steps} (environment {bad[0]})")

    def _count(self, reward: torch.Tensor, done: torch.Tensor, real: torch.Tensor) -> None:
        here, ended = real.cpu(), done.cpu()
        self._returns += torch.where(here, reward.cpu().double(), torch.zeros(()))
        self._lengths += here
        for i in ended.nonzero().flatten().tolist():
            self._ended.append((float(self._returns[i]), int(self._lengths[i])))
            self._returns[i], self._lengths[i] = 0.0, 0

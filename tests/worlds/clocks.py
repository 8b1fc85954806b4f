"""A small environment whose every number is known: it shows (episode, steps taken in it)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Clock(gymnasium.Env):
    """Even episodes terminate after 3 steps, odd ones are cut off after 4; step t of an episode earns t.

    With `alias` every observation is the same buffer, written anew.
    """

    def __init__(self, alias: bool = False, box: bool = False, both: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if box else spaces.Discrete(3, start=5)
        self.alias, self.both, self.buffer = alias, both, np.zeros(2, np.float32)
        self.episode, self.time, self.sent = -1, 0, []

    def _seen(self) -> np.ndarray:
        self.buffer[:] = self.episode, self.time
        return self.buffer if self.alias else self.buffer.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.seeded = getattr(self, "seeded", seed)
        self.episode, self.time = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.sent.append(np.array(action))
        self.time += 1
        ended = self.episode % 2 == 0 and self.time == 3
        limit = self.episode % 2 == 1 and self.time == 4
        return self._seen(), float(self.time), ended, limit or (self.both and ended), {}


def side_by_side(mode: AutoresetMode, count: int = 2, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Clock(**options)] * count, copy=False, autoreset_mode=mode)

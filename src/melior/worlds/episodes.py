"""Whole episodes for evaluation, dealt out to environments beforehand: short ones count no more than long ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from melior.intervals import mean_interval
from melior.worlds.making import Make
from melior.worlds.stepping import Environments

Act = Callable[[torch.Tensor], torch.Tensor]


def play(
    make: Make, act: Act, count: int, seed: int, name: str, stream: str = "0", device: torch.device | None = None
) -> Mapping[str, Any]:
    """Mean return and length of `count` episodes, each with a 95 % interval: [value, low, high].

    Args:
        make: makes an environment; fresh ones are used, so that training is not disturbed.
        act: observations [n,d] -> actions.
        seed, stream: the episodes are the same where both are equal and the actions are.
        name: what to call the environment in errors.
    """
    envs = Environments(make(count), seed, name, device, f"evaluation-{stream}")
    left = np.array([count // len(envs) + (i < count % len(envs)) for i in range(len(envs))])
    returns: list[float] = []
    lengths: list[float] = []
    running, steps = np.zeros(len(envs)), np.zeros(len(envs))
    while left.any():
        stepped = envs.step(act(envs.observation))
        running += stepped.reward.cpu().numpy()
        steps += stepped.real.cpu().numpy()
        for i in stepped.done.cpu().numpy().nonzero()[0]:
            if left[i]:
                left[i] -= 1
                returns.append(float(running[i]))
                lengths.append(float(steps[i]))
            running[i] = steps[i] = 0
    envs.close()
    figures = {"return": list(mean_interval(returns)), "episode_length": list(mean_interval(lengths))}
    return {"score": figures["return"][0], "episodes": count, **figures}

"""Environments that can be put away in the middle of an episode and taken up again, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from melior.errors import RunError

# What an episode changes in Gymnasium's classic control problems; all else about them is fixed.
CHANGING = ("state", "steps_beyond_terminated", "last_u")
WRAPPERS = ("TimeLimit", "OrderEnforcing", "PassiveEnvChecker")


def restorable(envs: Any) -> bool:
    """Whether every sub-environment is a classic control problem under wrappers that are understood."""
    inner = getattr(envs, "envs", ())
    return bool(inner) and all(_understood(env) for env in inner)


def _understood(env: Any) -> bool:
    plain = type(env.unwrapped).__module__.startswith("gymnasium.envs.classic_control.")
    return plain and all(type(layer).__name__ in WRAPPERS for layer in _wrappers(env))


def _wrappers(env: Any) -> Iterator[Any]:
    while env is not env.unwrapped:
        yield env
        env = env.env


def save_env_state(env: Any) -> dict[str, Any]:
    """Physics, random numbers and elapsed steps of one environment."""
    core = env.unwrapped
    return {
        "changing": {name: _plain(getattr(core, name)) for name in CHANGING if hasattr(core, name)},
        "random": json.dumps(core.np_random.bit_generator.state),
        "elapsed": [layer._elapsed_steps for layer in _wrappers(env) if hasattr(layer, "_elapsed_steps")],
    }


def load_env_state(env: Any, state: Mapping[str, Any]) -> None:
    """Put such a state back into an environment of the same kind that has been reset before."""
    core = env.unwrapped
    known = {name for name in CHANGING if hasattr(core, name)}
    if not known <= set(state["changing"]):
        missing = ", ".join(sorted(known - set(state["changing"])))
        raise RunError(f"the checkpoint is of another environment: it lacks {missing} of {type(core).__name__}")
    for name in known:
        setattr(core, name, _restored(state["changing"][name]))
    core.np_random.bit_generator.state = json.loads(state["random"])
    limited = [layer for layer in _wrappers(env) if hasattr(layer, "_elapsed_steps")]
    for layer, elapsed in zip(limited, state["elapsed"], strict=True):
        layer._elapsed_steps = elapsed


def _plain(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value


def _restored(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    array = value.numpy().copy()
    return array if array.ndim else array[()]

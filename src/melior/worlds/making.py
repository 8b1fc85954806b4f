"""From what the user named or handed over to Gymnasium environments, and what their spaces mean for a policy."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from melior.errors import UserError, near

Make = Callable[[int], Any]  # count -> that many environments as one Gymnasium vector environment


def gymnasium() -> Any:
    """The package, or a sentence that says which extra brings it."""
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise UserError("environments need Gymnasium; install it with pip install 'melior[control]'") from error
    return gymnasium


def maker(env: Any, args: Mapping[str, Any] | None = None) -> Make:
    """A function that makes a number of fresh environments side by side, each time it is called.

    They leave new episodes to `Environments`. A vector environment is copied as it is, whatever the number.

    Args:
        env: a Gymnasium id, `path.py:function`, a function that makes an environment, an environment or a vector
            environment (both are copied).
        args: passed on to the constructor or function.

    Raises:
        UserError: an unknown id (near ones are named), a package that it lacks, or something that makes none.
    """
    gym = gymnasium()
    vector = gym.vector
    if isinstance(env, vector.VectorEnv):
        return lambda count: copy.deepcopy(env)
    single = _single(gym, env, dict(args or {}))

    def make(count: int) -> Any:
        return vector.SyncVectorEnv([single] * count, copy=False, autoreset_mode=vector.AutoresetMode.DISABLED)

    return make


def _single(gym: Any, env: Any, args: Mapping[str, Any]) -> Callable[[], Any]:
    if isinstance(env, gym.Env):
        return lambda: copy.deepcopy(env)
    if isinstance(env, str) and ".py:" in env:
        from melior.importing import load_object

        env = load_object(env)
    if callable(env):
        return lambda: _checked(gym, env(**args), env)
    if not isinstance(env, str):
        raise UserError(f"{env!r} is no environment: give a Gymnasium id, path.py:function or a gymnasium.Env")
    return lambda: _registered(gym, env, args)


def name_of(env: Any, fallback: str) -> str:
    """What to call an environment in errors and previews."""
    if env is None:
        return fallback
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else getattr(env, "__name__", type(env).__name__)


def _registered(gym: Any, name: str, args: Mapping[str, Any]) -> Any:
    try:
        return gym.make(name, disable_env_checker=True, **args)
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise UserError(f"there is no environment '{name}'{near(name, gym.registry)}") from error
    except gym.error.DependencyNotInstalled as error:
        raise UserError(f"environment '{name}' lacks a package: {' '.join(str(error).split())}") from error
    except (TypeError, gym.error.Error) as error:
        raise UserError(f"environment '{name}' cannot be made: {' '.join(str(error).split())}") from error


def _checked(gym: Any, made: Any, origin: Any) -> Any:
    if not isinstance(made, gym.Env):
        raise UserError(f"{getattr(origin, '__name__', origin)} must return a gymnasium.Env, got {type(made).__name__}")
    return made


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes.

    Attributes:
        shape: of one observation; policies see it flattened.
        actions: how many choices there are, or numbers in an action vector.
        discrete: whether actions are choices.
        start: the environment's number of the first choice.
        low, high: [actions] bounds of action vectors; infinite where there are none.
    """

    shape: tuple[int, ...]
    actions: int
    discrete: bool
    start: int = 0
    low: torch.Tensor | None = None
    high: torch.Tensor | None = None

    @property
    def observation(self) -> int:
        """Numbers in a flattened observation."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        taken = f"{self.actions} choices" if self.discrete else f"vectors of {self.actions} as actions"
        return f"{self.observation} numbers seen, {taken}"


def spaces_of(observation: Any, action: Any, name: str) -> Spaces:
    """The spaces of one environment.

    Raises:
        UserError: observations that are no arrays of numbers, or actions that are neither choices nor real vectors.
    """
    kinds = gymnasium().spaces
    if not isinstance(observation, kinds.Box):
        raise UserError(f"{name} shows {type(observation).__name__} observations; only arrays (Box) are understood")
    if isinstance(action, kinds.Discrete):
        return Spaces(tuple(observation.shape), int(action.n), True, int(action.start))
    if isinstance(action, kinds.Box):
        low = torch.as_tensor(action.low.reshape(-1), dtype=torch.float32)
        high = torch.as_tensor(action.high.reshape(-1), dtype=torch.float32)
        return Spaces(tuple(observation.shape), len(low), False, low=low, high=high)
    raise UserError(f"{name} takes {type(action).__name__} actions; only Discrete and Box are understood")


def seeds(seed: int, stream: str, count: int) -> list[int]:
    """A seed for each of `count` environments, from the run's seed and what they are for."""
    digests = (hashlib.blake2b(f"{seed}|{stream}|{i}".encode(), digest_size=4).digest() for i in range(count))
    return [int.from_bytes(digest, "big") >> 1 for digest in digests]

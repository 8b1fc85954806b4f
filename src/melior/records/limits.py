"""The values that settings may take, each with the sentence that refuses the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from melior.errors import UserError
from melior.settings import RunSettings


@dataclass(frozen=True)
class Limit:
    """An interval of numbers, closed unless said otherwise."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value lies inside."""
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        sides = []
        if self.low > -math.inf:
            sides.append(f"{'greater than' if self.open_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            sides.append(f"{'less than' if self.open_high else 'at most'} {self.high:g}")
        return " and ".join(sides)


_FROM_ZERO, _FROM_ONE, _POSITIVE = Limit(0), Limit(1), Limit(0, open_low=True)

LIMITS: Mapping[str, Limit] = {
    **dict.fromkeys(("steps", "seed", "warmup", "lr", "weight_decay", "clip_grad", "rows_per_micro"), _FROM_ZERO),
    **dict.fromkeys(("eval_every", "save_every", "reward_workers", "max_prompt_tokens", "top_k"), _FROM_ZERO),
    **dict.fromkeys(("lora", "lora_alpha", "eval_prompts", "budget_tokens", "budget_seconds"), _FROM_ZERO),
    **dict.fromkeys(("prompts", "n", "max_tokens", "eval_k", "keep"), _FROM_ONE),
    **dict.fromkeys(("envs", "horizon", "hidden", "eval_episodes"), _FROM_ONE),
    **dict.fromkeys(("temperature", "eps", "reward_timeout", "sampler_timeout"), _POSITIVE),
    "betas": Limit(0, 1, open_high=True),
    "eval_fraction": Limit(0, 1, open_high=True),
    "top_p": Limit(0, 1, open_low=True),
    "sampler_memory": Limit(0, 1, open_low=True),
    "keep_rollouts": Limit(-1),
}


def check_limits(settings: RunSettings) -> None:
    """Refuse the first setting that is out of bounds or not finite.

    Raises:
        UserError: "steps must be at least 0, got -3".
    """
    for f in fields(settings):
        value = getattr(settings, f.name)
        for each in value if isinstance(value, tuple) else (value,):
            _check(f.name, each)


def _check(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, got {value}")
    if name in LIMITS and isinstance(value, int | float) and not LIMITS[name].holds(value):
        greedy = "; to evaluate greedily give --top-k 1 (top_k=1)" if name == "temperature" and value == 0 else ""
        raise UserError(f"{name} must be {LIMITS[name]}, got {value:g}{greedy}")

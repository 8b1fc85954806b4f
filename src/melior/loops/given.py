"""What a caller hands over as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Given:
    """Objects given instead of being named in the settings; None where nothing was.

    Attributes:
        model: a transformers model, or (model, tokenizer).
        data, eval_data: rows.
        reward: reward functions, or names among them.
        env: an environment, a vector environment, or a function that makes one.
    """

    model: Any = None
    data: Any = None
    eval_data: Any = None
    reward: Sequence[Callable[..., Any] | str] | None = None
    env: Any = None

"""Bundled tasks, each a generator with a verifier and a held-out set, and the small bundled language model.

Those of the package reasoning-gym have its name before theirs: "reasoning-gym:chain_sum,max_terms=3".

>>> from melior.tasks import get_task
>>> get_task("arithmetic").rows("train", 1)[0]["prompt"]  # doctest: +SKIP
'27+58='
>>> get_task("lock:P=4,L=3").settings["max_tokens"]
3
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from melior.errors import UserError, near
from melior.tasks import arithmetic, countdown, format_arithmetic, lock, reasoning_gym, sorting
from melior.tasks.task import Reward, Row, Task, split_of

__all__ = ["MAKERS", "TASKS", "Reward", "Row", "Task", "bundled_model", "get_task", "split_of"]

MAKERS: Mapping[str, Callable[..., Task]] = MappingProxyType(
    {
        "arithmetic": arithmetic.task,
        "countdown": countdown.task,
        "sorting": sorting.task,
        "format-arithmetic": format_arithmetic.task,
        "lock": lock.task,
    }
)
TASKS: Mapping[str, Task] = MappingProxyType({name: make() for name, make in MAKERS.items()})


def get_task(name: str, **options: Any) -> Task:
    """The task of that name, with options in the name ("lock:P=16,L=6,V=4"), as keywords, or both (keywords win).

    Raises UserError for an unknown task or option, or an option whose value is not of its kind or range.
    """
    base, _, tail = name.partition(":")
    if base == reasoning_gym.FAMILY:
        dataset, _, rest = tail.partition(",")
        pairs = dict([*_options(name, rest), *((option, str(value)) for option, value in options.items())])
        return reasoning_gym.task(dataset.strip(), tuple(pairs.items()))
    make = MAKERS.get(base)
    if make is None:
        raise UserError(f"unknown task {base!r}{near(base, [*MAKERS, f'{reasoning_gym.FAMILY}:NAME'])}")
    allowed = inspect.signature(make).parameters
    chosen: dict[str, int] = {}
    for option, value in [*_options(name, tail), *options.items()]:
        if option not in allowed:
            hint = near(option, allowed) if allowed else "; it takes no options"
            raise UserError(f"task {base!r} has no option {option!r}{hint}")
        try:
            chosen[option] = int(str(value))
        except ValueError:
            raise UserError(f"task {base!r}: option {option}={value!r} is not a whole number") from None
    return make(**chosen) if chosen else TASKS[base]


def _options(name: str, tail: str) -> list[tuple[str, str]]:
    pairs = [item.partition("=") for item in tail.split(",")] if tail else []
    for option, equals, value in pairs:
        if not (option.strip() and equals and value.strip()):
            raise UserError(f"cannot read the options of task {name!r}; write them as 'lock:P=16,L=6,V=4'")
    return [(option.strip(), value.strip()) for option, _, value in pairs]


def bundled_model() -> Path:
    """Folder of the bundled language model and its tokenizer, in transformers' format."""
    return Path(__file__).parent / "bundled"

"""Tasks of the package reasoning-gym, each with its own generator and its own verifier."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
from dataclasses import MISSING, fields
from datetime import date, time
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_origin

from melior.errors import UserError, near
from melior.tasks.task import Row, Task

if TYPE_CHECKING:
    from melior.tasks.reasoning_gym_items import Items

FAMILY = "reasoning-gym"
ITEMS = 2**31  # items a data set is drawn from; their numbers seed numpy too, which takes less than 2**32
SHORTEST = 64  # tokens of a completion, at least
SCALARS = (int, float, bool, str, date, time)  # what fits between two commas
# Their verifiers run what the model wrote as a Python expression.
EVALUATING = (
    *("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"),  # by eval
    *(
        "countdown",
        "puzzle24",
        "polynomial_multiplication",
        "simple_integration",
        "intermediate_integration",
    ),  # by sympy
)
# Items of these are picked out of Python sets, whose order changes from process to process.
HASH_ORDERED = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")


@functools.lru_cache(maxsize=64)
def task(name: str, options: tuple[tuple[str, str], ...] = ()) -> Task:
    """A data set of reasoning-gym as a task, with values for the scalar fields of its configuration.

    A row is one item: `prompt` is its question, `answer` its reference (None where the package has none), and `task`
    and `item` say how to make it again, metadata included. Items have 2**31 numbers, and a prompt belongs to training
    or to the held-out set by its hash, so training never ends and no held-out prompt occurs in it.

    The one reward is `score`, the data set's own verifier: 0 to 1, with whatever partial credit it gives. A completion
    passes when it is 1. Verifiers that evaluate what they are given run in a process of their own, bounded in
    time and memory, which is no protection against a model that means harm.

    Args:
        name: as `reasoning_gym.create_dataset` takes it.
        options: (field, value as text) pairs.

    Raises:
        UserError: the package is missing, there is no such data set or field, or the data set refuses the value.
    """
    full, items = _items(name, options)
    from melior.tasks.reasoning_gym_items import score

    longest = max(len(items(number)["answer"] or "") for number in range(4))

    def generate(rng: random.Random) -> Row:
        number = rng.randrange(ITEMS)
        entry = items(number)
        return {"prompt": entry["question"], "answer": entry["answer"], "task": full, "item": number}

    return Task(
        name=full,
        summary=f"{name.replace('_', ' ')}, generated and judged by reasoning-gym",
        generate=generate,
        rewards={"score": score},
        outcome="score",
        isolated=name in EVALUATING,
        # A token is rarely shorter than a character; what is left over is for a sentence around the answer.
        settings={"prompts": 16, "n": 8, "max_tokens": SHORTEST * -(-(longest + SHORTEST // 2) // SHORTEST)},
    )


@functools.lru_cache(maxsize=64)
def items_of(full: str) -> Items:
    """The items of the task of that name, options included."""
    name, *options = full.removeprefix(f"{FAMILY}:").split(",")
    return _items(name, tuple((option, value) for option, _, value in (pair.partition("=") for pair in options)))[1]


# ---------------------------------------------------------------------------------------------------- names and options


@functools.lru_cache(maxsize=64)
def _items(name: str, options: tuple[tuple[str, str], ...]) -> tuple[str, Items]:
    """The full name of a task in its one spelling, and its items."""
    changed = _changed(name, _configuration(name), options)
    from melior.tasks.reasoning_gym_items import Items

    full = ",".join([f"{FAMILY}:{name}", *(f"{option}={_text(value)}" for option, value in changed.items())])
    return full, Items(name, changed, full)


def _configuration(name: str) -> Any:
    """The class of a data set's configuration."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(f"task '{FAMILY}:{name}' needs reasoning-gym; install it with: pip install 'melior[{FAMILY}]'")
    from melior.tasks.reasoning_gym_items import DATASETS

    if not name:
        raise UserError(f"name one of the {len(DATASETS)} data sets of reasoning-gym, such as '{FAMILY}:chain_sum'")
    if name not in DATASETS:
        raise UserError(f"reasoning-gym has no data set {name!r}{near(name, DATASETS)}")
    if name == "composite":
        raise UserError(f"task '{FAMILY}:composite' would need a list of data sets; name one of them instead")
    if name in HASH_ORDERED and os.environ.get("PYTHONHASHSEED") != "0":
        raise UserError(
            f"the items of '{FAMILY}:{name}' depend on the order of Python's sets, so that no run could be repeated or "
            "resumed; set the environment variable PYTHONHASHSEED=0 to use it"
        )
    return DATASETS[name][1]


def _changed(name: str, config: Any, options: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The options as values of their fields, in the order of the fields, without those that say the default."""
    from melior.records.coerce import coerce, field_types, members

    types = {field: kind for field, kind in field_types(config).items() if field not in ("seed", "size")}
    chosen: dict[str, Any] = {}
    for option, text in options:
        if option in ("seed", "size"):
            raise UserError(f"task '{FAMILY}:{name}' takes no {option}: rows follow the run's seed, without end")
        if option not in types:
            raise UserError(f"task '{FAMILY}:{name}' has no option {option!r}{near(option, types)}")
        kinds = [kind for kind in members(types[option]) if kind is not type(None)]
        if not all(kind in SCALARS or get_origin(kind) is Literal or _is_enum(kind) for kind in kinds):
            raise UserError(
                f"task '{FAMILY}:{name}': option {option!r} holds several values, which cannot be written here; "
                "it stays at its default"
            )
        chosen[option] = coerce(text, types[option], f"task '{FAMILY}:{name}': option {option}")
    defaults = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    return {field: chosen[field] for field in types if field in chosen and chosen[field] != defaults.get(field)}


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _text(value: Any) -> str:
    """A value as it is written in an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)

"""Tasks of the package reasoning-gym, each with its own generator and its own verifier."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import date, time
from enum import Enum
from typing import Any, Literal, get_origin

from melior.errors import UserError, near
from melior.tasks.task import Row, Task

FAMILY = "reasoning-gym"
ITEMS = 2**31  # items a data set is drawn from; their numbers seed numpy too, which takes less than 2**32
SHORTEST = 64  # tokens of a completion, at least
SCALARS = (int, float, bool, str, date, time)  # what fits between two commas
# Items of these are picked out of Python sets, whose order changes from process to process.
HASH_ORDERED = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")


@functools.lru_cache(maxsize=64)
def task(name: str, options: tuple[tuple[str, str], ...] = ()) -> Task:
    """A data set of reasoning-gym as a task, with values for the scalar fields of its configuration.

    A row is one item: `prompt` is its question, `answer` its reference (None where the package has none), and `task`
    and `item` say how to make it again, metadata included. Items have 2**31 numbers, and a prompt belongs to training
    or to the held-out set by its hash, so training never ends and no held-out prompt occurs in it.

    The one reward is `score`, the data set's own verifier: 0 to 1, with whatever partial credit it gives. A completion
    passes when it is 1.

    Args:
        name: as `reasoning_gym.create_dataset` takes it.
        options: (field, value as text) pairs.

    Raises:
        UserError: the package is missing, there is no such data set or field, or the data set refuses the value.
    """
    _, config = _registered(name)
    changed = _changed(name, config, options)
    full = ",".join([f"{FAMILY}:{name}", *(f"{option}={_text(value)}" for option, value in changed.items())])
    items = _Items(name, changed, full)
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
        # A token is rarely shorter than a character; what is left over is for a sentence around the answer.
        settings={"prompts": 16, "n": 8, "max_tokens": SHORTEST * -(-(longest + SHORTEST // 2) // SHORTEST)},
    )


def score(
    prompts: list[Any], completions: list[Any], *_: Any, task: list[str], item: list[int], **columns: Any
) -> list[float | None]:
    """The data set's own score of each completion, 0 to 1.

    It is given what stands in the last <answer>…</answer>, or else the whole completion, without white space around. A
    completion that the verifier cannot read, so that it raises an error, scores 0.
    """
    return [_score(text, name, int(number)) for text, name, number in zip(completions, task, item, strict=True)]


def _score(completion: str, name: str, number: int) -> float:
    from reasoning_gym.utils import extract_answer

    items = _items(name)
    answer = extract_answer(completion)
    entry = items(number)
    with _undisturbed(number):
        try:
            return float(items.dataset.score_answer(completion.strip() if answer is None else answer, entry))
        except Exception:
            # Several verifiers parse the text without a guard: int("no idea").
            return 0.0


class _Items:
    """The items of one data set with one configuration, by number."""

    def __init__(self, name: str, options: Mapping[str, Any], full: str) -> None:
        self.name, self.options = name, dict(options)
        self._made = functools.lru_cache(maxsize=4096)(self._make)
        with _undisturbed(0):
            try:
                self.dataset = self._create(0)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(f"task {full!r} cannot be made: {reason}") from error
        _items_by_name[full] = self

    def __call__(self, number: int) -> dict[str, Any]:
        """Question, answer and metadata of an item, the same in every process."""
        return self._made(number)

    def _create(self, seed: int) -> Any:
        import reasoning_gym

        return reasoning_gym.create_dataset(self.name, seed=seed, size=1, **self.options)

    def _make(self, number: int) -> dict[str, Any]:
        with _undisturbed(number):
            try:
                return dict(self.dataset[number])
            except IndexError:
                # A few prepare all their items beforehand; item 0 of one that begins at this seed is the same draw.
                return dict(self._create(number)[0])


_items_by_name: dict[str, _Items] = {}


def _items(full: str) -> _Items:
    if full not in _items_by_name:  # in a worker process, which knows the task by its rows alone
        from melior.tasks import get_task

        get_task(full)
    return _items_by_name[full]


@contextlib.contextmanager
def _undisturbed(seed: int) -> Iterator[None]:
    """Inside, the global random states are those of `seed` and nothing is printed; afterwards all is as before."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    before_numpy = numpy.random.get_state() if numpy else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(before_numpy)


# ---------------------------------------------------------------------------------------------------- names and options


def _registered(name: str) -> tuple[Any, Any]:
    """The class of a data set and of its configuration."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(f"task '{FAMILY}:{name}' needs reasoning-gym; install it with: pip install 'melior[{FAMILY}]'")
    with _undisturbed(0):  # it draws from the global generator when it is imported
        from reasoning_gym.factory import DATASETS
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
    return DATASETS[name]


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

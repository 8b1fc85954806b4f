"""Call one reward function on a batch of completions, and name the completion when it goes wrong.

The same code runs in this process and inside a worker process.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from melior.rewards.functions import REFERENCE_COLUMNS, RewardFunction, parameters_of, reference_of
from melior.rewards.watchdog import TimeUp, time_limit

# Not passed on as columns, as TRL does: the function gets its own `prompts`, `completions` and `completion_ids`.
_OWN_COLUMNS = ("prompt", "completion", "completion_ids")


@dataclass(frozen=True)
class RewardBatch:
    """What rewards are computed from: N completions, and for each its data row and its prompt.

    rows: N mappings, the columns of the data.
    prompts: N strings, or N lists of chat messages (`{"role": …, "content": …}`).
    completions: N strings, or N lists of messages: the text to judge, prefilled assistant text included. For a chat
        prompt, functions of TRL's signature get a string as one message of the assistant.
    completion_ids: N lists of the sampled token ids.
    trainer_state: an object with `global_step` and `max_steps`.
    """

    rows: Sequence[Mapping[str, Any]]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Any]
    trainer_state: Any = None

    def __post_init__(self) -> None:
        sizes = {name: len(getattr(self, name)) for name in ("rows", "prompts", "completions", "completion_ids")}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"a reward batch needs as many of each: {sizes}")

    def __len__(self) -> int:
        return len(self.completions)

    def single(self, index: int) -> RewardBatch:
        """The batch of the one completion at `index`."""
        at = slice(index, index + 1)
        return RewardBatch(
            self.rows[at], self.prompts[at], self.completions[at], self.completion_ids[at], self.trainer_state
        )

    def text(self, index: int) -> str:
        """The completion at `index` as plain text."""
        return text_of(self.completions[index])


@dataclass(frozen=True)
class Scores:
    """N values, and what the function reported besides.

    values: NaN where it returned None.
    extras: name to numbers, one for some rows (verl's style) or one a call (`log_metric`).
    columns: name to N values of any kind (`log_extra`).
    """

    values: list[float]
    extras: dict[str, list[float]] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)


class RewardFault(Exception):
    """A function went wrong: how (a phrase that follows its name), on which row (None: not known), out of time?"""

    def __init__(self, how: str, row: int | None, timed_out: bool = False) -> None:
        super().__init__(how)
        self.how, self.row, self.timed_out = how, row, timed_out


def text_of(completion: Any) -> str:
    """A completion as text: itself, or what the last message of the assistant says."""
    if isinstance(completion, str):
        return completion
    content = next((m.get("content") for m in reversed(completion) if m.get("role") == "assistant"), "")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])


def invoke(function: RewardFunction, batch: RewardBatch, limit_s: float = math.inf) -> Scores:
    """Score a batch. One call may take `limit_s` seconds; see `RewardFunction.style` for what one call is.

    Raises `RewardFault` when the function raises, takes too long, or returns what is not a reward.
    """
    if function.style == "trl":
        return _invoke_whole(function, batch, limit_s)
    values: list[float] = []
    extras: dict[str, list[float]] = {}
    call = _verl_call if function.style == "verl" else _verifier_call
    for index in range(len(batch)):
        try:
            with time_limit(limit_s):
                result = _finished(call(function, batch.rows[index], batch.text(index)))
        except (TimeUp, Exception) as error:
            if function.style == "verifier" and isinstance(error, ValueError):  # its own word on a bad reference
                raise RewardFault(f"cannot judge: {error}", index) from error
            raise _fault(error, index, limit_s, "") from error
        if isinstance(result, Mapping):
            for key, value in _extras(result).items():
                extras.setdefault(key, []).append(value)
            if "score" not in result:
                raise RewardFault(f"returned a dict without 'score' (it has: {', '.join(map(str, result))})", index)
            result = result["score"]
        values.append(_as_reward(result, index))
    return Scores(values, extras)


# ------------------------------------------------------------------------------------------ one call per completion


def _verifier_call(function: RewardFunction, row: Mapping[str, Any], text: str) -> Any:
    return function.call(text, reference_of(row, function.column))


def _verl_call(function: RewardFunction, row: Mapping[str, Any], text: str) -> Any:
    given = {
        "data_source": row.get("data_source", ""),
        "solution_str": text,
        "ground_truth": reference_of(row, None, ("ground_truth", *REFERENCE_COLUMNS)),
        "extra_info": row.get("extra_info"),
    }
    accepted, rest = parameters_of(function.call)
    arguments = {name: given.get(name, row.get(name)) for name in accepted if name in given or name in row}
    return function.call(**(given if rest else {}) | arguments)


def _extras(result: Mapping[str, Any]) -> dict[str, float]:
    """The numeric entries of a verl result besides its score; those that are not finite numbers are left out."""
    found = {}
    for key, value in result.items():
        if key != "score" and not isinstance(value, str):
            try:
                number = float(value)
            except (TypeError, ValueError):
                continue
            if math.isfinite(number):
                found[str(key)] = number
    return found


# ------------------------------------------------------------------------------------------ one call for the batch


def _invoke_whole(function: RewardFunction, batch: RewardBatch, limit_s: float) -> Scores:
    completions = _for_trl(batch)
    notebook = Notebook()
    try:
        arguments = _trl_arguments(function.call, batch, completions, notebook)
        with time_limit(limit_s):
            result = _finished(function.call(**arguments))
    except (TimeUp, Exception) as error:
        row = 0 if len(batch) == 1 else _worked_on(error.__traceback__, completions)
        if row is None and not function.batch:
            row = _first_failing(function, batch, limit_s)
        raise _fault(error, row, limit_s, f" for {len(batch)} completions" if len(batch) > 1 else "") from error
    values = [_as_reward(value, index) for index, value in enumerate(_as_list(result, len(batch)))]
    for name, column in notebook.columns.items():
        if len(column) != len(batch):
            raise RewardFault(f"gave log_extra {len(column)} values of {name!r} for {len(batch)} completions", None)
    return Scores(values, notebook.metrics, notebook.columns)


class Notebook:
    """What a function reports through the arguments `log_metric` and `log_extra` that TRL hands it."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, list[Any]] = {}

    def log_metric(self, name: str, value: float) -> None:
        """A number about the batch; one that is not finite is left out."""
        if math.isfinite(value):
            self.metrics.setdefault(str(name), []).append(float(value))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """One value for each completion."""
        self.columns.setdefault(str(column), []).extend(values)


def _for_trl(batch: RewardBatch) -> list[Any]:
    """The completions, for chat prompts as messages; fresh ones, since some functions change what they are given."""
    pairs = zip(batch.prompts, batch.completions, strict=True)
    return [text if isinstance(prompt, str) else _as_messages(text) for prompt, text in pairs]


def _as_messages(completion: Any) -> list[dict[str, Any]]:
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return [dict(message) for message in completion]


def _trl_arguments(
    call: Callable[..., Any], batch: RewardBatch, completions: list[Any], notebook: Notebook
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "prompts": [p if isinstance(p, str) else [dict(message) for message in p] for p in batch.prompts],
        "completions": completions,
        "completion_ids": [list(ids) for ids in batch.completion_ids],
        "trainer_state": batch.trainer_state,
        "log_metric": notebook.log_metric,
        "log_extra": notebook.log_extra,
    }
    accepted, rest = parameters_of(call)
    names = {name for row in batch.rows for name in row}
    columns = {name for name in names if name in accepted or (rest and name not in _OWN_COLUMNS)} - given.keys()
    wanted = {name: value for name, value in given.items() if rest or name in accepted}
    return wanted | {name: [row.get(name) for row in batch.rows] for name in sorted(columns)}


def _as_list(result: Any, size: int) -> list[Any]:
    if hasattr(result, "tolist"):  # an array or a tensor
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise RewardFault(f"returned a {type(result).__name__} for {size} completions; it must return a list", None)
    if len(result) != size:
        raise RewardFault(f"returned {len(result)} values for {size} completions", None)
    return list(result)


def _worked_on(trace: TracebackType | None, completions: Sequence[Any]) -> int | None:
    """The row whose completion a frame held in a local variable when it stopped, looking from the innermost out."""
    identities: dict[int, int] = {}
    for index, completion in enumerate(completions):
        messages = [] if isinstance(completion, str) else completion
        parts = [completion, *messages, *(message.get("content") for message in messages)]
        identities.update((id(part), index) for part in parts if part is not None)
    for frame, _ in reversed(list(traceback.walk_tb(trace))):
        rows = {identities[id(value)] for value in frame.f_locals.values() if id(value) in identities}
        if len(rows) == 1:
            return rows.pop()
    return None


def _first_failing(function: RewardFunction, batch: RewardBatch, limit_s: float) -> int | None:
    """The first completion with which the function fails alone; looks for `limit_s` at most, plus one such failure."""
    started = time.monotonic()
    for index in range(len(batch)):
        if time.monotonic() - started > limit_s:
            return None
        one = batch.single(index)
        try:
            with time_limit(limit_s):
                _finished(function.call(**_trl_arguments(function.call, one, _for_trl(one), Notebook())))
        except (TimeUp, Exception):
            return index
    return None


# ------------------------------------------------------------------------------------------ results and faults


def _as_reward(value: Any, row: int) -> float:
    """A float; NaN for None ("does not apply"). Booleans and the scalars of numpy and torch are numbers too."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        reward = float(value)
    except (TypeError, ValueError):
        raise RewardFault(
            f"returned a {type(value).__name__} ({shortened(str(value), 60)}), not a number", row
        ) from None
    if not math.isfinite(reward):
        raise RewardFault(f"returned {reward} (return None where the reward does not apply)", row)
    return reward


def _fault(error: BaseException, row: int | None, limit_s: float, what: str) -> RewardFault:
    if isinstance(error, TimeUp):
        return RewardFault(f"took longer than {limit_s:g} s{what}", row, timed_out=True)
    return RewardFault(f"raised {type(error).__name__}: {' '.join(str(error).split())}{_place(error)}", row)


def _place(error: BaseException) -> str:
    """Where in the function's own file it happened, rather than deep in a library that the file calls."""
    between = (__file__, os.path.dirname(asyncio.__file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(between)]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def shortened(text: str, limit: int = 300) -> str:
    """`text` as a quoted literal, its middle left out where it is longer than `limit` characters."""
    half = limit // 2
    return repr(text) if len(text) <= limit else f"{text[:half]!r} … {text[-half:]!r} ({len(text)} characters)"


def _finished(result: Any) -> Any:
    """The result, awaited if it is awaitable; where an event loop runs already (a notebook), in a thread of its own."""
    if not inspect.isawaitable(result):
        return result

    async def finish() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend((asyncio.run(finish()), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]

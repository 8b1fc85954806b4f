"""Reward functions as values: what the user gave (a callable, a file, a built-in's name) made uniform by `resolve`."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from melior.errors import UserError, near
from melior.importing import load_object
from melior.rewards.verifiers import BUILT_IN

Style = Literal["trl", "verl", "verifier"]

# Where a reference answer is looked for when no column was named; verl's rows keep theirs inside `reward_model`.
REFERENCE_COLUMNS = ("answer", "solution", "ground_truth")
# What the run itself hands to a function of TRL's style; every other parameter is a column.
TRL_PARAMETERS = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
VERL_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


@dataclass(frozen=True)
class RewardFunction:
    """One component of the reward, ready to be called.

    name: of the component, in metrics and messages; unique within a run.
    weight: its factor in the sum of the components.
    style: how it is called. "trl": once for all completions of a batch, `f(prompts, completions, completion_ids,
        trainer_state, log_metric, log_extra, **columns) -> list of float or None`. "verl": once for each completion,
        `f(data_source, solution_str, ground_truth, extra_info) -> float or dict`. "verifier": once for each
        completion, `f(text, reference) -> float`.
    call: the callable.
    spec: `path.py:NAME`, `module:NAME` or a built-in, from which a worker process loads it; "" where none is known.
    column: of a verifier, where its reference stands; None means the first of `answer`, `solution`, `ground_truth`.
    isolated: runs in a worker process, whether or not the run asks for workers.
    on_timeout: "raise" ends the run when a call takes too long; "score" gives the completion 0 and counts it. Only the
        verifier `math`, whose completions can ask for endless computations, scores by default.
    batch: needs all completions of a batch in one call, because it compares them; it is never called for one alone.
    """

    name: str
    weight: float
    style: Style
    call: Callable[..., Any]
    spec: str = ""
    column: str | None = None
    isolated: bool = False
    on_timeout: Literal["raise", "score"] = "raise"
    batch: bool = False

    @property
    def kind(self) -> str:
        """A built-in's name as it stands in the spec: `numeric` for `numeric@solution`."""
        return _head(self.spec)


def _head(spec: str) -> str:
    return re.split("[@:]", spec, maxsplit=1)[0]


def resolve(
    spec: str | Callable[..., Any],
    weight: float | int = 1.0,
    *,
    name: str | None = None,
    on_timeout: Literal["raise", "score"] | None = None,
    batch: bool = False,
) -> RewardFunction:
    """Make a `RewardFunction` of whatever the user gave.

    A function of one's own: a callable, `path.py:NAME`, or `module:NAME` (looked for among the installed modules and in
    the current folder). It has TRL's signature or, when it has parameters `solution_str` and `ground_truth`, verl's.

    A built-in, written NAME[@COLUMN][:ARGUMENT], where COLUMN holds the reference (`answer`, else `solution`, else
    `ground_truth`, when none is named; a list there means several right answers). Each gives 1 or 0:
      `exact`, `exact@COLUMN`        equal to the reference, white space around aside
      `numeric`, `numeric@COLUMN`    its last number equals the reference's (`#### 5` and `\\boxed{5}` are understood)
      `math`, `math@COLUMN`          mathematically equal, by math-verify, in a worker process
      `regex:PATTERN`                the pattern is found in it
      `format:think,answer`          exactly <think>…</think><answer>…</answer>
      `length:400`, `length:80words` no longer than so many characters or words

    name, on_timeout and batch replace the fields of `RewardFunction` of these names. Mistakes are `UserError`s.
    """
    if not math.isfinite(weight):
        raise UserError(f"the weight of reward {spec!r} is {weight}; it must be a finite number")
    if isinstance(spec, str):
        head = _head(spec)
        found = _built_in(head, spec) if head in BUILT_IN else _from_spec(spec)
    else:
        found = _from_callable(spec, _importable_spec(spec))
    if batch and found.style != "trl":
        raise UserError(f"reward {found.name!r} is called for each completion; batch=True needs TRL's signature")
    return replace(
        found,
        name=found.name if name is None else name,
        weight=float(weight),
        on_timeout=found.on_timeout if on_timeout is None else on_timeout,
        batch=batch,
    )


def with_unique_names(functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """The same functions; a name that was taken gets a number (`regex`, `regex_2`)."""
    taken: set[str] = set()
    unique = []
    for function in functions:
        name, count = function.name, 1
        while name in taken:
            count += 1
            name = f"{function.name}_{count}"
        taken.add(name)
        unique.append(replace(function, name=name))
    return unique


# -------------------------------------------------------------------------------------------------- where it comes from


def _built_in(head: str, spec: str) -> RewardFunction:
    entry = BUILT_IN[head]
    rest = spec[len(head) :]
    column = None
    if rest.startswith("@"):
        column, _, argument = rest[1:].partition(":")
        if not entry.reference:
            raise UserError(f"reward {spec!r}: {head} compares with no column; write {head}:{entry.argument}")
        if not column:
            raise UserError(f"reward {spec!r}: name the reference column after @, as in {head}@answer")
    else:
        _, _, argument = rest.partition(":")
    if argument and not entry.argument:
        raise UserError(f"reward {spec!r}: {head} takes no argument; a reference column is named as {head}@COLUMN")
    if entry.argument and not argument:
        raise UserError(f"reward {spec!r}: write {head}:{entry.argument}")
    return RewardFunction(
        name=head,
        weight=1.0,
        style="verifier",
        call=entry.make(argument),
        spec=spec,
        column=column,
        isolated=entry.isolated,
        on_timeout="score" if entry.isolated else "raise",
    )


def _from_spec(spec: str) -> RewardFunction:
    if ":" not in spec:
        hint = "; name the function after a colon" if spec.endswith(".py") else near(spec, BUILT_IN)
        raise UserError(f"reward {spec!r} is neither a built-in nor path.py:NAME nor module:NAME{hint}")
    try:
        function = load_object(spec)
    except UserError as error:
        head = _head(spec)
        close = near(head, BUILT_IN)
        hint = close if close.startswith("; did you mean") and str(error).startswith("there is no module") else ""
        raise UserError(f"reward {spec!r}: {error}{hint}") from error
    return _from_callable(function, spec)


def _from_callable(function: Any, spec: str) -> RewardFunction:
    shown = spec or repr(function)
    if inspect.isclass(function):
        raise UserError(f"reward {shown!r} is a class; give an instance of it, or a function")
    if not callable(function):
        raise UserError(f"reward {shown!r} is of type {type(function).__name__} and cannot be called; give a function")
    accepted, _ = parameters_of(function)
    style: Style = "verl" if {"solution_str", "ground_truth"} <= accepted.keys() else "trl"
    return RewardFunction(name=_name_of(function), weight=1.0, style=style, call=function, spec=spec)


def _name_of(function: Any) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")


def _importable_spec(function: Any) -> str:
    """`module:NAME` if importing that gives this very object, else "" (a closure, a cell of a notebook)."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name or module.startswith("melior_file_"):
        return ""
    found: Any = sys.modules.get(module)
    for piece in name.split("."):
        found = getattr(found, piece, None)
    return f"{module}:{name}" if found is function else ""


# ------------------------------------------------------------------------------------------------ what it asks for


def parameters_of(function: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """The parameters that can be given by name, and whether each is required; whether any other is accepted."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # something compiled, without a signature: give it everything
        return {}, True
    named = {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return named, any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def check_columns(function: RewardFunction, columns: Collection[str]) -> None:
    """A `UserError` if the function needs a column that the data lacks, or a package that is not installed."""
    if function.style == "verifier":
        _check_verifier(function, columns)
        return
    given = TRL_PARAMETERS if function.style == "trl" else VERL_PARAMETERS
    accepted, _ = parameters_of(function.call)
    for parameter, required in accepted.items():
        if required and parameter not in given and parameter not in columns:
            raise UserError(
                f"reward {function.name!r} has a parameter {parameter!r}, but the data has no such column; "
                f"{_listed(columns)}{_close(parameter, [*given, *columns])}"
            )
    if function.style == "verl" and accepted["ground_truth"] and not _has_reference(columns):
        raise UserError(
            f"reward {function.name!r} has a parameter 'ground_truth', but the data has neither reward_model with a "
            f"ground_truth in it nor a column {' or '.join(REFERENCE_COLUMNS)}; {_listed(columns)}"
        )


def _check_verifier(function: RewardFunction, columns: Collection[str]) -> None:
    head = function.kind
    if function.column is not None and function.column not in columns:
        raise UserError(
            f"reward {function.spec!r} needs a column {function.column!r}; "
            f"{_listed(columns)}{_close(function.column, columns)}"
        )
    if BUILT_IN[head].reference and function.column is None and not _has_reference(columns):
        raise UserError(
            f"reward {function.spec!r} needs the reference answer in a column {' or '.join(REFERENCE_COLUMNS)}, or one "
            f"named as {head}@COLUMN; {_listed(columns)}"
        )
    if head == "math" and importlib.util.find_spec("math_verify") is None:
        raise UserError("the reward 'math' needs math-verify: pip install 'melior[lm]'")


def _has_reference(columns: Collection[str]) -> bool:
    return bool({*REFERENCE_COLUMNS, "reward_model"} & set(columns))


def _listed(columns: Collection[str]) -> str:
    return f"its columns are {', '.join(sorted(columns)) or 'none'}"


def _close(word: str, options: Collection[str]) -> str:
    hint = near(word, options)
    return hint if hint.startswith("; did you mean") else ""


def reference_of(row: Mapping[str, Any], column: str | None, order: Sequence[str] = REFERENCE_COLUMNS) -> Any:
    """The reference answer of a row, or None.

    From `column`; where that is None, from `reward_model["ground_truth"]` (verl's rows), or else from the first column
    in `order` that has a value.
    """
    if column is not None:
        return row.get(column)
    nested = row.get("reward_model")
    if isinstance(nested, Mapping) and nested.get("ground_truth") is not None:
        return nested["ground_truth"]
    return next((row[name] for name in order if row.get(name) is not None), None)

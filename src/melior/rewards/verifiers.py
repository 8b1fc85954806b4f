"""Built-in verifiers: is this text right, by rules alone? Plain functions of strings, and the table that names them."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from melior.errors import UserError
from melior.rewards.answers import contains_number, final_answer, number_in

Check = Callable[[str, Any], float]


def exact_match(text: str, reference: Any) -> bool:
    """Whether text and reference are equal but for white space around them. A number is compared as written."""
    return text.strip() == str(reference).strip()


def numeric_match(text: str, reference: Any) -> bool:
    """Whether the last number of `text` equals the reference number, within 1e-9 relative.

    Where either says `#### ANSWER` or `\\boxed{ANSWER}`, that answer is read. Thousands separators, currency signs,
    fractions, mixed numbers and LaTeX's `\\frac` are understood. If just one side is a percentage, it may stand for
    itself or for its hundredth (50% equals 50 and 0.5). Raises ValueError if the reference holds no number.
    """
    wanted = number_in(final_answer(str(reference), has=contains_number))
    if wanted is None:
        raise ValueError(f"the reference {str(reference)[:80]!r} holds no number")
    given = number_in(final_answer(text, has=contains_number))
    if given is None:
        return False
    if wanted.percent == given.percent:
        return math.isclose(given.value, wanted.value, rel_tol=1e-9)
    percent, plain = (given, wanted) if given.percent else (wanted, given)
    return any(math.isclose(value, plain.value, rel_tol=1e-9) for value in (percent.value, percent.value / 100))


def regex_match(text: str, pattern: str | re.Pattern[str]) -> bool:
    """Whether `pattern` is found anywhere in `text` (anchor it with ^ and $ for the whole; `.` matches no newline)."""
    return re.search(pattern, text) is not None


def tagged_format(text: str, tags: Sequence[str]) -> bool:
    """Whether `text` is `<a>…</a><b>…</b>` for tags a, b: in this order, each exactly once, only white space around."""
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1 or not rest.startswith(opening):
            return False
        _, found, after = rest.partition(closing)
        if not found:
            return False
        rest = after.lstrip()
    return not rest


def within_length(text: str, maximum: int, unit: str = "characters") -> bool:
    """Whether `text` has at most `maximum` characters, or words (separated by white space) with unit="words"."""
    return (len(text.split()) if unit == "words" else len(text)) <= maximum


def math_equivalent(text: str, reference: Any) -> bool:
    """Whether the last answer in `text` is mathematically the same as the reference, judged by math-verify.

    Where either says `#### ANSWER` or `\\boxed{ANSWER}`, that answer is read. The computation can be endless (say, of
    `9^{9^{9^9}}`), so it belongs into a worker process with a time limit, where the reward `math` puts it. Raises
    ValueError if the reference holds no expression. Needs the extra `lm`.
    """
    parse, verify = _math_verify()
    wanted = parse(_as_boxed(final_answer(str(reference))), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"math-verify finds no expression in the reference {str(reference)[:80]!r}")
    return bool(verify(wanted, parse(_as_boxed(final_answer(text)), parsing_timeout=None), timeout_seconds=None))


def _as_boxed(answer: str) -> str:
    """A bare expression marked as one, since math-verify would read only `1` in `x + 1`; prose is left as it is."""
    delimited = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    bare = "\n" not in answer and re.search(r"(?<![\\A-Za-z])[A-Za-z]{3}", answer) is None
    return f"\\boxed{{{answer}}}" if bare and not delimited else answer


@functools.cache
def _math_verify() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise UserError("the reward 'math' needs math-verify: pip install 'melior[lm]'") from error
    # It warns of the limits that are switched off here because the worker process has one.
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return parse, verify


# ------------------------------------------------------------------------------------------------ the table of names


@dataclass(frozen=True)
class BuiltIn:
    """A verifier by name: how its argument becomes a check, and how it is run.

    `argument` describes what stands after the colon ("" = nothing may); `reference` says whether a column is compared
    with; `isolated` ones parse untrusted text at unbounded cost and run in a worker process always.
    """

    make: Callable[[str], Check]
    argument: str = ""
    reference: bool = False
    isolated: bool = False


def _compared(check: Callable[[str, Any], bool]) -> Callable[[str], Check]:
    return lambda argument: lambda text, reference: float(_any_of(check, text, reference))


def _any_of(check: Callable[[str, Any], bool], text: str, reference: Any) -> bool:
    """A reference that is a list gives several right answers."""
    if hasattr(reference, "tolist"):  # arrays and their scalars, which Parquet columns may bring
        reference = reference.tolist()
    several = reference if isinstance(reference, (list, tuple)) else [reference]
    if not several or any(one is None for one in several):
        raise ValueError("the row has no reference answer")
    return any([check(text, one) for one in several])  # all of them, so that a bad one never hides behind a good one


def _regex(argument: str) -> Check:
    try:
        pattern = re.compile(argument)
    except re.error as error:
        raise UserError(f"the reward regex:{argument} is not a regular expression: {error}") from error
    return lambda text, reference: float(regex_match(text, pattern))


def _format(argument: str) -> Check:
    tags = [tag.strip() for tag in argument.split(",")]
    if not all(re.fullmatch(r"[\w-]+", tag) for tag in tags) or len(set(tags)) != len(tags):
        raise UserError(
            f"the reward format:{argument} needs different tag names with commas, as in format:think,answer"
        )
    return lambda text, reference: float(tagged_format(text, tags))


def _length(argument: str) -> Check:
    found = re.fullmatch(r"([1-9]\d*)\s*(words|characters)?", argument.strip())
    if found is None:
        raise UserError(
            f"the reward length:{argument} needs a number of characters or words: length:400, length:80words"
        )
    maximum, unit = int(found[1]), found[2] or "characters"
    return lambda text, reference: float(within_length(text, maximum, unit))


BUILT_IN: Mapping[str, BuiltIn] = {
    "exact": BuiltIn(_compared(exact_match), reference=True),
    "numeric": BuiltIn(_compared(numeric_match), reference=True),
    "math": BuiltIn(_compared(math_equivalent), reference=True, isolated=True),
    "regex": BuiltIn(_regex, argument="PATTERN"),
    "format": BuiltIn(_format, argument="TAG,TAG"),
    "length": BuiltIn(_length, argument="MAX"),
}

"""Find the final answer in a text, and the number in an answer. Everything here takes time linear in the text."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number as it was written: its value (50 for "50%") and whether a percent sign followed."""

    value: float
    percent: bool = False


def final_answer(text: str, has: Callable[[str], bool] = lambda line: True) -> str:
    """The part of `text` that is marked as its answer; the whole text where nothing is marked.

    After the last `####` that is the content of `\\boxed{…}` if there is one, otherwise the first line that is not
    empty, preferring one for which `has` holds. Without `####` it is the content of the last complete `\\boxed{…}`.
    """
    _, marker, tail = text.rpartition("####")
    boxed = _last_boxed(tail)
    if boxed is not None:
        return boxed
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if not marker or not lines:
        return "" if marker else text
    return next((line for line in lines if has(line)), lines[0])


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start:end]
    return None


def contains_number(text: str) -> bool:
    """Whether a digit stands anywhere in `text`."""
    return re.search(r"\d", text) is not None


_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d++)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d++)?|(?<!\.)\.\d++)(?:[eE][+-]?\d{{1,3}}(?!\w))?"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z\d]) (?<!\d[.]) (?<![A-Za-z\d]_)            # not inside a word (H2O, x_1) or another number
    (?P<sign> (?<![)\]}}]) [-+] | (?<==\s) [-+]\s | (?<==) [-+]\s )?   # no sign: `10-7`, `(a)-7`, `10 - 7`, a bullet
    (?:[$€£¥] \s? (?P<inner_sign>-)? )?                    # $-5 as well as -$5
    (?:(?P<mixed>\d++) \s{{1,3}} (?=\d++\s?/\s?\d) )?      # the 2 of 2 3/4
    (?P<value> {_DECIMAL} )
    (?:\s?/\s? (?P<below> {_DECIMAL} ))?
    (?P<percent> \s?% )?
    """,
    re.VERBOSE,
)
# What LaTeX writes inside numbers, in plain signs; \frac34 and \frac{3}{4} become fractions.
_PLAIN = (
    (re.compile(r"\\[,!;]|\{,\}"), ""),
    (re.compile(r"(\d?)\\[dt]?frac\s?(?:\{\s?([^{}]{1,40}?)\s?\}|(\d))\s?(?:\{\s?([^{}]{1,40}?)\s?\}|(\d))"), None),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile("[−﹣－]"), "-"),
)


def number_in(text: str) -> Number | None:
    """The last number in `text`, or None. A number that is too large for a float, or divided by zero, is none."""
    for pattern, plain in _PLAIN:
        text = pattern.sub(_fraction if plain is None else plain, text)
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return _as_number(last[0]) if last else None


def _fraction(match: re.Match[str]) -> str:
    above, below = match[2] or match[3], match[4] or match[5]
    return f"{match[1]} {above}/{below}" if match[1] else f"{above}/{below}"


def _as_number(match: re.Match[str]) -> Number | None:
    value = float(match["value"].replace(",", ""))
    if match["below"]:
        below = float(match["below"].replace(",", ""))
        if below == 0:
            return None
        value /= below
    if match["mixed"]:
        value += float(match["mixed"])
    if "-" in (match["sign"] or "") + (match["inner_sign"] or ""):
        value = -value
    return Number(value, match["percent"] is not None) if math.isfinite(value) else None

"""Sums with three things to get right at once: the answer, the form, and the length."""

from __future__ import annotations

import random
import re
from typing import Any

from melior.tasks.arithmetic import draw_problem, work
from melior.tasks.task import Row, Task

ANSWER = re.compile(r"<(-?[0-9]{1,18})>")
WELL_FORMED = re.compile(r"\[[0-9+\-=;]+\]<-?[0-9]+>")
SHORT = 22  # characters; the longest reference solution has as many


def task() -> Task:
    """Two-digit sums and differences, worked in square brackets, answered in angle brackets.

    A prompt is `solve 27+58:`, its reference completion `[7+8=15;2+5+1=8]<85>`. Three rewards of 0 or 1 pull at it:
    `correct` (weight 1, the outcome), `well_formed` (0.5) and `short` (0.25).
    """
    return Task(
        name="format-arithmetic",
        summary="sums that must be correct, well-formed and short",
        generate=_generate,
        rewards={"correct": correct, "well_formed": well_formed, "short": short},
        outcome="correct",
        weights={"correct": 1.0, "well_formed": 0.5, "short": 0.25},
        settings={"prompts": 32, "n": 8, "max_tokens": 32, "lr": 1e-4},
    )


def _generate(rng: random.Random) -> Row:
    a, b, sign = draw_problem(rng)
    steps, value = work(a, b, sign)
    return {"prompt": f"solve {a}{sign}{b}:", "answer": f"[{';'.join(steps)}]<{value}>", "value": value}


def correct(
    prompts: list[str], completions: list[str], *_: Any, value: list[int], **columns: Any
) -> list[float | None]:
    """1 when the last number in angle brackets is the result, wherever it stands, else 0."""
    last = [(ANSWER.findall(text) or [None])[-1] for text in completions]
    return [float(found is not None and int(found) == true) for found, true in zip(last, value, strict=True)]


def well_formed(prompts: list[str], completions: list[str], *_: Any, **columns: Any) -> list[float | None]:
    """1 when the whole completion is `[steps]<number>` and nothing else, whether or not it is right, else 0."""
    return [float(WELL_FORMED.fullmatch(text) is not None) for text in completions]


def short(prompts: list[str], completions: list[str], *_: Any, **columns: Any) -> list[float | None]:
    """1 when the completion has at most 22 characters, else 0."""
    return [float(len(text) <= SHORT) for text in completions]

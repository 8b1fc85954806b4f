"""Sums and differences of two whole numbers, worked out digit by digit."""

from __future__ import annotations

import random
import re
from typing import Any

from melior.errors import UserError
from melior.tasks.task import Row, Task

NUMBER = re.compile(r"(?<![0-9])-[0-9]+|[0-9]+")


def task(digits: int = 2) -> Task:
    """Add or subtract two numbers of `digits` digits (1 to 6); differences are never negative.

    A prompt is `27+58=`, its reference completion `7+8=15;2+5+1=8;85`: one step a digit from the right, with the carry
    as a third summand (`+1`) or the borrow as a third term (`15-7=8;8-2-1=5;58`), then the answer.
    """
    if not 1 <= digits <= 6:
        raise UserError(f"arithmetic: digits={digits} is outside 1 to 6")

    def generate(rng: random.Random) -> Row:
        a, b, sign = draw_problem(rng, digits)
        steps, value = work(a, b, sign)
        return {"prompt": f"{a}{sign}{b}=", "answer": ";".join([*steps, str(value)]), "value": value}

    return Task(
        name="arithmetic" if digits == 2 else f"arithmetic:digits={digits}",
        summary="add or subtract two numbers, with worked steps",
        generate=generate,
        rewards={"correct": correct},
        outcome="correct",
        settings={"prompts": 32, "n": 8, "max_tokens": 10 * digits + 4, "lr": 1e-4, "steps": 40},
    )


def draw_problem(rng: random.Random, digits: int = 2) -> tuple[int, int, str]:
    """Two numbers of `digits` digits and the sign between them; for "-" the larger number comes first."""
    low, high = (10 ** (digits - 1) if digits > 1 else 0), 10**digits - 1
    a, b = rng.randint(low, high), rng.randint(low, high)
    sign = rng.choice("+-")
    return (max(a, b), min(a, b), sign) if sign == "-" else (a, b, sign)


def work(a: int, b: int, sign: str) -> tuple[list[str], int]:
    """The written steps of a + b or a - b (a at least b), from the right, and the result."""
    steps, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        third = f"{sign}1" if carry else ""
        if sign == "+":
            result = x + y + carry
            carry = result // 10
        else:
            borrow = int(x - y - carry < 0)
            x += 10 * borrow
            result = x - y - carry
            carry = borrow
        steps.append(f"{x}{sign}{y}{third}={result}")
    return steps, a + b if sign == "+" else a - b


def last_number(text: str) -> int | None:
    """The last whole number written in a text, None when there is none (or it has more than 18 characters).

    A minus is its sign only where no digit stands before it: "9-4" ends with 4, "=-4" with -4.
    """
    found = NUMBER.findall(text)
    return int(found[-1]) if found and len(found[-1]) <= 18 else None


def correct(
    prompts: list[str], completions: list[str], *_: Any, value: list[int], **columns: Any
) -> list[float | None]:
    """1 when the last number of the completion is the result, else 0."""
    return [float(last_number(text) == true) for text, true in zip(completions, value, strict=True)]

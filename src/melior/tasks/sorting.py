"""Sorting characters into a strict format."""

from __future__ import annotations

import random
from typing import Any

from melior.errors import UserError
from melior.tasks.task import Row, Task

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def task(length: int = 5) -> Task:
    """Sort `length` different digits and letters (2 to 36), digits before letters.

    A prompt is `sort d7b2a:`; the only completion that passes is `[2,7,a,b,d]`, to the character.
    """
    if not 2 <= length <= len(ALPHABET):
        raise UserError(f"sorting: length={length} is outside 2 to {len(ALPHABET)}")

    def generate(rng: random.Random) -> Row:
        items = rng.sample(ALPHABET, length)
        return {"prompt": f"sort {''.join(items)}:", "answer": f"[{','.join(sorted(items))}]"}

    return Task(
        name="sorting" if length == 5 else f"sorting:length={length}",
        summary="sort digits and letters into a strict list format",
        generate=generate,
        rewards={"correct": correct},
        outcome="correct",
        settings={"prompts": 32, "n": 8, "max_tokens": 2 * length + 4, "lr": 1e-4},
    )


def correct(
    prompts: list[str], completions: list[str], *_: Any, answer: list[str], **columns: Any
) -> list[float | None]:
    """1 when the completion is the sorted list, character by character, else 0."""
    return [float(text == true) for text, true in zip(completions, answer, strict=True)]

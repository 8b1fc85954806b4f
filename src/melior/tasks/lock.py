"""The lock: secret codes that only an exact match opens. A probe for learning from sparse rewards."""

from __future__ import annotations

import random
import string
from typing import Any

from melior.errors import UserError
from melior.tasks.task import Row, Task


def task(P: int = 16, L: int = 6, V: int = 4, seed: int = 0) -> Task:
    """P secret codes of L symbols out of V, drawn with `seed`; the reward is 1 for the whole code and 0 otherwise.

    A row's `index` (0 to P - 1) is its prompt for a tabular policy, whose tokens are the symbols 0 to V - 1 and whose
    completions are exactly L tokens; `code` lists the right ones. For language models the prompt is `lock 3:` and the
    code is spelt with the first V letters (`answer`). A completion passes in either form.

    Nothing carries over from one code to another, so the held-out set is the same P prompts: a score on it says how
    many codes have been found.
    """
    limits = {"P": (P, 100_000), "L": (L, 1_000), "V": (V, len(string.ascii_lowercase))}
    for option, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise UserError(f"lock: {option}={value} is outside 1 to {most}")
    rng = random.Random(f"lock {P} {L} {V} {seed}")
    codes = [[rng.randrange(V) for _ in range(L)] for _ in range(P)]
    rows = tuple(_row(index, code) for index, code in enumerate(codes))
    given = {"P": (P, 16), "L": (L, 6), "V": (V, 4), "seed": (seed, 0)}
    changed = ",".join(f"{option}={value}" for option, (value, default) in given.items() if value != default)
    return Task(
        name=f"lock:{changed}" if changed else "lock",
        summary=f"{P} secret codes of {L} symbols out of {V}, opened by an exact match only",
        generate=lambda rng: dict(rng.choice(rows)),
        rewards={"correct": correct},
        outcome="correct",
        settings={"prompts": min(P, 16), "n": 16, "max_tokens": L},
        fixed=rows,
        vocabulary=V,
    )


def _row(index: int, code: list[int]) -> Row:
    answer = "".join(string.ascii_lowercase[symbol] for symbol in code)
    return {"prompt": f"lock {index}:", "answer": answer, "index": index, "code": code}


def correct(
    prompts: list[Any],
    completions: list[str],
    completion_ids: list[list[int]] | None = None,
    *,
    code: list[list[int]],
    answer: list[str],
    **columns: Any,
) -> list[float | None]:
    """1 when the completion's tokens are the code, or its text is the code in letters, else 0."""
    ids = completion_ids if completion_ids is not None else [None] * len(completions)
    return [
        float(text == spelt or (tokens is not None and list(map(int, tokens)) == list(symbols)))
        for text, tokens, symbols, spelt in zip(completions, ids, code, answer, strict=True)
    ]

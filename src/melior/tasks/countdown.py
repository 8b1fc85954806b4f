"""The numbers game: reach a target from a few small numbers, each used once."""

from __future__ import annotations

import ast
import operator
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from melior.errors import UserError
from melior.tasks.task import Row, Task

LARGEST = 12
HIGHEST_TARGET = 99
LONGEST = 100  # characters; a longer completion is no answer, and the parser's depth stays bounded

OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def task(numbers: int = 3) -> Task:
    """Combine `numbers` numbers (2 to 6) from 1 to 12, each used once, with + - * / and parentheses, into the target.

    A prompt is `3,5,7>22:`, a completion that passes `3*5+7`. Every prompt has a solution; the reference is one of
    them, and any other one passes as well.
    """
    if not 2 <= numbers <= 6:
        raise UserError(f"countdown: numbers={numbers} is outside 2 to 6")

    def generate(rng: random.Random) -> Row:
        while True:
            values = sorted(rng.randint(1, LARGEST) for _ in range(numbers))
            text, value, _ = combine(rng, [(str(v), Fraction(v), 3) for v in values])
            if value.denominator == 1 and 1 <= value <= HIGHEST_TARGET and value not in values:
                break
        prompt = f"{','.join(map(str, values))}>{value}:"
        return {"prompt": prompt, "answer": text, "numbers": values, "target": int(value)}

    return Task(
        name="countdown" if numbers == 3 else f"countdown:numbers={numbers}",
        summary="reach a target from a few small numbers, each used once",
        generate=generate,
        rewards={"correct": correct},
        outcome="correct",
        settings={"prompts": 32, "n": 8, "max_tokens": 4 * numbers, "lr": 1e-4},
    )


# An expression with its value and how tightly its top operator binds: 1 for + and -, 2 for * and /, 3 for a number.
Expression = tuple[str, Fraction, int]


def combine(rng: random.Random, parts: list[Expression]) -> Expression:
    """Join all parts, in a random order by random operators, into one expression without needless parentheses."""
    while len(parts) > 1:
        rng.shuffle(parts)
        (left, a, bind_a), (right, b, bind_b), *rest = parts
        sign = rng.choice("+-*/" if b else "+-*")
        level = 1 if sign in "+-" else 2
        if bind_a < level:
            left = f"({left})"
        if bind_b < level or (bind_b == level and sign in "-/"):
            right = f"({right})"
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[sign]
        parts = [(f"{left}{sign}{right}", value, level), *rest]
    return parts[0]


def evaluate(text: str) -> tuple[Fraction, Counter[int]] | None:
    """Value of an arithmetic expression and how often it uses each number; None for anything else.

    Allowed are non-negative integers in decimal digits, the operators + - * / between two operands, parentheses and
    spaces. Signs in front of an operand, other operators, names, calls and decimal points are not.
    """
    if len(text) > LONGEST or not set(text) <= set("0123456789+-*/() "):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        used: Counter[int] = Counter()
        return _value(tree, used), used
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left, used), _value(node.right, used))
    raise ValueError(f"{type(node).__name__} is not part of an expression")


def solves(text: str, numbers: list[int], target: int) -> bool:
    """Whether the text is an expression that uses exactly these numbers, each once, and equals the target."""
    found = evaluate(text)
    return found is not None and found[0] == target and found[1] == Counter(numbers)


def correct(
    prompts: list[str], completions: list[str], *_: Any, numbers: list[list[int]], target: list[int], **columns: Any
) -> list[float | None]:
    """1 when the completion uses exactly the given numbers and equals the target, else 0."""
    return [float(solves(text, list(n), t)) for text, n, t in zip(completions, numbers, target, strict=True)]

"""Tokens in colors: how strongly each quantity colors a token, and what the colors mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from melior.report.charts import plain_number
from melior.report.completions import ADVANTAGE, ENTROPY, GAP, LOGP, Completion, Rollouts

LEVELS = 3
FAINTEST = 0.05  # of the scale; what is below is left uncolored
LEAST_GAP = 0.05  # nats: the scale of a quantity that should be rounding only is at least this, or rounding is colored
MOST_TOKENS, MOST_ROWS = 600, 200
_HOW = {
    ADVANTAGE: "Blue tokens are made likelier by the step, orange ones less likely; the deeper, the more.",
    LOGP: "How unlikely the token was where it was sampled: the deeper, the bigger the surprise.",
    ENTROPY: "How undecided the policy was before the token.",
    GAP: "Blue where the trainer finds a token likelier than the sampler did. It should be rounding only.",
}
_RATIO = "Blue where the policy finds the token likelier than the other model does, orange where less likely."
_ONE_SIDED = (LOGP, ENTROPY)


@dataclass(frozen=True)
class Quantity:
    """Something that tokens are colored by; `scale` is the value of the deepest color."""

    key: str
    name: str
    how: str
    scale: float
    two_sided: bool

    def level(self, value: float) -> int:
        """-3 to 3."""
        share = abs(value) / self.scale
        level = min(LEVELS, math.ceil(share * LEVELS)) if share > FAINTEST else 0
        return -level if value < 0 and self.two_sided else level

    @property
    def legend(self) -> list[tuple[int, str]]:
        """(level, the greatest value that has it) from one end to the other."""
        sign = -1 if self.name == LOGP else 1
        levels = range(-LEVELS, LEVELS + 1) if self.two_sided else range(LEVELS + 1)
        return [(level, plain_number(sign * level / LEVELS * self.scale)) for level in levels]


@dataclass(frozen=True)
class Token:
    """A token as it is drawn: its classes, its figures in words, and as cells of a table."""

    text: str
    classes: str
    told: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A completion with its tokens; `further` are not drawn."""

    label: str
    completion: Completion
    tokens: tuple[Token, ...]
    rows: tuple[Token, ...]
    further: int


@dataclass(frozen=True)
class Coloring:
    """The completions that are shown, by step, and the quantities their tokens can be colored by.

    `start` is the key of the one to begin with: the first that tells the tokens of a completion apart.
    """

    start: str
    quantities: tuple[Quantity, ...]
    steps: tuple[tuple[Rollouts, tuple[Example, ...]], ...]


def coloring(steps: Sequence[tuple[Rollouts, int]]) -> Coloring:
    """The best and the worst completions of some steps, so many of each, on common scales."""
    chosen = [(rollouts, _chosen(rollouts, count)) for rollouts, count in steps]
    completions = [completion for _, each in chosen for _, completion in each]
    quantities = _quantities(completions)
    telling = [q.key for q in quantities if any(_varies(completion, q.name) for completion in completions)]
    return Coloring(
        next(iter([*telling, *(q.key for q in quantities)]), ""),
        quantities,
        tuple(
            (rollouts, tuple(_example(label, completion, quantities) for label, completion in each))
            for rollouts, each in chosen
        ),
    )


def _chosen(rollouts: Rollouts, count: int) -> list[tuple[str, Completion]]:
    best = rollouts.best(count)
    worst = [each for each in rollouts.worst(count) if not any(each is other for other in best)]
    return [(f"Best {i}", each) for i, each in enumerate(best, 1)] + [
        (f"Worst {i}", each) for i, each in enumerate(worst, 1)
    ]


def _quantities(completions: Sequence[Completion]) -> tuple[Quantity, ...]:
    values: dict[str, list[float]] = {}
    for completion in completions:
        for piece in completion.pieces[:MOST_TOKENS]:
            for name, value in piece.values.items():
                values.setdefault(name, []).append(abs(value))
    found: list[Quantity] = []
    for name, sizes in values.items():
        scale = sorted(sizes)[int(0.98 * (len(sizes) - 1))] or max(sizes)
        scale = max(scale, LEAST_GAP) if name == GAP else scale
        if scale:
            found.append(Quantity(f"q{len(found)}", name, _HOW.get(name, _RATIO), scale, name not in _ONE_SIDED))
    return tuple(found)


def _varies(completion: Completion, name: str) -> bool:
    return len({piece.values[name] for piece in completion.pieces if name in piece.values and piece.trained}) > 1


def _example(label: str, completion: Completion, quantities: Sequence[Quantity]) -> Example:
    tokens = []
    for piece in completion.pieces[:MOST_TOKENS]:
        levels = [(q.key, q.level(piece.values[q.name])) for q in quantities if q.name in piece.values]
        classes = ["t", *(f"{key}-{'m' if level < 0 else 'p'}{abs(level)}" for key, level in levels if level)]
        cells = tuple(plain_number(piece.values.get(q.name)) for q in quantities)
        told = ", ".join(f"{q.name} {cell}" for q, cell in zip(quantities, cells, strict=True))
        if not piece.trained:
            classes.append("given")
            told = f"not trained on; {told}"
        tokens.append(Token(piece.text, " ".join(classes), told, cells))
    further = len(completion.pieces) - len(tokens)
    return Example(label, completion, tuple(tokens), tuple(tokens[:MOST_ROWS]), further)

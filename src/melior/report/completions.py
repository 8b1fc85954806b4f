"""A step's completions as people read them: ranked, in tokens, with what each token was given."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from melior.storage.rollouts import DROPPED, POLICY, read_rollouts

BROKEN = "\N{REPLACEMENT CHARACTER}"
# Per-token quantities: name -> how it is told.
ADVANTAGE, LOGP, ENTROPY, GAP = "advantage", "log-probability", "entropy", "trainer minus sampler"


@dataclass(frozen=True)
class Piece:
    """Tokens that make up whole characters, nearly always one; and what they were given, by quantity."""

    text: str
    trained: bool
    values: Mapping[str, float]


@dataclass(frozen=True)
class Completion:
    """One row of a step's rollouts.

    Attributes:
        group: which prompt of the batch.
        prompt, text: as text.
        reward: shaped reward, None where none applies.
        advantage: mean over trained tokens, None where there is none.
        length: tokens.
        components: raw rewards by name.
        answer: the reference answer of the row's data, "" without one.
        truncated: whether the token limit cut it off.
        split: makes `pieces`, which most rows are never asked for.
    """

    group: int
    prompt: str
    text: str
    reward: float | None
    advantage: float | None
    length: int
    components: Mapping[str, float]
    answer: str
    truncated: bool
    split: Callable[[], tuple[Piece, ...]]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The tokens; () where they cannot be told apart for want of a tokenizer."""
        return self.split()


@dataclass(frozen=True)
class Rollouts:
    """The completions of one step, and which learner they are for."""

    step: int
    rows: Sequence[Completion]
    learner: str = POLICY

    @property
    def of_whom(self) -> str:
        """What tells them from the policy's own: "" for those."""
        name = self.learner.removesuffix(DROPPED)
        dropped = ", not kept by the curriculum" if name != self.learner else ""
        return ("" if name == POLICY else f", learner {name}") + dropped

    @property
    def groups(self) -> int:
        """Prompts."""
        return len({row.group for row in self.rows})

    @property
    def mean_reward(self) -> float | None:
        """Mean over rows that have a reward."""
        rewards = [row.reward for row in self.rows if row.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def best(self, count: int) -> list[Completion]:
        """Those of highest reward, of different prompts as far as there are some."""
        return _ranked(self.rows, count, highest=True)

    def worst(self, count: int) -> list[Completion]:
        """Those of lowest reward, likewise."""
        return _ranked(self.rows, count, highest=False)


def read_completions(run: Path, step: int, learner: str = POLICY) -> Rollouts:
    """The completions of a step. UserError when they are not there."""
    rows, decode = read_rollouts(run, step, learner), _decoder(run)
    return Rollouts(step, [_completion(row, decode) for row in rows], learner)


def printable(text: str) -> str:
    """Text in which nothing acts: control characters and marks that turn the direction of writing are spelled out."""
    return "".join(letter if _harmless(letter) else f"<U+{ord(letter):04X}>" for letter in text)


def _harmless(letter: str) -> bool:
    return letter in "\n\t" or letter == "\u200d" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")


def _ranked(rows: Sequence[Completion], count: int, highest: bool) -> list[Completion]:
    scored = [row for row in rows if row.reward is not None]
    sign = -1 if highest else 1

    def place(row: Completion) -> tuple[float, float]:
        return sign * (row.reward or 0.0), sign * (row.advantage or 0.0)

    seen: set[int] = set()
    first: list[Completion] = []
    later: list[Completion] = []
    for row in sorted(scored, key=place):
        (later if row.group in seen else first).append(row)
        seen.add(row.group)
    # An answer of another prompt says more than a second one of the same, where it did equally well.
    return sorted([*first[:count], *later[: max(0, count - len(first))]], key=place)


def _completion(row: Mapping[str, Any], decode: Callable[[Sequence[int]], str] | None) -> Completion:
    mask = row.get("mask") or []
    advantage = row.get("advantage")
    trained = [a for a, m in zip(advantage, mask, strict=False) if m] if isinstance(advantage, list) else []
    components = {key[7:]: value for key, value in row.items() if key.startswith("reward/") and value is not None}
    text = str(row.get("text") or "")
    return Completion(
        group=int(row.get("group", 0)),
        prompt=str(row.get("prompt_text") or row.get("row_prompt") or ""),
        text=text,
        reward=row.get("reward"),
        advantage=sum(trained) / len(trained) if trained else None,
        length=int(row.get("length", 0)),
        components={name: float(value) for name, value in components.items()},
        answer=str(row.get("answer") or ""),
        truncated=bool(row.get("truncated")),
        split=lambda: _pieces(row.get("token_ids") or [], text, mask, _quantities(row), decode),
    )


def _quantities(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """What is known about single tokens, by the name it is shown under."""
    sampled, proximal = row.get("behaviour_logp"), row.get("proximal_logp")
    found: dict[str, list[float]] = {}
    if isinstance(row.get("advantage"), list):
        found[ADVANTAGE] = row["advantage"]
    own = proximal or sampled
    if own:
        found[LOGP] = sampled or own
        for name, theirs in row.items():
            if name.startswith("scores/") and name.endswith("/logp") and theirs:
                found[f"log-ratio to {name.split('/')[1]}"] = [a - b for a, b in zip(own, theirs, strict=False)]
    if proximal and sampled:
        found[GAP] = [a - b for a, b in zip(proximal, sampled, strict=False)]
    if isinstance(row.get("entropy"), list):
        found[ENTROPY] = row["entropy"]
    return found


def _pieces(
    ids: Sequence[int],
    text: str,
    mask: Sequence[bool],
    values: Mapping[str, Sequence[float]],
    decode: Callable[[Sequence[int]], str] | None,
) -> tuple[Piece, ...]:
    """The tokens with their figures; tokens that only together make up a character are one piece."""
    pieces, begin = [], 0
    for i in range(len(ids)):
        if decode is not None:
            shown = _shown(ids, begin, i + 1, decode)
            if shown.endswith(BROKEN) and i - begin < 3 and i + 1 < len(ids):
                continue
        elif len(text) == len(ids):
            shown = text[i]
        else:
            return ()
        told = {name: max(each[begin : i + 1], key=abs) for name, each in values.items() if len(each) > i}
        told = {name: value for name, value in told.items() if math.isfinite(value)}
        pieces.append(Piece(shown, all(mask[begin : i + 1]), told))
        begin = i + 1
    return tuple(pieces)


def _shown(ids: Sequence[int], begin: int, end: int, decode: Callable[[Sequence[int]], str]) -> str:
    """The text of ids[begin:end] where it stands; some tokenizers drop a space at the start of a text."""
    if begin == 0:
        return decode(ids[begin:end])
    before = decode(ids[begin - 1 : begin])
    both = decode(ids[begin - 1 : end])
    return both[len(before) :] if both.startswith(before) else decode(ids[begin:end])


def _decoder(run: Path) -> Callable[[Sequence[int]], str] | None:
    """Ids to text by the tokenizer of the trained model, None where there is none to be read."""
    file = run / "model" / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises plain Exceptions of its own; without tokens the text is still shown
        return None
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)

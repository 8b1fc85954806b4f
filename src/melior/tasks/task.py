"""What a task is: a generator of rows, the rewards that judge a completion, and the settings that suit it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from melior.errors import UserError, near

SPLITS = ("train", "test")
HELD_OUT = 5  # one prompt in five belongs to the held-out set
PATIENCE = 1000  # draws without a prompt of the wanted split, after which there is none

Row = dict[str, Any]
Reward = Callable[..., list[float | None]]


def split_of(prompt: str) -> str:
    """The split that a prompt belongs to, "train" or "test", by a hash that is the same on every machine."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % HELD_OUT == 0 else "train"


@dataclass(frozen=True)
class Task:
    """Prompts with a verifier.

    name: as `get_task` takes it, options included where they differ from the defaults ("lock:P=4").
    summary: one line for people.
    generate: draws one row with the given `random.Random`. A row has `prompt`, `answer` (a reference completion that
        earns full marks in every reward) and further columns that the rewards ask for.
    rewards: name -> function in TRL's signature, `f(prompts, completions, completion_ids, **columns)`, with one value
        for each completion; every column of the rows is passed as a list.
    outcome: the name of the reward that decides whether a completion passes (it is 1.0 then).
    settings: recommended run settings by their names (`prompts`, `n`, `max_tokens`, `lr`, ...).
    weights: name -> weight in the combined reward; a name that is left out weighs 1.
    isolated: the rewards run in a worker process with limits, since they may evaluate what a model wrote; a completion
        with which one takes too long scores 0.
    fixed: all rows of a finite task whose two splits are the same rows, because what is learnt cannot be carried over
        to other prompts. Empty for tasks with a held-out set of their own.
    vocabulary: number of symbols of a completion for a tabular policy, whose prompts are the rows' `index`; 0 when the
        task cannot be played by a table.
    """

    name: str
    summary: str
    generate: Callable[[random.Random], Row]
    rewards: Mapping[str, Reward]
    outcome: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    isolated: bool = False
    fixed: tuple[Row, ...] = ()
    vocabulary: int = 0

    def __post_init__(self) -> None:
        for name in (self.outcome, *self.weights):
            if name not in self.rewards:
                raise UserError(f"task {self.name!r} has no reward called {name!r}{near(name, self.rewards)}")

    def rows(self, split: str, n: int, seed: int = 0) -> list[Row]:
        """The first n rows of a split, the same in every process.

        Training rows are drawn independently and never end. Held-out rows are distinct, and no held-out prompt is ever
        drawn for training, whatever the seeds; when there are fewer than n (always so for a finite task), all of them
        are returned.
        """
        if check_split(split) == "train":
            return [self.row("train", index, seed) for index in range(n)]
        if self.fixed:
            return [dict(row) for row in self.fixed[:n]]
        return self._held_out(n, seed)

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        """Row `index` (from 0) of a split, equal to `rows(split, index + 1, seed)[index]`; constant time for "train".

        A finite task goes through all its rows, newly shuffled, before it repeats one.
        """
        if check_split(split) == "test":
            rows = self.rows("test", index + 1, seed)
            if index >= len(rows):
                raise UserError(f"task {self.name!r} has {len(rows)} held-out rows; row {index} was asked for")
            return rows[index]
        if self.fixed:
            turn, place = divmod(index, len(self.fixed))
            order = random.Random(f"{self.name} {seed} {turn}").sample(range(len(self.fixed)), len(self.fixed))
            return dict(self.fixed[order[place]])
        return self._draw("train", index, seed)

    def _draw(self, split: str, index: int, seed: int) -> Row:
        # A string seeds random.Random through SHA-512, so the row does not depend on the process's hash seed.
        rng = random.Random(f"{self.name} {split} {seed} {index}")
        for _ in range(PATIENCE):
            row = self.generate(rng)
            if split_of(row["prompt"]) == split:
                return row
        kind = "training" if split == "train" else "held-out"
        raise UserError(f"task {self.name!r} has too few different prompts: none of {PATIENCE} drawn is a {kind} one")

    def _held_out(self, n: int, seed: int) -> list[Row]:
        found: dict[str, Row] = {}
        index = 0
        # A small task runs out of prompts: it is taken as exhausted after many draws without a new one.
        last_new = 0
        while len(found) < n and index - last_new < 50 * (len(found) + 20):
            row = self._draw("test", index, seed)
            if row["prompt"] not in found:
                found[row["prompt"]] = row
                last_new = index
            index += 1
        return list(found.values())


def check_split(split: str) -> str:
    """The split itself, or an error that names the two there are."""
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r} of a task{near(split, SPLITS)}")
    return split

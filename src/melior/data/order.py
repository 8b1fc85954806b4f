"""Which prompts come next: an endless order that one integer, the position, resumes."""

from __future__ import annotations

import functools
from collections.abc import Sized

import numpy as np

from melior.errors import UserError

STREAM = 0x70726F6D707473  # keeps this stream apart from others of the same seed


class PromptOrder:
    """Every row once an epoch, each epoch in its own order; epochs follow one another without a gap or a rest.

    `rows` is the rows or their number. A batch may straddle two epochs (and may then hold a row twice).
    """

    def __init__(self, rows: Sized | int, seed: int) -> None:
        self.count = rows if isinstance(rows, int) else len(rows)
        if self.count < 1:
            raise UserError("there are no rows to take prompts from")
        self.seed = seed

    def take(self, position: int, n: int) -> list[int]:
        """The row numbers at positions `position` to `position + n - 1`, a function of nothing but the arguments."""
        taken: list[int] = []
        while len(taken) < n:
            epoch, offset = divmod(position + len(taken), self.count)
            order = epoch_order(self.count, self.seed, epoch)
            taken += order[offset : offset + n - len(taken)].tolist()
        return taken


@functools.lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of `count` rows in one epoch: they are sorted by the words of Philox keyed by (seed, epoch).

    Sorting raw words, not Generator.permutation, keeps the order equal across numpy versions.
    """
    # Whole integers: numpy reads a list with a word of 2**63 or more as floats, and loses its low bits.
    words = np.random.Philox(key=seed % 2**64 + (STREAM << 64), counter=epoch << 192).random_raw(count)
    order = np.argsort(words, kind="stable")
    order.flags.writeable = False
    return order

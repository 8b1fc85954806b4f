"""Random numbers that belong to a place in the run, not to the order in which they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

WORD = 2**64
HALF = 2**32


def uniforms(
    seed: int, stream: str, step: int, round: int, slots: Sequence[int], siblings: Sequence[int], width: int
) -> np.ndarray:
    """[B,width] float64 in [0,1): one row for each (slot, sibling) pair, one number for each position in the row.

    A number depends only on (seed, stream, step, round, slot, sibling, position): asking for the rows in another
    order, in several calls, or with another width gives the same ones. Different streams ("rollout", "evaluation",
    ...) are independent. Counter-based (numpy's Philox): the seed and the stream are the key, the rest the counter.

    Raises ValueError when `slots` and `siblings` differ in length, or `round` or a sibling lies outside [0, 2**32).
    """
    if len(slots) != len(siblings):
        raise ValueError(f"{len(slots)} slots but {len(siblings)} siblings; give one of each for every row")
    if not all(0 <= small < HALF for small in (round, *siblings)):
        raise ValueError("round and siblings must lie in [0, 2**32)")
    name = int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
    bits = np.random.Philox(key=np.array([seed % WORD, name], dtype=np.uint64))
    generator, state = np.random.Generator(bits), bits.state
    out = np.empty((len(slots), width))
    for row, slot, sibling in zip(out, slots, siblings, strict=True):
        # The first word counts positions; rebuilding the generator instead would take four times as long.
        state["state"]["counter"][:] = (0, step % WORD, slot % WORD, round * HALF + sibling)
        bits.state = state
        generator.random(out=row)
    return out

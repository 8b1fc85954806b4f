"""Held-out rows that no equal prompt of the training rows gives away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from melior.errors import UserError

R = TypeVar("R", bound=Mapping[str, Any])


def split_rows(rows: Sequence[R], fraction: float, seed: int) -> tuple[list[R], list[R]]:
    """Training and held-out rows, both in the order given; `fraction` of the different prompts are held out.

    A prompt is held out by a hash of itself and the seed, so rows with equal prompts stay together, the order of the
    rows does not matter, and adding rows moves few others. At least one prompt lands on each side; a fraction of 0
    holds out nothing. UserError for a fraction outside [0, 1) or when there are not two different prompts.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"the held-out fraction is {fraction}; it must be at least 0 and below 1")
    if fraction == 0:
        return list(rows), []
    keys = [_key(row, seed) for row in rows]
    ranked = sorted(set(keys))
    if len(ranked) < 2:
        raise UserError(f"{len(ranked)} different prompt(s) cannot be split; give more rows or separate held-out data")
    count = min(max(round(fraction * len(ranked)), 1), len(ranked) - 1)
    held_out = set(ranked[:count])
    train = [row for row, key in zip(rows, keys, strict=True) if key not in held_out]
    return train, [row for row, key in zip(rows, keys, strict=True) if key in held_out]


def _key(row: Mapping[str, Any], seed: int) -> bytes:
    prompt = json.dumps(row["prompt"], sort_keys=True, default=str)
    return hashlib.blake2b(f"{seed}:{prompt}".encode(), digest_size=16).digest()

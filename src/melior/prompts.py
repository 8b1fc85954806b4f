"""A prompt as the loop hands it to rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One prompt of a batch.

    Attributes:
        slot: its place in the batch; siblings share it, and noise is keyed by it.
        ids: token ids, prefilled assistant text included.
        text: the rendered text, for people.
        row: the data row with all its columns.
        prefill: assistant text that the prompt already holds; rewards see it before the completion.
        messages: the chat messages before the prefill; None for plain text.
        index: number of the row in its data, -1 for prompts that parts write.
    """

    slot: int
    ids: tuple[int, ...]
    text: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    index: int = -1


Prompts = Sequence[Prompt]

"""One row of data, and what a prompt may look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melior.errors import UserError


class Row(dict[str, Any]):
    """A row's columns, and where the row came from: `place` reads like "train.jsonl, line 7"."""

    __slots__ = ("place",)

    def __init__(self, columns: Mapping[str, Any], place: str) -> None:
        super().__init__(columns)
        self.place = place


def place_of(row: Mapping[str, Any]) -> str:
    """Where a row came from, for an error message; rows that were not loaded are named by how their prompt begins."""
    place = getattr(row, "place", None)
    if place is not None:
        return str(place)
    text = str(row.get("prompt", dict(row)))
    return f"the row with the prompt {text[:60] + ('…' if len(text) > 60 else '')!r}"


def check_prompt(prompt: Any, place: str, column: str = "prompt") -> None:
    """Refuse what is neither a non-empty text nor a non-empty list of chat messages; `place` names the row."""
    if prompt is None or (isinstance(prompt, str | list) and not prompt):
        raise UserError(f"{place}: the prompt (column {column!r}) is empty; remove the row or fill it in")
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UserError(f"{place}: the prompt (column {column!r}) is blank; remove the row or fill it in")
        return
    if not isinstance(prompt, list):
        raise UserError(
            f"{place}: the prompt (column {column!r}) is of type {type(prompt).__name__}; "
            "give text or a list of chat messages like {'role': 'user', 'content': 'Hello'}"
        )
    for number, message in enumerate(prompt, 1):
        _check_message(message, f"{place}: message {number} of the prompt")
    if all(not _has_text(message) for message in prompt):
        raise UserError(f"{place}: every message of the prompt is empty; remove the row or fill it in")


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, Mapping):
        raise UserError(f"{where} is of type {type(message).__name__}; a chat message has 'role' and 'content'")
    if not isinstance(message.get("role"), str) or "content" not in message:
        raise UserError(
            f"{where} has the keys {', '.join(map(str, message))}; a chat message needs 'role' and 'content'"
        )
    content = message["content"]
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    texts = isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    )
    if not texts:
        raise UserError(f"{where} has a 'content' that is not text; only text prompts are supported")


def _has_text(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    if isinstance(content, list):
        return any(part["text"].strip() for part in content)
    return bool(message.get("tool_calls")) or bool(content and content.strip())

"""Sizes and checksums of files: noted when they are written, compared before they are believed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melior.errors import RunError

Facts = dict[str, dict[str, Any]]  # path within a folder -> its "bytes" and "sha256"


def facts_of(folder: Path) -> Facts:
    """The size and SHA-256 of every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files
    }


def verify(folder: Path, facts: Mapping[str, Mapping[str, Any]], what: str) -> None:
    """Raises RunError, naming the file of `what`, unless every file is what was noted."""
    for name, expected in facts.items():
        file = folder / name
        if not file.is_file():
            raise RunError(f"{what} lacks {name} (in {folder})")
        if file.stat().st_size != expected["bytes"]:
            raise RunError(
                f"{name} of {what} is damaged: it has {file.stat().st_size} bytes, not {expected['bytes']} "
                f"(in {folder})"
            )
        if _sha256(file) != expected["sha256"]:
            raise RunError(f"{name} of {what} is damaged: its content was altered (in {folder})")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

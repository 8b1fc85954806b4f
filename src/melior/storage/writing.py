"""Files that are there whole or not at all, and failures to write that read as one sentence."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from melior.errors import RunError

TEMPORARY = ".tmp-"  # the start of every name that is not yet, or no longer, to be read


@contextlib.contextmanager
def saving(what: str, hint: str = "free some disk space or choose another folder") -> Iterator[None]:
    """Failures to write inside the block (a full disk, no permission) become RunError "could not save WHAT: ..."."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"could not save {what}: {reason}; {hint}") from error


def write_atomic(path: Path, text: str) -> None:
    """Write a text file (UTF-8) so that readers and a killed process see the old content or the new, never a part.

    Raises RunError when it cannot be written; the old file is untouched then.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    with saving(str(path)):
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk itself."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_text(value: Any, indent: int | None = None) -> str:
    """Standard JSON: floats to the last bit, NaN and infinities as null, scalars of torch and numpy as numbers."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # torch and numpy alike
        return _plain(value.tolist())
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON: {value!r}")

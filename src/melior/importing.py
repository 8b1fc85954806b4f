"""Fetch an object that the user named as `path.py:NAME` or `module:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from melior.errors import UserError, near


def load_object(spec: str) -> Any:
    """The object behind `path.py:NAME` or `module:NAME`; NAME may be dotted (`Judge.score`).

    A file is run afresh at every call, so a notebook sees the edited version; its folder and, for modules, the current
    folder can be imported from. Every failure is a `UserError` of one sentence.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise UserError(f"{spec!r} names no object; write path.py:NAME or module:NAME")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_module(where)
    found: Any = module
    for piece in name.split("."):
        if not hasattr(found, piece):
            options = [key for key in vars(found) if not key.startswith("_")] if hasattr(found, "__dict__") else []
            raise UserError(f"{where} has no {name!r}{near(piece, options)}")
        found = getattr(found, piece)
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        siblings = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UserError(f"there is no file {path}{near(path.name, siblings)}")
    path = path.resolve()
    _importable(path.parent)
    # The name is unlike any module's, so that a user's json.py never stands in for the real one.
    name = f"melior_file_{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise UserError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported: {_one_line(error)}") from error
    return module


def _from_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(f"there is no module {error.name!r} (looked for {name!r})") from error
        raise UserError(f"module {name} cannot be imported: {_one_line(error)}") from error
    except Exception as error:
        raise UserError(f"module {name} cannot be imported: {_one_line(error)}") from error


def _importable(folder: Path) -> None:
    """Let imports find `folder`, after everything installed, so that nothing installed is shadowed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

"""Melior: policy optimization in which every published method is one readable record of parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melior.api import Callback, check, evaluate, load, train
    from melior.comparing import compare
    from melior.exporting import export
    from melior.method import Entry, Method
    from melior.records.catalogue import entries, entry, get
    from melior.trajectories import Trajectories

    __version__: str

__all__ = [
    "Callback",
    "Entry",
    "Method",
    "Trajectories",
    "__version__",
    "check",
    "compare",
    "entries",
    "entry",
    "evaluate",
    "export",
    "get",
    "load",
    "train",
]

# Where each name lives; it is imported when it is asked for, so that `import melior` costs nothing.
_HOMES = {
    "Callback": ("melior.api", "Callback"),
    "Entry": ("melior.method", "Entry"),
    "Method": ("melior.method", "Method"),
    "Trajectories": ("melior.trajectories", "Trajectories"),
    "check": ("melior.api", "check"),
    "compare": ("melior.comparing", "compare"),
    "entries": ("melior.records.catalogue", "entries"),
    "entry": ("melior.records.catalogue", "entry"),
    "evaluate": ("melior.api", "evaluate"),
    "export": ("melior.exporting", "export"),
    "get": ("melior.records.catalogue", "get"),
    "load": ("melior.api", "load"),
    "train": ("melior.api", "train"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("melior")
        except PackageNotFoundError:  # run from a source folder that is not installed
            return "0"
    if name not in _HOMES:
        raise AttributeError(f"module 'melior' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)

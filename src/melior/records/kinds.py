"""Classes by the name that files use: `Clip`, `path/mine.py:Kind`, `module:Kind`."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from melior.errors import UserError, near

# Where parts and the other dataclasses that records are made of live.
PACKAGES = (
    "melior.parts",
    "melior.method",
    "melior.frames",
    "melior.policies.networks",
    "melior.rollouts",
    "melior.rewards",
    "melior.teachers",
    "melior.advantages",
    "melior.objectives",
    "melior.objectives.heads",
    "melior.updates",
    "melior.curricula",
    "melior.memories",
    "melior.actor_critic",
    "melior.exact",
    "melior.methods",
)


@functools.lru_cache(maxsize=1)
def own_kinds() -> Mapping[str, tuple[type, ...]]:
    """Class name -> the frozen dataclasses of this name in the package's part modules (one, unless names clash)."""
    for package in PACKAGES:
        importlib.import_module(package)
    found: dict[str, tuple[type, ...]] = {}
    for module in _modules():
        for name, kind in vars(module).items():
            if _is_kind(kind) and kind.__module__ == module.__name__:
                found[name] = (*found.get(name, ()), kind)
    return found


def _modules() -> Iterator[ModuleType]:
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and name.startswith(PACKAGES):
            yield module


def _is_kind(kind: Any) -> bool:
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    return inspect.isclass(kind) and is_dataclass(kind) and parameters.frozen


def find_kind(name: str, expected: tuple[type, ...] = (object,), where: str = "") -> type:
    """The class that a file calls `name`.

    Raises:
        UserError: unknown (the near names among those that fit are given), ambiguous, or no frozen dataclass.
    """
    at = f"{where}: " if where else ""
    if ":" in name:
        kind = _from_outside(name, at)
        if not _is_kind(kind):
            raise UserError(f"{at}{name} is no part: a part is a class with @dataclass(frozen=True)")
        return kind
    known = own_kinds()
    kinds = known.get(name, ())
    if len(kinds) > 1:
        kinds = tuple(kind for kind in kinds if issubclass(kind, _solid(expected))) or kinds
    if len(kinds) > 1:
        full = " or ".join(f"{kind.__module__}:{name}" for kind in kinds)
        raise UserError(f"{at}there are several parts called {name}; write {full}")
    if not kinds:
        fitting = [other for other, some in known.items() if any(issubclass(kind, _solid(expected)) for kind in some)]
        raise UserError(f"{at}there is no part '{name}'{near(name, fitting or known)}")
    return kinds[0]


def _solid(expected: tuple[type, ...]) -> tuple[type, ...]:
    """The classes that `issubclass` can be asked about; a protocol stands for any."""
    solid = tuple(kind for kind in expected if not getattr(kind, "_is_protocol", False))
    return solid or (object,)


def tag_of(kind: type, portable: bool = False) -> str:
    """The name under which `find_kind` finds this class again.

    With `portable` a class from a file is named without the file's folder, so that moving the file changes nothing.
    """
    if len(own_kinds().get(kind.__name__, ())) == 1 and own_kinds()[kind.__name__][0] is kind:
        return kind.__name__
    if not kind.__module__.startswith(("melior_file_", "__main__")):
        return f"{kind.__module__}:{kind.__qualname__}"
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None:
        return f"__main__:{kind.__qualname__}"
    return f"{Path(file).name if portable else Path(file).resolve()}:{kind.__qualname__}"


def _from_outside(spec: str, at: str) -> Any:
    """What stands at `path.py:Kind` or `module:Kind`; a file that is loaded already is not run again."""
    from melior.importing import load_object

    path, _, name = spec.rpartition(":")
    module = sys.modules.get(path)
    if path.endswith(".py"):
        module = next(
            (each for each in _from_files() if Path(str(each.__file__)).resolve() == Path(path).resolve()), None
        )
    found = module
    for piece in name.split("."):
        found = getattr(found, piece, None)
    if found is not None:
        return found
    if "<locals>" in name or path == "__main__":
        raise UserError(
            f"{at}{spec} was defined in a session that is over; put it into a file and name it path.py:Kind"
        )
    return load_object(spec)


def _from_files() -> list[ModuleType]:
    named = [module for name, module in list(sys.modules.items()) if name.startswith(("melior_file_", "__main__"))]
    return [module for module in named if getattr(module, "__file__", None)]

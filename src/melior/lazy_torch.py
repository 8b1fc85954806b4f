"""Stand-ins for torch and jaxtyping, so that `melior show` answers before the real ones would have been imported.

The command calls `install()` before it imports any part. Parts say `import torch` and annotate with `torch.Tensor` and
jaxtyping's shapes, which under `from __future__ import annotations` are never looked up. The first attribute of torch
that is looked up imports the real torch and puts it in the stand-in's place. Names that type aliases use (`Tensor`, and
all of jaxtyping) are proxies, which import the real thing only when they are subscripted, called or derived from.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Union

# Reading any other dunder (`__wrapped__`, `__warningregistry__`, ...) is introspection and no reason to import torch.
_OWN_DUNDERS = ("__version__", "__config__", "__future__", "__all__")
_lock = threading.RLock()


class _StandIn(ModuleType):
    """Looks like a package to the import system and becomes it at the first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _OWN_DUNDERS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self._looked_up(name)

    def _looked_up(self, name: str) -> Any:
        return _Proxy(self.__name__, name) if name == "Tensor" else getattr(load(self.__name__), name)


class _NamesStandIn(_StandIn):
    """Also survives `from package import Name` without becoming the real package."""

    def _looked_up(self, name: str) -> Any:
        return _Proxy(self.__name__, name)


class _Proxy:
    """A class of a package that is not imported yet; while it is not, nothing is an instance of it."""

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def _real(self) -> Any:
        return getattr(load(self._package), self._name)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        real = tuple(each._real() if type(each) is _Proxy else each for each in keys)  # Float[torch.Tensor, "B T"]
        return self._real()[real if isinstance(key, tuple) else real[0]]

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._real()(*args, **more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):  # typing and dataclasses look around
            raise AttributeError(f"{self!r} has no attribute {name!r} yet")
        return getattr(self._real(), name)

    def __repr__(self) -> str:
        return f"{self._package}.{self._name}"

    def __instancecheck__(self, value: Any) -> bool:
        return not isinstance(sys.modules.get(self._package), _StandIn) and isinstance(value, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007  # a proxy is no class, so `|` would come back here

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007


class _Finder:
    """Serves `import torch.nn.functional`: the real package first, then the submodule as the real one has it."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, dot, _ = fullname.partition(".")
        if not dot or not isinstance(sys.modules.get(package), _StandIn):
            return None
        load(package)
        importlib.import_module(fullname)
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]  # has a loader's two methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]
        spec.loader_state = module.__spec__  # the import system is about to overwrite it
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Put the stand-ins where imports find them; packages that are imported already or not installed are let be."""
    for name, kind in (("torch", _StandIn), ("jaxtyping", _NamesStandIn)):
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is None:
            continue
        module = kind(name)
        module.__spec__ = spec
        module.__file__ = spec.origin
        module.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[name] = module
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


def load(package: str = "torch") -> ModuleType:
    """The real package, imported if need be and put into every module that holds its stand-in."""
    with _lock:
        held = sys.modules.get(package)
        if not isinstance(held, _StandIn):
            return importlib.import_module(package)
        del sys.modules[package]
        try:
            real = importlib.import_module(package)
        except BaseException:
            sys.modules[package] = held
            raise
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", {})
            if space.get(package) is held:
                space[package] = real
        return real


def use_real() -> None:
    """Everything real at once: what a command calls that is going to compute."""
    for package in ("torch", "jaxtyping"):
        load(package)

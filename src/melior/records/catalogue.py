"""The catalogue: every method by name, from this package, from installed ones, from a file, or from a run folder."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from melior.errors import UserError, near
from melior.method import Entry
from melior.records.notes import note

GROUP = "melior.methods"
# `paper:grpo` reads "GRPO as its paper has it", which is how the catalogue files every method under its plain name.
_PAPER = "paper:"


@functools.lru_cache(maxsize=1)
def entries() -> Mapping[str, Entry]:
    """Name -> row of the catalogue: those of this package, then those of the entry-point group `melior.methods`.

    An installed package whose methods cannot be loaded, or bear a name that is taken, is passed over with a warning.
    """
    found: dict[str, Entry] = {}
    origin: dict[str, str] = {}
    for module in _own_names():
        _add(found, origin, _entries_of(importlib.import_module(module)), module)
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            _add(found, origin, _entries_of(point.load()), f"entry point {point.name!r} ({point.value})")
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            note(f"the methods of entry point {point.name!r} ({point.value}) are missing: {reason}")
    return MappingProxyType(found)


def entry(name: str) -> Entry:
    """The row of the catalogue: the record, its paper and what is known about it.

    Raises:
        UserError: no method of this name; the near ones are named.
    """
    plain = name.removeprefix(_PAPER)
    found = lookup(plain)
    if found is None:
        raise UserError(f"there is no method '{name}'{_near_method(plain, entries())}")
    return found


def lookup(name: str) -> Entry | None:
    """The row of the catalogue by its plain name; None where there is none.

    Of this package's modules only those are imported whose text mentions the name, so that the answer does not take
    longer with every method that is added.
    """
    quoted = (f'"{name}"', f"'{name}'")
    for module in _own_names():
        text = Path(str(_spec(module).origin)).read_text(encoding="utf-8")
        if any(each in text for each in quoted):
            found = (each for each in _entries_of(importlib.import_module(module)) if each.name == name)
            if (first := next(found, None)) is not None:
                return first
    return entries().get(name)


def get(name: str) -> Any:
    """The record of this name, such as `get("grpo").but("mine", advantage=LeaveOneOut())`."""
    return entry(name).record


def resolve(spec: Any) -> Any:
    """The record that a user means.

    Args:
        spec: a record, an `Entry`, a name of the catalogue, `path/mine.py:NAME`, `package.module:NAME`, or the folder
            or configuration file of a run.

    Raises:
        UserError: nothing is found there, or it is no record.
    """
    found = find(spec)
    return found.record if isinstance(found, Entry) else found


def find(spec: Any) -> Any:
    """As `resolve`, but the whole `Entry` where there is one."""
    if not isinstance(spec, str | Path):
        return _checked(spec, repr(spec))
    text, path = str(spec), Path(spec)
    named = lookup(text.removeprefix(_PAPER))
    if named is not None:
        return named
    if path.suffix == ".py" or path.suffix in (".yaml", ".yml") or path.is_dir():
        return _from_path(path)
    if ":" in text:
        from melior.importing import load_object

        return _checked(load_object(text), text)
    if "/" in text:
        raise UserError(f"there is no run folder {text}")
    return entry(text)


def _from_path(path: Path) -> Any:
    if path.suffix == ".py":
        raise UserError(f"which record of {path}? Write {path}:NAME")
    from melior.records.config import read_config

    return read_config(path).record


def _checked(found: Any, where: str) -> Any:
    if isinstance(found, Entry) or (is_dataclass(found) and not isinstance(found, type)):
        return found
    kind = found.__name__ if isinstance(found, type) else type(found).__name__
    raise UserError(f"{where} is no record but a {kind}; a record is a Method, or an Entry that holds one")


def _own_names() -> Iterator[str]:
    package = importlib.import_module("melior.methods")
    return (found.name for found in pkgutil.walk_packages(package.__path__, "melior.methods."))


def _spec(module: str) -> ModuleSpec:
    found = importlib.util.find_spec(module)
    assert found is not None, module  # it was listed
    return found


def _entries_of(source: Any) -> list[Entry]:
    """The entries that a module holds, or the one that is given."""
    if isinstance(source, Entry):
        return [source]
    if isinstance(source, ModuleType):
        return [value for value in vars(source).values() if isinstance(value, Entry)]
    raise UserError(f"expected an Entry or a module that holds some, got {type(source).__name__}")


def _add(found: dict[str, Entry], origin: dict[str, str], more: list[Entry], where: str) -> None:
    """File all of `more`, or none when a name is taken by another entry."""
    fresh: dict[str, Entry] = {}
    for each in more:
        held = found.get(each.name, fresh.get(each.name))
        if held is not None and held is not each:
            raise UserError(f"two methods are called '{each.name}': in {origin.get(each.name, where)} and in {where}")
        fresh[each.name] = each
    for name, each in fresh.items():
        origin.setdefault(name, where)
        found.setdefault(name, each)


def _near_method(name: str, known: Mapping[str, Entry]) -> str:
    return near(name, known) or "; `melior methods` lists them"

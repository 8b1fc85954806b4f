"""Values from files and command lines become values of the fields they are meant for."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from melior.errors import UserError, near


def field_types(kind: Any) -> Mapping[str, Any]:
    """Field name -> declared type of a dataclass, resolved; Any where a type cannot be resolved at run time."""
    return _field_types(kind)


@functools.cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    wanted = {f.name for f in fields(kind) if f.init}
    for base in reversed(kind.__mro__):
        for name, note in inspect.get_annotations(base).items():
            if name in wanted:
                found[name] = _resolved(name, note, base)
    return found


def _resolved(name: str, note: Any, owner: type) -> Any:
    holder = type("Holder", (), {"__annotations__": {name: note}, "__module__": owner.__module__})
    try:
        return typing.get_type_hints(holder)[name]
    except NameError:  # imported under TYPE_CHECKING only
        return Any


def members(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a declared type: those of a union, or the type alone."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(inner for member in get_args(kind) for inner in members(member))
    return (kind,)


def coerce(value: Any, kind: Any, where: str) -> Any:
    """`value` as `kind` says, such as "1e-4" for a float; a `UserError` that names `where` when it cannot be one."""
    if kind is Any or isinstance(kind, typing.TypeVar):
        return value
    allowed = members(kind)
    if isinstance(value, bool) and bool not in allowed and not _literal(allowed, value):
        raise UserError(f"{where} must be {words(kind)}, got {_plain(value)}")  # pydantic would read True as 1
    from pydantic import TypeAdapter, ValidationError

    if isinstance(value, str | int | float) and len(allowed) == 1 and get_args(kind)[1:] == (Ellipsis,):
        value = [value]  # one value stands for a list of one
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        hint = near(value, _options(allowed)) if isinstance(value, str) and _options(allowed) else ""
        raise UserError(f"{where} must be {words(kind)}, got {_plain(value)}{hint}") from error


def words(kind: Any) -> str:
    """A declared type in the words of a sentence: "a number", "one of 'k1', 'k2'", "a list of text"."""
    return " or ".join(dict.fromkeys(_words(member) for member in members(kind)))


def _words(kind: Any) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"{'one of ' if len(inner) > 1 else ''}{', '.join(repr(option) for option in inner)}"
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)} values ({', '.join(words(each) for each in inner)})"
    if origin in (tuple, list):
        return f"a list of {_PLURALS.get(inner[0], words(inner[0]))}" if inner else "a list"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "a mapping"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    tuple: "a list",
}
_PLURALS: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}


def _literal(allowed: tuple[Any, ...], value: Any) -> bool:
    return any(value is option for kind in allowed if get_origin(kind) is Literal for option in get_args(kind))


def _options(allowed: tuple[Any, ...]) -> list[str]:
    return [str(option) for kind in allowed if get_origin(kind) is Literal for option in get_args(kind)]


def _plain(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)

"""Parts in a few characters: only what is not the default, or what is asked for."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from melior.method import Method
from melior.parts import AsIs, Chain, Mix, Objective, Weighted

Shown = Container[tuple[str, str]]


def brief(value: Any, shown: Shown = ()) -> str:
    """One line for a part or a plain value.

    Args:
        value: what stands in a record.
        shown: (class name, field name) of fields that are shown although they have their default.
    """
    if isinstance(value, Objective):
        return " + ".join(_weighted(w.weight, w.term, shown) + _over(w, shown) for w in value.terms) or "nothing"
    if isinstance(value, Chain):
        return " | ".join(brief(part, shown) for part in value.parts)
    if isinstance(value, Mix):
        return " + ".join(_weighted(weight, part, shown) for weight, part in value.parts)
    if isinstance(value, Weighted):
        return _weighted(value.weight, value.term, shown) + _over(value, shown)
    if isinstance(value, Method):
        return value.name
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {brief(each, shown)}" for key, each in value.items()) or "none"
    if isinstance(value, tuple):
        return f"({', '.join(brief(each, shown) for each in value)})"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_arguments(value, shown))})"
    return _number(value) if isinstance(value, float) else repr(value)


def told(value: Any) -> str:
    """As `brief`, with every field but those that say "nothing" (None, "", a part that does nothing)."""
    return brief(value, _Every())


def told_weighted(weight: float, part: Any) -> str:
    """As `told`, for a part and its weight: `0.04 * ReferenceKL(estimator='k3', scorer='reference')`."""
    return _weighted(weight, part, _Every())


def is_nothing(value: Any) -> bool:
    """Whether a stage does nothing: `AsIs()`, or an empty mapping."""
    return value == AsIs() or (isinstance(value, Mapping) and not value)


class _Every:
    """Contains every field."""

    def __contains__(self, key: object) -> bool:
        return True


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _arguments(value: Any, shown: Shown) -> list[str]:
    result = []
    for f in fields(value):
        each = getattr(value, f.name)
        unset = (
            f.default if f.default is not MISSING else (f.default_factory() if callable(f.default_factory) else MISSING)
        )
        asked = (type(value).__name__, f.name) in shown and not is_nothing(each) and each not in ("", None)
        if each != unset or asked:
            result.append(f"{f.name}={brief(each, shown)}")
    return result


def _weighted(weight: float, part: Any, shown: Shown) -> str:
    return brief(part, shown) if weight == 1 else f"{_number(weight)} * {brief(part, shown)}"


def _over(w: Weighted, shown: Shown) -> str:
    return "" if w.aggregate is None else f".over({brief(w.aggregate, shown)})"

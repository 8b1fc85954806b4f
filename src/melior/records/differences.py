"""Two records side by side: their stages, and the exact values in which they differ."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from melior.parts import Chain, Mix, Objective, Transform
from melior.records.brief import brief, is_nothing, told, told_weighted
from melior.records.serialize import stages
from melior.records.slots import named
from melior.settings import RunSettings

_ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """One path at which two records differ; a side that has nothing there is "-"."""

    path: str
    left: str
    right: str


@dataclass(frozen=True)
class Side:
    """What is compared: a name, a record of any frame, and the settings where a run is compared."""

    name: str
    record: Any
    settings: RunSettings | None = None


def diff(left: Side, right: Side, width: int = 0) -> str:
    """A table of the stages (`=` where the right one equals the left), then every path that differs.

    Args:
        left, right: what is compared.
        width: characters a line; 0 takes the terminal's.
    """
    found = differences(left.record, right.record)
    if left.settings is not None and right.settings is not None:
        found += differences(left.settings, right.settings, "settings")
    rows = [("", left.name, right.name), *_stage_rows(left.record, right.record, found)]
    width = width or shutil.get_terminal_size((120, 40)).columns
    lines = _columns(rows, width)
    if not found:
        return "\n".join([*lines, "", "no difference"])
    exact = [(each.path, each.left, each.right) for each in found]
    return "\n".join([*lines, "", *_columns(exact, width)])


def differences(left: Any, right: Any, path: str = "") -> list[Difference]:
    """Every path at which two values differ, the deepest that says so; names do not count."""
    if type(left) is type(right) and left == right:
        return []
    if _composite(left) or _composite(right):
        pairs = _aligned(_children(left), _children(right)) if _kin(left, right) else {}
        if pairs:
            inner = _pairwise(pairs, path)
            return inner or [Difference(path, brief(left), brief(right))]  # the same parts in another order
    elif isinstance(left, Mapping) and isinstance(right, Mapping):
        return _pairwise(_aligned(left, right), path)
    elif isinstance(left, _Weight) and isinstance(right, _Weight):
        outer: dict[str, tuple[Any, Any]] = {
            "weight": (left.weight, right.weight),
            "aggregate": (left.aggregate, right.aggregate),
        }
        return _pairwise(outer, path) + differences(left.part, right.part, path)
    elif _record(left) and _record(right) and (type(left) is type(right) or path in ("", "settings")):
        return _pairwise(_aligned(_fields(left), _fields(right)), path)
    if left == right:
        return []
    return [Difference(path, told(left), told(right))]


class _Nothing:
    """Stands where one side has no such child."""


def _pairwise(pairs: Mapping[str, tuple[Any, Any]], path: str) -> list[Difference]:
    found = []
    for name, (left, right) in pairs.items():
        here = f"{path}.{name}" if path else name
        if _idle(left, right):
            continue
        if isinstance(left, _Nothing) or isinstance(right, _Nothing):
            found.append(Difference(here, _shown(left), _shown(right)))
        else:
            found += differences(left, right, here)
    return found


def _idle(left: Any, right: Any) -> bool:
    """Whether neither side does anything: absent, `AsIs()`, or an empty mapping."""
    return all(isinstance(each, _Nothing) or is_nothing(each) for each in (left, right))


def _shown(value: Any) -> str:
    if isinstance(value, _Nothing):
        return _ABSENT
    if isinstance(value, _Weight):
        over = "" if value.aggregate is None else f".over({told(value.aggregate)})"
        return told_weighted(value.weight, value.part) + over
    return told(value)


def _aligned(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    nothing = _Nothing()
    return {name: (left.get(name, nothing), right.get(name, nothing)) for name in {**left, **right}}


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in stages(value) if name != "name"}


def _composite(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_record, value))
    return isinstance(value, Chain | Objective | Mix)


def _kin(left: Any, right: Any) -> bool:
    """Whether two values can be aligned part by part: objectives, mixes, tuples of parts, transforms in a chain."""
    if isinstance(left, tuple):
        return _composite(left) and _composite(right) and isinstance(right, tuple)
    if isinstance(left, Chain) or isinstance(right, Chain):
        return isinstance(left, Transform) and isinstance(right, Transform)
    return type(left) is type(right)


def _children(value: Any) -> dict[str, Any]:
    """The parts of a composite by name; a single transform counts as a chain of one."""
    if isinstance(value, Objective):
        return dict(zip(named([w.term for w in value.terms]), map(_as_weight, value.terms), strict=True))
    if isinstance(value, tuple):
        return dict(zip(named(value), value, strict=True))
    if isinstance(value, Mix):
        return dict(zip(named([part for _, part in value.parts]), map(_Weight.of, value.parts), strict=True))
    parts = value.parts if isinstance(value, Chain) else (value,)
    return dict(zip(named(parts), parts, strict=True))


@dataclass(frozen=True)
class _Weight:
    """A weighted part whose fields are compared as if they were the part's own."""

    weight: float
    part: Any
    aggregate: Any = None

    @classmethod
    def of(cls, pair: tuple[float, Any]) -> _Weight:
        return cls(*pair)


def _as_weight(w: Any) -> _Weight:
    return _Weight(w.weight, w.term, w.aggregate)


def _record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _stage_rows(left: Any, right: Any, found: list[Difference]) -> list[tuple[str, str, str]]:
    ours, theirs = _fields(left), _fields(right)
    shown = _differing_fields(left, right)
    rows = []
    for name, (a, b) in _aligned(ours, theirs).items():
        missing = isinstance(a, _Nothing) or isinstance(b, _Nothing)
        if _idle(a, b):
            continue
        texts = [_ABSENT if isinstance(each, _Nothing) else brief(each, shown) for each in (a, b)]
        rows.append((name, texts[0], "=" if not missing and a == b else texts[1]))
    return rows


def _differing_fields(left: Any, right: Any) -> set[tuple[str, str]]:
    """(class, field) of every field that has more than one value in the two records."""
    seen: dict[tuple[str, str], list[Any]] = {}
    for record in (left, right):
        for part in record.walk() if hasattr(record, "walk") else ():
            if is_dataclass(part):
                for f in fields(part):
                    values = seen.setdefault((type(part).__name__, f.name), [])
                    value = getattr(part, f.name)
                    if value not in values:
                        values.append(value)
    return {key for key, values in seen.items() if len(values) > 1}


def _columns(rows: list[tuple[str, str, str]], width: int) -> list[str]:
    """Three columns, the last two wrapped to share what the first leaves."""
    first = max(len(row[0]) for row in rows) + 2
    second = max(len(row[1]) for row in rows) + 2
    half = max((width - first) // 2, 24)
    last = max(len(row[2]) for row in rows)
    second = min(second, max(half, width - first - last))
    lines = []
    for name, left, right in rows:
        a = textwrap.wrap(left, second - 2, break_long_words=False, break_on_hyphens=False) or [""]
        b = textwrap.wrap(right, max(width - first - second, 24), break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
        for i in range(max(len(a), len(b))):
            cells = (name if i == 0 else "", a[i] if i < len(a) else "", b[i] if i < len(b) else "")
            lines.append(f"{cells[0]:<{first}}{cells[1]:<{second}}{cells[2]}".rstrip())
    return lines

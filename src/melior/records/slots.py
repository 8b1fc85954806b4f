"""Every place in a record that has a path of its own, such as `objective.clip.high`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args

from melior.method import Method
from melior.parts import Chain, Mix, Objective, Part, Term, Transform, Weighted
from melior.records.coerce import field_types, members
from melior.records.serialize import stages

Step = str | int


@dataclass(frozen=True)
class Slot:
    """A value in a record and where it stands.

    Attributes:
        path: its canonical path.
        long: the same with the class name after every part (`advantage.group_relative.scale`), also understood.
        steps: attribute names, positions and keys that lead to it.
        value: what stands there.
        kind: the declared type of the place.
    """

    path: str
    long: str
    steps: tuple[Step, ...]
    value: Any
    kind: Any


def snake(name: str) -> str:
    """The class name as it stands in paths: ReferenceKL -> reference_kl."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def slots(record: Any) -> Iterator[Slot]:
    """All slots of a record: parts, then what is inside them, along the line. Names and pins have none."""
    types = field_types(type(record))
    for name in stages(record):
        if name != "name" and not (isinstance(record, Method) and name == "pins"):
            yield from _within(Slot(name, name, (name,), getattr(record, name), types[name]))


def put(node: Any, steps: Sequence[Step], value: Any) -> Any:
    """A copy of `node` in which `value` stands at the end of `steps`."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(node, tuple):
        assert isinstance(step, int)
        return (*node[:step], put(node[step], rest, value), *node[step + 1 :])
    if isinstance(node, Mapping):
        return {**node, step: put(node.get(step), rest, value)}
    assert isinstance(step, str)
    return replace(node, **{step: put(getattr(node, step), rest, value)})


def named(parts: Sequence[Any]) -> list[str]:
    """A name for each of several parts: its class in snake case, numbered from 0 where the class stands twice."""
    names = [snake(type(part).__name__) for part in parts]
    twins, seen = Counter(names), Counter[str]()
    result = []
    for name in names:
        result.append(f"{name}.{seen[name]}" if twins[name] > 1 else name)
        seen[name] += 1
    return result


def _within(slot: Slot) -> Iterator[Slot]:
    yield slot
    value = slot.value
    if isinstance(value, Chain):
        for i, name in enumerate(named(value.parts)):
            yield from _within(_below(slot, name, ("parts", i), value.parts[i], Transform))
    elif isinstance(value, Objective):
        for i, name in enumerate(named([w.term for w in value.terms])):
            yield from _weighted(_below(slot, name, ("terms", i), value.terms[i], Weighted))
    elif isinstance(value, Mix):
        for i, name in enumerate(named([part for _, part in value.parts])):
            yield from _mixed(slot, name, i, value.parts[i])
    elif isinstance(value, Mapping):
        inner = next((get_args(m)[1] for m in members(slot.kind) if len(get_args(m)) == 2), Any)
        for key, each in value.items():
            yield from _within(_below(slot, str(key), (str(key),), each, inner))
    elif isinstance(value, tuple) and any(isinstance(each, Part) for each in value):
        for i, name in enumerate(named(value)):
            yield from _within(_below(slot, name, (i,), value[i], Any))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _fields(slot, value)


def _fields(slot: Slot, value: Any, reserved: Mapping[str, str] | None = None) -> Iterator[Slot]:
    """The fields of a part; a field whose name is `reserved` by the weight around it gets the path given there."""
    if isinstance(value, Method):
        for inner in slots(value):
            yield Slot(
                f"{slot.path}.{inner.path}",
                f"{slot.long}.{inner.long}",
                slot.steps + inner.steps,
                inner.value,
                inner.kind,
            )
        return
    types, last = field_types(type(value)), slot.long.rpartition(".")[2]
    own = snake(type(value).__name__)
    long = slot.long if last == own or last.isdigit() else f"{slot.long}.{own}"
    for f in fields(value):
        if f.init:
            name = (reserved or {}).get(f.name, f.name)
            here = Slot(
                f"{slot.path}.{name}", f"{long}.{name}", (*slot.steps, f.name), getattr(value, f.name), types[f.name]
            )
            yield from _within(here)


def _weighted(slot: Slot) -> Iterator[Slot]:
    w = slot.value
    yield slot
    yield from _within(_below(slot, "weight", ("weight",), w.weight, float))
    yield from _within(_below(slot, "aggregate", ("aggregate",), w.aggregate, field_types(Weighted)["aggregate"]))
    term = Slot(slot.path, slot.long, (*slot.steps, "term"), w.term, Term)
    yield from _fields(term, w.term, {"weight": "term.weight", "aggregate": "term.aggregate"})


def _mixed(slot: Slot, name: str, i: int, pair: tuple[float, Transform]) -> Iterator[Slot]:
    weight, part = pair
    here = _below(slot, name, ("parts", i, 1), part, Transform)
    yield here
    yield Slot(f"{here.path}.weight", f"{here.long}.weight", (*slot.steps, "parts", i, 0), weight, float)
    yield from _fields(here, part, {"weight": "transform.weight"})


def _below(slot: Slot, name: str, steps: tuple[Step, ...], value: Any, kind: Any) -> Slot:
    return Slot(f"{slot.path}.{name}", f"{slot.long}.{name}", slot.steps + steps, value, kind)

"""`--set path=value`: exact changes to a record and its settings.

A path is written in full (`objective.clip.high`, `advantage.gae.lam`, `settings.lr`) or as any ending of it that
occurs once (`high`, `lr`). Values are YAML; a whole part is replaced by its name (`advantage=LeaveOneOut`) or by
`{part: NAME, ...}`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_args

from melior.errors import MeliorError, UserError
from melior.method import Method
from melior.parts import Term, Weighted
from melior.records.coerce import members
from melior.records.foreign import foreign
from melior.records.limits import check_limits
from melior.records.notes import note
from melior.records.serialize import from_tree
from melior.records.slots import Slot, put, slots
from melior.records.yaml_text import load_yaml
from melior.settings import RunSettings

_Settings = TypeVar("_Settings", bound="RunSettings | None")
_HEAD = "settings"


def paths(record: Any, settings: RunSettings | None = None) -> dict[str, Any]:
    """Every path that can be set, and the value that stands there."""
    return {slot.path: slot.value for slot in _slots(record, settings)}


def apply(record: Any, settings: _Settings, changes: Iterable[str]) -> tuple[Any, _Settings]:
    """The record and the settings after changes such as "objective.clip.high=0.28", one after the other.

    A setting that the method pins may be changed too: the pin takes the new value, and a warning says so.

    Raises:
        UserError: an unknown path (the near ones are named), one that is not unique (all are named), or a wrong value.
    """
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise UserError(f"cannot set {change!r}; write path=value, such as objective.clip.high=0.28")
        record, settings = _set(record, settings, path.strip(), text.strip())
    return record, settings


def _set(record: Any, settings: Any, path: str, text: str) -> tuple[Any, Any]:
    slot = _found(path, list(_slots(record, settings)))
    value = _value(text, slot)
    try:
        if slot.steps[0] != _HEAD:
            return put(record, slot.steps, value), settings
        changed = put(settings, slot.steps[1:], value)
    except MeliorError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{slot.path} cannot be {text}: {error}") from error
    check_limits(changed)
    return _unpinned(record, str(slot.steps[1]), value), changed


def _unpinned(record: Any, name: str, value: Any) -> Any:
    if not isinstance(record, Method) or name not in record.pins or record.pins[name] == value:
        return record
    note(
        f"{record.name} pins {name} = {record.pins[name]!r} and is run with {value!r}: this is no longer the method "
        "as published"
    )
    return replace(record, pins={**record.pins, name: value})


def _slots(record: Any, settings: RunSettings | None) -> list[Slot]:
    found = list(slots(record))
    if settings is not None:
        found += [
            replace(each, path=f"{_HEAD}.{each.path}", long=f"{_HEAD}.{each.long}", steps=(_HEAD, *each.steps))
            for each in slots(settings)
        ]
    return found


def _found(path: str, known: list[Slot]) -> Slot:
    wanted = _squashed(path)
    exact = [slot for slot in known if wanted in (_squashed(slot.path), _squashed(slot.long))]
    if len(exact) == 1:
        return exact[0]
    fresh = _fresh_key(path, known)
    if fresh is not None:
        return fresh
    ending = [slot for slot in known if f".{_squashed(slot.path)}".endswith(f".{wanted}")]
    ending = ending or [slot for slot in known if f".{_squashed(slot.long)}".endswith(f".{wanted}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise UserError(f"'{path}' could be {_either([slot.path for slot in ending])}; write it in full")
    raise UserError(f"there is no '{path}' to set{foreign(path) or _near_path(path, known)}")


def _fresh_key(path: str, known: list[Slot]) -> Slot | None:
    """A new key of a mapping, such as `scorers.teacher` where there is none yet."""
    parent, dot, key = path.rpartition(".")
    for slot in known:
        if dot and isinstance(slot.value, Mapping) and _squashed(slot.path) == _squashed(parent):
            inner = next((get_args(m)[1] for m in members(slot.kind) if len(get_args(m)) == 2), Any)
            return Slot(f"{slot.path}.{key}", f"{slot.long}.{key}", (*slot.steps, key), None, inner)
    return None


def _value(text: str, slot: Slot) -> Any:
    where = slot.path.removeprefix(f"{_HEAD}.")
    node = load_yaml(text, f"the value of {slot.path}")
    options = members(slot.kind)
    if node == "none" and type(None) in options and str not in options and "none" not in _literals(options):
        return None  # nobody but YAML calls it null
    if str in options and not isinstance(node, str) and not (node is None and type(None) in options):
        return text  # a text field takes `no`, `007` or nothing at all as they stand
    if isinstance(slot.value, Weighted) and not (isinstance(node, Mapping) and "term" in node):
        return replace(slot.value, term=from_tree(node, Term, where))
    return from_tree(node, slot.kind, where)


def _literals(options: Iterable[Any]) -> set[Any]:
    return {value for option in options for value in get_args(option)}


def _near_path(path: str, known: list[Slot]) -> str:
    """Candidates whose last words are like those that were asked for."""
    count = path.count(".") + 1
    endings: dict[str, list[str]] = {}
    for slot in known:
        for ending in {".".join(slot.path.split(".")[-count:]), slot.path}:
            endings.setdefault(ending, []).append(slot.path)
    close = difflib.get_close_matches(path, endings, n=3, cutoff=0.6)
    last = path.rpartition(".")[2]
    same = [slot.path for slot in known if slot.path.rpartition(".")[2] == last]
    candidates = list(dict.fromkeys([*same[:3], *(full for ending in close for full in endings[ending])]))[:4]
    return f"; did you mean {_either(candidates)}?" if candidates else "; `melior show NAME` lists a method's parts"


def _either(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)


def _squashed(path: str) -> str:
    return path.replace("_", "").replace("-", "").lower()

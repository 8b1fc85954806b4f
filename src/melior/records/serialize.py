"""Records as plain trees and as YAML, and back. Nothing is evaluated.

A part is a mapping with its class and its fields: `{part: Clip, low: 0.2, high: 0.28}`. What reads better has a form of
its own:

    method: grpo                              # a Method, and its name
    reward:                                   # a list where a transform is expected: A | B
    - {part: Sum}
    - {part: OverlongPenalty, buffer: 0}
    advantage:
      mix:                                    # 0.7 * A + 0.3 * B
      - {weight: 0.7, transform: {part: GroupRelative}}
      - {weight: 0.3, transform: {part: LeaveOneOut}}
    objective:                                # a list where an objective is expected: A + 0.04 * B
    - {part: Clip, high: 0.28}
    - {weight: 0.04, term: {part: ReferenceKL}, aggregate: {part: TokenMean}}

Fields that are left out keep their defaults, and a part may be given by its name alone (`advantage: LeaveOneOut`).
Classes from outside the package are written `path/mine.py:Kind` or `module:Kind`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin

from melior.errors import MeliorError, UserError, near
from melior.method import Method
from melior.parts import Chain, Mix, Objective, Part, Term, Transform, Weighted
from melior.records.coerce import coerce, field_types, members, words
from melior.records.kinds import find_kind, tag_of
from melior.records.limits import check_limits
from melior.settings import RunSettings

# The fields of a method in the order of the line; `name` comes first by its own key.
LINE = (
    "rollout",
    "reward",
    "teacher",
    "advantage",
    "objective",
    "aggregate",
    "update",
    "curriculum",
    "memory",
    "scorers",
    "others",
    "pins",
)
_Settings = TypeVar("_Settings", bound=RunSettings)


def stages(record: Any) -> tuple[str, ...]:
    """The fields of a record as they are shown: along the line for a method, else in the order of the class."""
    names = tuple(f.name for f in fields(record) if f.init)
    if not isinstance(record, Method):
        return names
    return LINE + tuple(name for name in names if name not in LINE and name != "name")


def tree(value: Any, kind: Any = Any, portable: bool = False) -> Any:
    """A record or any value in it as mappings, lists, text, numbers, true/false and null.

    Args:
        value: a record, a part, or a plain value.
        kind: the declared type of the place where it stands; lists and numbers are written accordingly.
        portable: name classes without the folder that their file lies in.
    """
    if isinstance(value, Objective) and _admits(kind, Objective):
        return [_weighted(w, portable) for w in value.terms]
    if isinstance(value, Chain) and _admits(kind, Chain):
        return [tree(part, Transform, portable) for part in value.parts]
    if isinstance(value, Mix):
        return {"mix": [{"weight": float(w), "transform": tree(t, Transform, portable)} for w, t in value.parts]}
    if is_dataclass(value) and not isinstance(value, type):
        types = field_types(type(value))
        head = {"method": value.name} if isinstance(value, Method) else {"part": tag_of(type(value), portable)}
        return head | {name: tree(getattr(value, name), types[name], portable) for name in stages(value)}
    if isinstance(value, Part):
        raise UserError(f"{type(value).__name__} is no dataclass: put @dataclass(frozen=True) above its class")
    return _plain(value, kind, portable)


def _plain(value: Any, kind: Any, portable: bool) -> Any:
    if isinstance(value, Mapping):
        inner = next((get_args(m)[1] for m in members(kind) if len(get_args(m)) == 2), Any)
        return {str(key): tree(each, inner, portable) for key, each in value.items()}
    if isinstance(value, tuple | list):
        kinds = _item_kinds(kind, len(value))
        return [tree(each, inner, portable) for each, inner in zip(value, kinds, strict=True)]
    if isinstance(value, int) and not isinstance(value, bool) and float in members(kind) and int not in members(kind):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{value!r} is no plain value, so the record that holds it cannot be written to a file")


def _weighted(w: Weighted, portable: bool) -> Any:
    term = tree(w.term, Term, portable)
    if w.weight == 1 and w.aggregate is None:
        return term
    more = {} if w.aggregate is None else {"aggregate": tree(w.aggregate, Any, portable)}
    return {"weight": float(w.weight), "term": term, **more}


def from_tree(node: Any, kind: Any = Any, where: str = "") -> Any:
    """The value that `tree` wrote, or that a person did.

    Args:
        node: plain data, for instance from YAML.
        kind: the type that is expected.
        where: what to call this place in an error, such as "objective.clip.high".

    Raises:
        UserError: an unknown class or field (the near ones are named), or a value of the wrong type.
    """
    if kind is Any or type(kind).__name__ == "TypeVar":
        return _untyped(node, where)
    options = members(kind)
    if node is None and type(None) in options:
        return None
    classes = [get_origin(m) or m for m in options if _is_record_type(m)]
    if classes and (len(classes) == len([m for m in options if m is not type(None)]) or _looks_tagged(node)):
        return _record(node, tuple(classes), where)
    origin, inner = get_origin(kind), get_args(kind)
    if inspect.isclass(origin) and issubclass(origin, Mapping) and _holds_records(inner[1]):
        if not isinstance(node, Mapping):
            raise UserError(f"{where} must be a mapping, got {node!r}")
        return {str(key): from_tree(each, inner[1], f"{where}.{key}") for key, each in node.items()}
    if origin is tuple and any(_holds_records(each) for each in inner):
        if not isinstance(node, list | tuple):
            raise UserError(f"{where} must be {words(kind)}, got {node!r}")
        if inner[-1] is not Ellipsis and len(inner) != len(node):
            raise UserError(f"{where} must be {words(kind)}, got {len(node)} values")
        pairs = zip(node, _item_kinds(kind, len(node)), strict=True)
        return tuple(from_tree(each, one, f"{where}[{i}]") for i, (each, one) in enumerate(pairs))
    return _untyped(coerce(node, kind, where), where)


def to_yaml(record: Any) -> str:
    """A record as YAML."""
    from melior.records.yaml_text import dump_yaml  # here, since most commands show records without YAML

    return dump_yaml(tree(record))


def from_yaml(text: str) -> Any:
    """The record that a YAML text describes."""
    from melior.records.yaml_text import load_yaml

    return from_tree(load_yaml(text))


def fingerprint(record: Any) -> str:
    """Twelve hexadecimal digits that are equal exactly when two records have equal parts and values.

    What a record is called does not count: `grpo.but("mine")` computes the same.
    """
    plain = tree(record, portable=True)
    named = {key: value for key, value in plain.items() if key not in ("method", "name")}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def settings_tree(settings: RunSettings) -> dict[str, Any]:
    """Settings as plain data, the name of their class under "kind"."""
    types = field_types(type(settings))
    plain = {f.name: tree(getattr(settings, f.name), types[f.name]) for f in fields(settings)}
    return {"kind": type(settings).__name__, **plain}


def settings_from(given: Mapping[str, Any], kind: type[_Settings]) -> _Settings:
    """Settings of this class from names and values; what is not given keeps its default.

    Raises:
        UserError: an unknown name (the near ones are named), a value of the wrong type or out of bounds.
    """
    types = field_types(kind)
    for name in given:
        if name not in types:
            raise UserError(f"there is no setting '{name}'{near(name, types)}")
    made = kind(**{name: coerce(value, types[name], name) for name, value in given.items()})
    check_limits(made)
    return made


def _record(node: Any, expected: tuple[type, ...], where: str) -> Any:
    """A dataclass instance from its tagged mapping, its name, or one of the short forms."""
    if isinstance(node, str) and expected == (Method,):
        from melior.records.catalogue import resolve

        return _fitted(resolve(node), expected, where)
    if isinstance(node, str):
        node = {"part": node}
    if isinstance(node, list):
        return _sequence(node, expected, where)
    if not isinstance(node, Mapping):
        raise UserError(f"{_at(where)}expected {_names(expected)} as {{part: NAME, ...}}, got {node!r}")
    given = {str(key): value for key, value in node.items()}
    if "method" in given and "part" not in given:
        made = _build(Method, {"name": given.pop("method"), **given}, where)
    elif "mix" in given:
        made = _mix(given, where)
    elif "part" in given:
        name = given.pop("part")
        if not isinstance(name, str):
            raise UserError(f"{_at(where)}'part' must be the name of a class, got {name!r}")
        made = _build(find_kind(name, expected, where), given, where)
    elif "term" in given and Objective in expected:
        made = Objective((_build(Weighted, given, where),))
    else:
        concrete = [kind for kind in expected if is_dataclass(kind)]
        if len(concrete) != 1:
            raise UserError(f"{_at(where)}expected {_names(expected)}; say which by part: NAME")
        made = _build(concrete[0], given, where)
    return _fitted(made, expected, where)


def _sequence(node: list[Any], expected: tuple[type, ...], where: str) -> Any:
    if Objective in expected:
        return Objective(tuple(_as_weighted(each, f"{where}[{i}]") for i, each in enumerate(node)))
    if _admits_classes(expected, Chain):
        return Chain(tuple(from_tree(each, Transform, f"{where}[{i}]") for i, each in enumerate(node)))
    raise UserError(f"{_at(where)}expected {_names(expected)} as {{part: NAME, ...}}, got a list")


def _as_weighted(node: Any, where: str) -> Weighted:
    if isinstance(node, Mapping) and "term" in node:
        return _build(Weighted, {"weight": 1.0, **node}, where)
    return Weighted(1.0, from_tree(node, Term, where))


def _mix(given: Mapping[str, Any], where: str) -> Mix:
    parts, extra = given["mix"], sorted(set(given) - {"mix"})
    if extra or not isinstance(parts, list):
        raise UserError(
            f"{_at(where)}a mix is {{mix: [{{weight: 0.7, transform: {{part: NAME}}}}, ...]}}, got {given!r}"
        )
    pairs = []
    for i, each in enumerate(parts):
        if not isinstance(each, Mapping) or set(each) != {"weight", "transform"}:
            raise UserError(f"{_at(where)}entry {i} of a mix has a weight and a transform, got {each!r}")
        place = f"{where}[{i}]"
        pairs.append((coerce(each["weight"], float, place), from_tree(each["transform"], Transform, place)))
    return Mix(tuple(pairs))


def _build(kind: type, given: Mapping[str, Any], where: str) -> Any:
    """An instance of `kind` from the values of its fields."""
    types = field_types(kind)
    called = "a method" if kind is Method else kind.__name__
    for name in given:
        if name not in types:
            options = [option for option in types if kind is not Method or option != "name"]
            raise UserError(f"{_at(where)}{called} has no field '{name}'{near(name, options)}")
    for f in fields(kind):
        if f.init and f.name not in given and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{_at(where)}{called} needs a value for '{f.name}'")
    inside = f"{where}." if where else ""
    values = {name: from_tree(value, types[name], f"{inside}{name}") for name, value in given.items()}
    try:
        return kind(**values)
    except MeliorError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{_at(where)}{called} refuses its values: {error}") from error


def _fitted(made: Any, expected: tuple[type, ...], where: str) -> Any:
    if isinstance(made, Term) and Objective in expected:
        return Objective((Weighted(1.0, made),))
    solid = [kind for kind in expected if not getattr(kind, "_is_protocol", False) and kind is not object]
    if solid and not isinstance(made, tuple(solid)):
        bases = [base.__name__ for base in type(made).__mro__ if base.__module__ == "melior.parts"]
        known = f", and {type(made).__name__} is a {bases[0]}" if bases else f", not {type(made).__name__}"
        raise UserError(f"{_at(where)}expected {_names(expected)}{known}")
    return made


def _untyped(node: Any, where: str) -> Any:
    if _looks_tagged(node):
        return _record(node, (object,), where)
    if isinstance(node, Mapping):
        return {key: _untyped(each, f"{where}.{key}") for key, each in node.items()}
    if isinstance(node, list | tuple):
        return tuple(_untyped(each, f"{where}[{i}]") for i, each in enumerate(node))
    return node


def _looks_tagged(node: Any) -> bool:
    if not isinstance(node, Mapping):
        return False
    return isinstance(node.get("mix"), list) or any(isinstance(node.get(key), str) for key in ("part", "method"))


def _is_record_type(kind: Any) -> bool:
    bare = get_origin(kind) or kind
    if not inspect.isclass(bare):
        return False
    return issubclass(bare, Part) or is_dataclass(bare) or bool(getattr(bare, "_is_protocol", False))


def _holds_records(kind: Any) -> bool:
    return any(_is_record_type(m) or any(_holds_records(inner) for inner in get_args(m)) for m in members(kind))


def _admits(kind: Any, wanted: type) -> bool:
    """Whether a list stands for `wanted` where `kind` is declared."""
    return _admits_classes(tuple(m for m in members(kind) if inspect.isclass(m)), wanted)


def _admits_classes(classes: tuple[type, ...], wanted: type) -> bool:
    if Objective in classes:
        return wanted is Objective
    return wanted is Chain and any(issubclass(Chain, kind) and kind not in (Part, object) for kind in classes)


def _item_kinds(kind: Any, count: int) -> list[Any]:
    for member in members(kind):
        if get_origin(member) in (tuple, list) and get_args(member):
            inner = get_args(member)
            if len(inner) == 1 or inner[-1] is Ellipsis:
                return [inner[0]] * count
            if len(inner) == count:
                return list(inner)
    return [Any] * count


def _names(kinds: tuple[type, ...]) -> str:
    return " or ".join(f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}" for kind in kinds)


def _at(where: str) -> str:
    return f"{where}: " if where else ""

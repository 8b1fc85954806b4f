"""From what a user asked for to a resolved record and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from melior.errors import UserError, near
from melior.loops import loop_of
from melior.loops.summary import going_on
from melior.method import Entry, Method
from melior.policies.saved_table import is_table
from melior.records.catalogue import find, resolve
from melior.records.config import read_config
from melior.records.foreign import foreign
from melior.records.overrides import apply
from melior.records.serialize import settings_from
from melior.settings import (
    ControlSettings,
    LanguageSettings,
    RunSettings,
    as_sampler,
    given_as_objects,
    stands_for_object,
)

_Settings = TypeVar("_Settings", bound=RunSettings)
LORA_RATE = 10.0  # adapters are few and start at zero: they bear, and need, a much higher rate
TABLE_RATE = 0.05  # logits of a table start at zero and have to move by several units
OF_DATA = ("data", "eval_data", "prompt_column", "prompt_template", "answer_column", "reward", "reward_weights")


@dataclass(frozen=True)
class Request:
    """A resolved request.

    Attributes:
        record: the record after all overrides.
        settings: the settings after all overrides.
        notes: what was decided on the user's behalf.
    """

    record: Any
    settings: RunSettings
    notes: tuple[str, ...] = ()


def resolve_request(
    method: Any,
    given: Mapping[str, Any],
    overrides: Sequence[str] = (),
    config: str | Path | None = None,
    paper_settings: bool = False,
    tuned: bool = False,
) -> Request:
    """Settings by rising precedence: defaults, configuration file, task, paper, tuned, given, pins, overrides.

    Raises:
        UserError: an unknown method, setting or override, or a value out of bounds.
    """
    notes: list[str] = []
    base: dict[str, Any] = {}
    if config is not None:
        read = read_config(Path(config))
        notes += [read.changed()] if read.changed() else []
        record, saved = read.record, read.settings
        base = {f.name: getattr(saved, f.name) for f in fields(saved)} if saved is not None else {}
        if method is not None:
            record = resolve(method)
    else:
        record = resolve("grpo" if method is None else method)
    kind = loop_of(record).SETTINGS
    names = {f.name for f in fields(kind)}
    name = getattr(record, "name", "?")
    for key in given:
        if key not in names:
            raise UserError(
                f"method '{name}' reads no setting '{key}'{_belongs(key) or foreign(key) or near(key, names)}"
            )
    if given.get("data"):
        if given.get("task"):
            raise UserError("give a task or data, not both")
        given = {**given, "task": ""}
    elif given.get("task") and base:  # a task brings its own rows and rewards
        base |= {key: getattr(kind(), key) for key in (*OF_DATA, "outcome") if key in names}
    values = {**base, **_recommended({**base, **given}, names)} if not base else dict(base)
    if paper_settings:
        values |= {key: value for key, value in _entry_settings(method).items() if key in names}
    if "lr" not in given and not base:
        notes += _own_rate(given, values, kind.lr)
    values |= given
    pins = _pins(record) if isinstance(record, Method) else {}
    for key, value in pins.items():
        if key in given and given[key] != value:
            notes.append(f"'{name}' pins {key} = {value}; use --set settings.{key}={given[key]} to overrule it")
    settings = settings_from(values | pins, kind)
    if tuned:
        changes, source = _tuned(method, record, getattr(settings, "env", ""))
        record, settings = adopt(record, settings, {k: v for k, v in changes.items() if k not in given})
        notes.append(f"tuned settings: {source}")
    record, settings = apply(record, settings, overrides)
    return Request(record, settings, tuple(notes))


def resumed_request(path: Path, given: Mapping[str, Any]) -> Request:
    """What a run folder goes on with: its own record and settings, more steps, and where it samples, if asked for.

    Args:
        path: the run folder.
        given: what was given besides it, by name; objects stand in it as they do in a configuration.

    Raises:
        UserError: anything but more steps, another sampler, and the objects that no configuration can hold.
    """
    saved = read_config(path)
    if saved.settings is None:
        raise UserError(f"{path}/config.yaml holds no settings")
    settings, notes = saved.settings, [saved.changed()] if saved.changed() else []
    for key, value in given.items():
        own = getattr(settings, key, None)
        if key == "steps":
            if value < settings.steps:
                raise UserError(f"{path} is a run of {settings.steps} steps; going on, it can have more, not {value}")
            if value > settings.steps and settings.schedule != "constant":
                notes.append(f"the {settings.schedule} schedule now ends at step {value}, not {settings.steps}")
        elif key == "sampler" and isinstance(settings, LanguageSettings):
            if value != own:
                notes.append(f"this run sampled from {own} and goes on with {value}")
        elif key == "method" and value == getattr(saved.record, "name", None):
            pass  # the same method, said once more
        elif stands_for_object(own) and not stands_for_object(value):
            again = going_on(path, given_as_objects(settings))
            raise UserError(f"this run was given its {key} in Python, where no file holds it; go on with {again}")
        elif not stands_for_object(own):
            raise UserError(
                f"a run goes on as it was begun, so {key} cannot be given with resume ({path}/config.yaml holds it); "
                "steps and sampler can, or start a new run with config"
            )
        elif value != own:
            raise UserError(
                f"this run was begun with {key} {_names(own)}; going on with {_names(value)} would change it"
            )
    changed = as_sampler(given["sampler"]) if "sampler" in given else {}
    changed["steps"] = given.get("steps", settings.steps)
    return Request(saved.record, replace(settings, **changed), tuple(notes))


def _belongs(key: str) -> str:
    """A hint for a setting of another world than the method's."""
    for kind, where in (
        (LanguageSettings, "act on text, such as grpo"),
        (ControlSettings, "act in environments, such as ppo"),
    ):
        if key in {f.name for f in fields(kind)}:
            return f"; it is for methods that {where}"
    return ""


def _own_rate(given: Mapping[str, Any], values: dict[str, Any], plain: float) -> list[str]:
    """Sets the learning rate of models that need another than all weights of a language model do; says so."""
    model = str(given.get("model", ""))
    if is_table(model) and "lr" not in values:
        values["lr"] = TABLE_RATE
        return [f"a table trains at {TABLE_RATE:g}; --lr changes it"]
    if given.get("lora") or (model and (Path(model) / "adapter_config.json").is_file()):
        values["lr"] = LORA_RATE * values.get("lr", plain)
        return [f"LoRA trains at {values['lr']:g}, {LORA_RATE:g} times the rate for all weights; --lr changes it"]
    return []


def _names(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _pins(record: Method) -> dict[str, Any]:
    """What the record and those of its further learners pin; settings are shared, so they must agree."""
    pins = dict(record.pins)
    for name, other in record.others.items():
        for key, value in other.pins.items():
            if pins.setdefault(key, value) != value:
                raise UserError(f"'{record.name}' needs {key} = {pins[key]}, but its learner '{name}' {key} = {value}")
    return pins


def _recommended(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """What the chosen task recommends; nothing when the user brings data."""
    if "task" not in names or given.get("data"):
        return {}
    from melior.tasks import get_task

    task = given.get("task", LanguageSettings.task)
    return dict(get_task(task).settings) if task else {}


def _tuned(method: Any, record: Any, env: str) -> tuple[Mapping[str, Any], str]:
    found = find(record.name if method is None else method)
    known = found.tuned if isinstance(found, Entry) else {}
    if env not in known:
        have = f"; there are for {', '.join(sorted(known))}" if known else ""
        raise UserError(f"'{record.name}' has no tuned settings for {env or 'text'}{have}")
    return known[env]


def adopt(record: Any, settings: _Settings, changes: Mapping[str, Any]) -> tuple[Any, _Settings]:
    """A record and settings with published changes: names of the record's fields and of settings, with their values."""
    stages = {f.name for f in fields(record)}
    names = {f.name for f in fields(settings)}
    for name in changes:
        if name not in stages | names:
            raise UserError(f"neither '{record.name}' nor the settings have '{name}'{near(name, stages | names)}")
    of_record = {name: value for name, value in changes.items() if name in stages}
    of_settings = {name: value for name, value in changes.items() if name not in stages}
    return record.but(record.name, **of_record), replace(settings, **of_settings)


def _entry_settings(method: Any) -> Mapping[str, Any]:
    found = find(method)
    if not isinstance(found, Entry):
        raise UserError("paper settings belong to methods of the catalogue, and this record is not one of them")
    return found.settings

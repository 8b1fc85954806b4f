"""The resolved configuration of a run: its record and its settings in one YAML file that runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melior.errors import UserError, near
from melior.records.kinds import own_kinds
from melior.records.serialize import fingerprint, from_tree, settings_from, settings_tree, tree
from melior.records.yaml_text import dump_yaml, read_yaml
from melior.settings import RunSettings

FILE = "config.yaml"
_KEYS = ("fingerprint", "record", "settings")


@dataclass(frozen=True)
class Config:
    """What a run was started with.

    Attributes:
        record: the method after all overrides.
        settings: everything else; None when the file names none.
        fingerprint: of the record as it was written; "" in a file written by hand.
    """

    record: Any
    settings: RunSettings | None = None
    fingerprint: str = ""

    def changed(self) -> str:
        """A sentence when the record no longer is what the run was started with (its code changed); else ""."""
        now = fingerprint(self.record)
        if not self.fingerprint or now == self.fingerprint:
            return ""
        name = getattr(self.record, "name", type(self.record).__name__)
        return f"the record of '{name}' was {self.fingerprint} when this run was written and is {now} now"


def config_text(record: Any, settings: RunSettings) -> str:
    """The text of a configuration file."""
    return dump_yaml({"fingerprint": fingerprint(record), "record": tree(record), "settings": settings_tree(settings)})


def read_config(path: Path) -> Config:
    """The configuration in a run folder or file.

    `record` may also be the name of a method, as in a file written by hand (`record: grpo`), and a file may hold a
    record alone.

    Raises:
        UserError: no such file, not YAML, or names and values that the record or the settings do not know.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path} holds no {FILE}" if path.is_dir() else f"there is no file {path}")
    plain = read_yaml(file)
    if isinstance(plain, Mapping) and ("method" in plain or "part" in plain):
        plain = {"record": plain}  # a record alone, as `melior show NAME --yaml` prints it
    if not isinstance(plain, Mapping) or "record" not in plain:
        raise UserError(f"{file} is no configuration: it needs a record, such as 'record: grpo'")
    for key in plain:
        if key not in _KEYS:
            raise UserError(f"{file} has an unknown entry '{key}'{near(str(key), _KEYS)}")
    try:
        return Config(_record(plain["record"]), _settings(plain.get("settings")), str(plain.get("fingerprint", "")))
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def settings_kinds() -> dict[str, type[RunSettings]]:
    """Class name -> every class of settings."""
    own_kinds()  # imports the modules in which frames define theirs
    found: dict[str, type[RunSettings]] = {}
    waiting = [RunSettings]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting.extend(kind.__subclasses__())
    return found


def _record(node: Any) -> Any:
    if isinstance(node, str):
        from melior.records.catalogue import resolve

        return resolve(node)
    return from_tree(node)


def _settings(node: Any) -> RunSettings | None:
    if node is None:
        return None
    if not isinstance(node, Mapping):
        raise UserError(f"settings must be a mapping of names to values, got {node!r}")
    kinds, given = settings_kinds(), dict(node)
    name = given.pop("kind", "LanguageSettings")
    if name not in kinds:
        raise UserError(f"there is no kind of settings '{name}'{near(str(name), kinds)}")
    return settings_from(given, kinds[name])

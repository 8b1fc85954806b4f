"""Who is compared: methods, their variants on a grid, exchanged parts, and runs that have finished elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from melior.errors import UserError, near
from melior.method import Entry, Method
from melior.records.catalogue import entries, find
from melior.records.config import read_config
from melior.records.overrides import apply
from melior.records.serialize import fingerprint, settings_tree
from melior.storage.folder import CONFIG


@dataclass(frozen=True)
class Contender:
    """One row of the table.

    Attributes:
        label: what it is called.
        spec: an entry of the catalogue or a record; None for finished runs.
        overrides: what makes it this point of the grid.
        runs: folders or logs of runs that have finished elsewhere.
        source: what the user wrote.
    """

    label: str
    spec: Any = None
    overrides: tuple[str, ...] = ()
    runs: tuple[Path, ...] = ()
    source: str = ""

    def unpinned(self) -> Any:
        """What it is made of, without the settings that the method pins."""
        record = self.spec.record if isinstance(self.spec, Entry) else self.spec
        free = record.but(record.name, pins={})
        return replace(self.spec, record=free) if isinstance(self.spec, Entry) else free


def contenders_of(
    methods: Sequence[Any], grid: Sequence[tuple[str, ...]], cross: Sequence[str], of: Sequence[Any]
) -> list[Contender]:
    """The contenders in the order of the table: the methods at every point of the grid, then the crossed ones.

    Raises:
        UserError: an unknown method or field, a path that one of the records lacks, or something given twice.
    """
    found: list[Contender] = []
    elsewhere: dict[str, Contender] = {}
    for spec in methods:
        runs = _runs(spec)
        if not runs:
            found += _on_grid(_label(find(spec)), find(spec), grid, str(spec))
            continue
        kind = _kind(runs[0]) if len(runs) == 1 else str(spec)
        if kind in elsewhere:  # another seed of what was named before
            known = elsewhere[kind]
            if runs[0] in known.runs:
                raise UserError(f"'{spec}' is there twice; give each once")
            name = str(getattr(read_config(runs[0]).record, "name", known.label))
            joined = Contender(name, runs=known.runs + runs, source=f"{known.source} {spec}")
            found[found.index(known)] = joined
        else:
            joined = Contender(Path(spec).name or str(spec), runs=runs, source=str(spec))
            found.append(joined)
        elsewhere[kind] = joined
    for label, record in _crossed(cross, of):
        found += _on_grid(label, record, grid, label)
    names = [contender.label for contender in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"'{twice}' is there twice; give each once, or records of different names")
    return found


# ---- inside


def _label(found: Any) -> str:
    return found.name if isinstance(found, Entry) else str(getattr(found, "name", type(found).__name__))


def _on_grid(label: str, spec: Any, grid: Sequence[tuple[str, ...]], source: str) -> list[Contender]:
    record = spec.record if isinstance(spec, Entry) else spec
    found = []
    for point in grid:
        apply(record, None, [change for change in point if not change.startswith("settings.")])
        found.append(Contender(" ".join([label, *_short(point, grid)]), spec, point, source=source))
    return found


def _short(point: tuple[str, ...], grid: Sequence[tuple[str, ...]]) -> list[str]:
    """The overrides by the last word of their path, where that tells them apart."""
    lasts = [change.partition("=")[0].rpartition(".")[2] for change in grid[0]]
    clear = len(set(lasts)) == len(lasts)
    return [change.partition("=")[0].rpartition(".")[2] + "=" + change.partition("=")[2] if clear else change
            for change in point]  # fmt: skip


def _crossed(cross: Sequence[str], of: Sequence[Any]) -> list[tuple[str, Any]]:
    """(label, record) of every way to take each of these fields from one of the methods."""
    if not cross and not of:
        return []
    if not cross or len(of) < 2:
        raise UserError("crossing needs fields and at least two methods: --cross advantage objective --of grpo rloo")
    records = {_label(found): found.record if isinstance(found, Entry) else found for found in map(find, of)}
    if len(records) < len(of):
        raise UserError("the methods of a cross must have different names")
    for name, record in records.items():
        if not isinstance(record, Method):
            raise UserError(f"'{name}' is no Method, so its parts cannot be exchanged")
    known = [f.name for f in fields(Method) if f.name not in ("name", "pins", "others", "memory", "scorers")]
    for part in cross:
        if part not in known:
            raise UserError(f"a method has no part '{part}' to cross{near(part, known)}")
    base = next(iter(records.values()))
    found = []
    for givers in itertools.product(records, repeat=len(cross)):
        label = " + ".join(f"{giver}.{part}" for giver, part in zip(givers, cross, strict=True))
        parts = {part: getattr(records[giver], part) for giver, part in zip(givers, cross, strict=True)}
        helpers: dict[str, Mapping[str, Any]] = {}
        for what in ("memory", "scorers"):  # what a part remembers or asks comes with it
            helpers[what] = {key: value for giver in (*records,) if giver in givers
                             for key, value in getattr(records[giver], what).items()}  # fmt: skip
        found.append((label, base.but(label, **parts, **helpers)))
    return found


def _runs(spec: Any) -> tuple[Path, ...]:
    """The finished runs that a folder or log holds; () when a method is meant."""
    if not isinstance(spec, str | Path) or str(spec) in entries():
        return ()
    path = Path(spec)
    if not path.exists() or path.suffix in (".py", ".yaml", ".yml"):
        return ()
    if path.is_dir() and not (path / CONFIG).is_file():
        inside = sorted(config.parent for config in path.glob(f"*/{CONFIG}"))
        if inside:
            return tuple(inside)
    return (path,)


def _kind(run: Path) -> str:
    """Equal for runs that differ by nothing but their seed, when they are Melior's own; else the path."""
    if not (run / CONFIG).is_file():
        return str(run)
    own = read_config(run)
    settings = {} if own.settings is None else {**settings_tree(own.settings), "seed": 0}
    return f"{fingerprint(own.record)} {settings}"

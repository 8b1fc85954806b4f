"""TensorBoard events, of whichever trainer."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.inspect.logs import names
from melior.inspect.logs.log import RunLog, by_step

LOOKS_FOR = "TensorBoard events (events.out.tfevents.*)"
PATTERN = "events.out.tfevents.*"


@dataclass
class Events:
    """What event files hold.

    Attributes:
        rows: (step, {name: value}), in the order in which they were written.
        texts: the last text under each name.
        unread: files that could not be read, and why.
    """

    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def read(path: Path) -> RunLog | None:
    """A run of which there are only events: in the folder, at most three levels down, or the file itself.

    Raises:
        UserError: the package tensorboard is not installed, or the events are of several runs.
    """
    files = event_files(path, one_run=True)
    if not files:
        return None
    if not installed():
        raise UserError(f"{path} holds TensorBoard events; reading them needs: pip install 'melior[report]'")
    events = read_events(files)
    steps, metrics, unknown = run_of(events)
    return RunLog(
        source=path,
        trainer=_trainer({name for _, row in events.rows for name in row}),
        steps=steps,
        metrics=metrics,
        settings=arguments(events),
        unread=(*events.unread, *names.gathered(unknown)),
    )


def installed() -> bool:
    """Whether events can be read here."""
    return importlib.util.find_spec("tensorboard") is not None


def event_files(path: Path, one_run: bool = False) -> list[Path]:
    """The event files of a folder, oldest first, at most three levels down; the path itself when it is one.

    Raises:
        UserError: with `one_run`, when they lie in several folders, as those of several runs do.
    """
    if path.is_file():
        return [path] if path.match(PATTERN) else []
    found = [file for depth in ("", "*/", "*/*/", "*/*/*/") for file in path.glob(depth + PATTERN)]
    folders = sorted({str(file.parent.relative_to(path)) for file in found})
    if one_run and len(folders) > 1:
        raise UserError(f"{path} holds TensorBoard events of {len(folders)} runs; name one: {', '.join(folders[:5])}")
    return sorted(found, key=lambda file: (file.parent, file.name))


def read_events(files: Sequence[Path]) -> Events:
    """Scalars and texts of event files. A record that is cut short ends its file, and what came before is read."""
    found = Events()
    for file in files:
        try:
            for event in _events(file):
                _take(event, found)
        except Exception as error:  # the loader and protobuf raise errors of their own for damage of any kind
            found.unread.append(f"{file.name} ({type(error).__name__}: {' '.join(str(error).split())[:80]})")
    return found


def run_of(events: Events) -> tuple[Any, dict[str, Any], set[str]]:
    """(steps, figures by our names, names without a counterpart)."""
    rows, unknown = [], set()
    for step, figures in merged(events.rows):
        known, strange = names.tracked(figures)
        rows.append((step, known))
        unknown |= strange
    return *by_step(rows), unknown - {"train/epoch"}


def merged(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """One row a step, so that figures that belong together are translated together."""
    found: dict[int, dict[str, Any]] = {}
    for step, figures in rows:
        found.setdefault(step, {}).update(figures)
    return sorted(found.items())


def arguments(events: Events) -> dict[str, Any]:
    """Settings that the Transformers trainer writes beside its figures, by our names."""
    try:
        given = json.loads(events.texts.get("args/text_summary", "{}"))
    except ValueError:
        return {}
    return names.settings(given) if isinstance(given, Mapping) else {}


def _events(file: Path) -> Iterator[Any]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return LegacyEventFileLoader(str(file)).Load()


def _take(event: Any, found: Events) -> None:
    if event.HasField("session_log") and event.session_log.status == event.session_log.START and event.step:
        # A resumed run says so: what an earlier process wrote of this step and later ones does not count.
        found.rows = [row for row in found.rows if row[0] < event.step]
    for value in event.summary.value:
        if value.HasField("simple_value"):
            found.rows.append((int(event.step), {value.tag: float(value.simple_value)}))
        elif value.HasField("tensor"):
            _take_tensor(int(event.step), value, found)


def _take_tensor(step: int, value: Any, found: Events) -> None:
    from tensorboard.util import tensor_util

    array = tensor_util.make_ndarray(value.tensor)
    if array.size != 1:
        return
    if array.dtype.kind in "fiu":
        found.rows.append((step, {value.tag: float(array.reshape(-1)[0])}))
    elif array.dtype.kind in "OS":
        text = array.reshape(-1)[0]
        found.texts[value.tag] = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _trainer(tags: set[str]) -> str:
    if any(tag.startswith(("actor/", "critic/", "val-core/")) for tag in tags):
        return "verl"
    return "trl" if any(tag.startswith("train/") for tag in tags) else "melior"

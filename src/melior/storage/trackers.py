"""Further places for a run's figures: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from melior.errors import RunError, UserError, near
from melior.storage.writing import json_text, write_atomic

PROJECT = "melior"  # the project that runs are filed under where a tracker has projects


@runtime_checkable
class Tracker(Protocol):
    """A place for figures."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add the figures of a step; what is not a number is left out."""
        ...

    def close(self) -> None:
        """Write out what is still held back."""
        ...


def trackers(names: str, run_folder: Path, config: Any = None) -> tuple[list[Tracker], list[str]]:
    """The trackers of a run, and sentences for the user about those that are left out.

    TensorBoard is on by default, so it is left out with a note when it is not installed; the others were asked for.

    Args:
        names: "tensorboard", "wandb", "trackio", several by commas, or "".
        run_folder: events and identifiers are kept there, so that a resumed run goes on in the same place.
        config: the settings to show beside the figures, a dataclass or a mapping.

    Raises:
        UserError: an unknown name, or a missing package that was asked for.
    """
    wanted, notes = chosen_trackers(names)
    return [MAKERS[name](Path(run_folder), _plain(config)) for name in wanted], notes


def chosen_trackers(names: str) -> tuple[list[str], list[str]]:
    """The names of the trackers that `trackers` would make, and its notes and errors, before there is a run folder."""
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in wanted:
        if name not in MAKERS:
            raise UserError(f"log_to names '{name}', which is no tracker{near(name, MAKERS)}")
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise UserError(f"log_to {name} needs the package: pip install 'melior[{name}]'")
    if "tensorboard" in wanted and importlib.util.find_spec("tensorboard") is None:
        wanted.remove("tensorboard")
        return wanted, ["TensorBoard events are left out: it is not installed (pip install 'melior[report]')"]
    return wanted, []


class TensorBoard:
    """Events in RUN/tensorboard. The first step logged hides what an earlier process logged of it and later steps."""

    def __init__(self, run_folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = run_folder / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """See `Tracker.log`."""
        if self._writer is None:
            # Asked for here, since the import takes a second and a run that only evaluates needs none of it.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in _numbers(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker.close`."""
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """A run of Weights & Biases. Its identifier is kept in RUN/wandb-run.json; a resumed run goes on under it."""

    def __init__(self, run_folder: Path, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        kept = run_folder / "wandb-run.json"
        options: dict[str, Any] = {"project": PROJECT, "name": run_folder.name, "dir": str(run_folder)}
        if kept.exists():
            options |= {"id": _read_id(kept), "resume": "allow"}
        self._run = wandb.init(config=dict(config), **options)
        write_atomic(kept, json_text({"id": str(self._run.id)}))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """See `Tracker.log`."""
        self._run.log(_numbers(metrics), step=step)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._run.finish()


class Trackio:
    """A run of Trackio under the run folder's name, kept on this machine; a resumed run goes on in it."""

    def __init__(self, run_folder: Path, config: Mapping[str, Any]) -> None:
        self._trackio = importlib.import_module("trackio")
        self._trackio.init(project=PROJECT, name=run_folder.name, config=dict(config), resume="allow")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """See `Tracker.log`."""
        self._trackio.log(_numbers(metrics), step=step)

    def close(self) -> None:
        """See `Tracker.close`."""
        self._trackio.finish()


MAKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row that are single numbers, the step itself left out."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value for name, value in plain.items() if isinstance(value, int | float) and name != "step"}


def _plain(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    return json.loads(json.dumps(dict(values), default=repr))


def _read_id(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it to go on as a new run of Weights & Biases") from error

"""Which model folder an export is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from melior.errors import UserError
from melior.storage.checkpoints import Checkpoints, checkpoint_step, checkpoints_of, latest_checkpoint, verified_model
from melior.storage.folder import CONFIG

ADAPTER = "adapter_config.json"
OTHER_POLICIES = {"table.safetensors": "a table", "policy.json": "a control policy", "networks.json": "networks"}


@dataclass(frozen=True)
class Source:
    """The model folder, and where an export goes unless told otherwise.

    Attributes:
        folder: a transformers folder or a peft adapter folder.
        place: the folder that exports lie in.
        prefix: the beginning of their names there.
        name: of the model, in a GGUF file's own description.
    """

    folder: Path
    place: Path
    prefix: str
    name: str

    @property
    def is_adapter(self) -> bool:
        """Whether the folder holds a LoRA adapter rather than a whole model."""
        return (self.folder / ADAPTER).is_file()

    def beside(self, name: str) -> Path:
        """The path of an export of that name."""
        return self.place / f"{self.prefix}{name}"


def find_source(path: Path, checkpoint: int | str | None = None) -> Source:
    """The model folder that a run folder or a model folder stands for; UserError when it holds no language model.

    The files of a run's checkpoint are compared with their checksums first.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise UserError(f"there is no run folder or model folder {path}")
    if (path / CONFIG).is_file():
        chosen = _checkpoint(path, checkpoint)
        prefix = "" if checkpoint is None else f"{chosen.name}-"
        source = Source(verified_model(chosen), path, prefix, path.resolve().name)
    elif checkpoint is not None:
        raise UserError(f"{path} is not a run folder, so it has no checkpoints to choose from")
    else:
        path = path.absolute()
        source = Source(path, path.parent, f"{path.name}-", path.name)
    for file, kind in OTHER_POLICIES.items():
        if (source.folder / file).is_file():
            raise UserError(f"{source.folder} holds {kind}, not a language model; only those can be exported")
    return source


def _checkpoint(run: Path, wanted: int | str | None) -> Path:
    if wanted is None:
        found = latest_checkpoint(run)
    elif wanted == "best":
        found = Checkpoints(run).best()
        if found is None:
            raise UserError(f"no checkpoint of {run} has a score; leave out --checkpoint, or name a step")
    else:
        steps = {checkpoint_step(path): path for path in checkpoints_of(run)}
        found = steps.get(_step(wanted))
        if found is None and steps:
            raise UserError(f"{run} has no checkpoint of step {wanted}; it has those of {', '.join(map(str, steps))}")
    if found is None:
        raise UserError(f"{run} holds no checkpoint")
    return found


def _step(text: int | str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"a checkpoint is a step or 'best', not {text!r}") from None

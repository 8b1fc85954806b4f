"""The logs of trainers, read into one structure."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from melior.errors import UserError
from melior.inspect.logs.log import Rollouts, Row, RunLog

# One module a trainer, in the order in which they are tried. Each has `LOOKS_FOR`, a few words on what makes a path
# its own, and `read(path) -> RunLog | None`: None when the path is not its own, UserError or RunError when it is and
# cannot be read. Optional packages are imported inside.
READERS = (
    "melior.inspect.logs.melior_run",
    "melior.inspect.logs.trl",
    "melior.inspect.logs.verl",
    "melior.inspect.logs.wandb",
    "melior.inspect.logs.tensorboard",
)


def read(path: Path | str) -> RunLog:
    """The run that a folder or file holds, whoever trained it.

    Raises:
        UserError: no reader knows it; what each looked for is named.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    readers = [import_module(name) for name in READERS]
    for reader in readers:
        found = reader.read(path)
        if found is not None:
            return found
    looked = "; ".join(reader.LOOKS_FOR for reader in readers)
    raise UserError(f"{path} holds no run that can be read; looked for {looked}")


__all__ = ["Rollouts", "Row", "RunLog", "read"]

"""Runs of a comparison: what is there already, what goes on, and processes of one thread each for the rest."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from melior.comparing.plan import Cell
from melior.errors import MeliorError, RunError, UserError
from melior.loops import loop_of
from melior.records.config import read_config
from melior.records.differences import differences
from melior.records.serialize import fingerprint, settings_tree
from melior.settings import LanguageSettings, stands_for_object
from melior.storage.folder import CONFIG, RunFolder

State = Literal["absent", "interrupted", "finished"]


@dataclass(frozen=True)
class Ended:
    """How a cell ended: "finished", "interrupted" or "crashed", with the error's sentence."""

    cell: Cell
    status: str
    error: str = ""
    seconds: float = 0.0


def state_of(cell: Cell) -> State:
    """What is there of a cell: recognized by its record's fingerprint and its settings, and done by its summary.

    Raises:
        UserError: its folder holds a run of another record or of other settings.
    """
    if not (cell.folder / CONFIG).is_file():
        return "absent"
    own = read_config(cell.folder)
    if own.settings is None or settings_tree(own.settings) != settings_tree(cell.settings):
        changed = differences(own.settings, cell.settings, "settings")
        raise UserError(f"{cell.folder} holds a run of other settings{_first(changed)}; give another --out")
    if fingerprint(own.record) != fingerprint(cell.record):
        changed = differences(own.record, cell.record)
        raise UserError(f"{cell.folder} holds a run of another record{_first(changed)}; give another --out")
    summary = RunFolder.view(cell.folder).read_summary()
    return "finished" if summary is not None and not summary["interrupted"] else "interrupted"


def run_cells(
    cells: Sequence[Cell],
    objects: Mapping[str, Any],
    jobs: int,
    logs: Path,
    ended: Callable[[Ended], None],
) -> list[Ended]:
    """Runs what is not finished, `jobs` at a time, each in a process of its own with one thread.

    Args:
        cells: in the order in which they are begun.
        objects: what `melior.train` takes as objects (reward, data, model, env).
        jobs: processes side by side.
        logs: the folder for what each run prints.
        ended: told of every cell, when it ends or is found finished.

    Raises:
        KeyboardInterrupt: after Ctrl-C, once the runs have saved where they are. A second one does not wait.
    """
    done: list[Ended] = []
    waiting: list[Cell] = []
    for cell in cells:
        if state_of(cell) == "finished":
            done.append(Ended(cell, "finished"))
            ended(done[-1])
        else:
            waiting.append(cell)
    _refuse_used_gpu(waiting)
    _import_ahead(waiting)
    active: list[_Active] = []
    with _asked_to_stop() as stop:
        while waiting or active:
            while waiting and len(active) < jobs and not stop:
                active.append(_begin(waiting.pop(0), objects, logs))
            if stop and not active:
                break
            wait([each.process.sentinel for each in active], timeout=1.0)
            if stop:
                stop.pass_on(active)
            for each in [each for each in active if not each.process.is_alive()]:
                active.remove(each)
                done.append(each.outcome())
                ended(done[-1])
    if stop:
        raise KeyboardInterrupt
    return done


# ---- inside


@dataclass
class _Active:
    """A cell whose process is running."""

    cell: Cell
    process: Any
    receiver: Connection
    log: Path
    began: float = field(default_factory=time.monotonic)
    told: bool = False

    def outcome(self) -> Ended:
        took = time.monotonic() - self.began
        self.process.join()
        try:
            status, error = self.receiver.recv() if self.receiver.poll() else ("crashed", self._death())
        except EOFError:
            status, error = "crashed", self._death()
        self.receiver.close()
        return Ended(self.cell, status, error, took)

    def _death(self) -> str:
        code = self.process.exitcode
        how = f"was ended by signal {-code} (9 often means: out of memory)" if code < 0 else f"left with code {code}"
        return f"its process {how}; see {self.log}"


class _Stop:
    """Counts Ctrl-C; true after the first."""

    def __init__(self) -> None:
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def pass_on(self, active: Sequence[_Active]) -> None:
        """Lets the runs save and end; after a second Ctrl-C they are ended where they are."""
        for each in active:
            if self.count > 1:
                each.process.kill()
            elif not each.told:
                os.kill(each.process.pid, signal.SIGINT)
                each.told = True


@contextmanager
def _asked_to_stop() -> Iterator[_Stop]:
    stop = _Stop()

    def note(number: int, frame: Any) -> None:
        stop.count += 1

    try:
        previous = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where nobody can press Ctrl-C
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


def _begin(cell: Cell, objects: Mapping[str, Any], logs: Path) -> _Active:
    logs.mkdir(parents=True, exist_ok=True)
    name = "-".join([*cell.folder.parts[-3:]])
    log = logs / f"{name}.txt"
    # Forked, so that functions and rows of a notebook need not be sent, and nothing is imported again.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(cell, objects, sender, log))
    sys.stdout.flush()
    sys.stderr.flush()
    process.start()
    sender.close()
    return _Active(cell, process, receiver, log)


def _work(cell: Cell, objects: Mapping[str, Any], sender: Connection, log: Path) -> None:
    """In the process of a cell: the run, with everything that it prints in a file."""
    os.setpgrp()  # Ctrl-C in the terminal is passed on by the parent, once
    # A forked process has lost torch's thread pool, which transformers' loading threads would ask for.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch

    from melior.api import train

    torch.set_num_threads(1)
    try:
        summary = train(**_arguments(cell), **objects).summary
        sender.send(("interrupted" if summary["interrupted"] else "finished", ""))
    except KeyboardInterrupt:
        sender.send(("interrupted", ""))
    except MeliorError as error:
        print(f"melior: {error}")
        sender.send(("crashed", str(error)))
    except Exception as error:
        traceback.print_exc()
        sender.send(("crashed", f"{type(error).__name__}: {' '.join(str(error).split())}"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sender.close()


def _arguments(cell: Cell) -> dict[str, Any]:
    """How `melior.train` begins this run, or goes on with it."""
    if (cell.folder / CONFIG).is_file():
        return {"resume": cell.folder}
    values = {f.name: getattr(cell.settings, f.name) for f in fields(cell.settings)}
    described = [
        name for name in ("model", "data", "eval_data", "reward", "env") if stands_for_object(values.get(name))
    ]
    for name in described:
        del values[name]
    return {
        "method": cell.record,
        "out": cell.folder,
        **{key: v for key, v in values.items() if key not in _UNSAID or v},
    }


_UNSAID = ("data", "eval_data", "reward")  # an empty one means that there is none


def _import_ahead(cells: Sequence[Cell]) -> None:
    """Imports once, before anything is forked, what every run would import for itself: seconds a run."""
    if not cells:
        return
    import torch

    loop_of(cells[0].record)
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process brings in torch's compiler
    wanted = ["pyarrow.parquet"]
    if isinstance(cells[0].settings, LanguageSettings) and cells[0].settings.model != "table":
        wanted += ["transformers", "melior.policies.loading"]
    for name in wanted:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


def _refuse_used_gpu(cells: Sequence[Cell]) -> None:
    """A forked process cannot use a GPU that its parent has used."""
    import torch

    if cells and torch.cuda.is_available() and torch.cuda.is_initialized():
        raise RunError("this process has used the GPU, which its runs then cannot; run `melior compare` instead")


def _first(changed: Sequence[Any]) -> str:
    return f" ({changed[0].path} is {changed[0].left} there, {changed[0].right} here)" if changed else ""

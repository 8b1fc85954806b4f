"""The loop around every kind of training: evaluate, step, log, save, resume, stop cleanly."""

from __future__ import annotations

import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from melior.errors import RunError
from melior.loops.progress import Progress
from melior.settings import RunSettings
from melior.storage.checkpoints import Checkpoints, checkpoint_step
from melior.storage.folder import RunFolder
from melior.storage.trackers import Tracker

Figures = Mapping[str, Any]


@runtime_checkable
class Trainee(Protocol):
    """What is trained, whatever its frame: it steps, evaluates, and can be put away and taken up again.

    Attributes:
        step: steps made so far.
        intact: after a failed `advance`, whether everything is as it was before it.
        notes: what was decided on the user's behalf, and what looks odd.
    """

    @property
    def step(self) -> int: ...

    @property
    def intact(self) -> bool: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def advance(self) -> dict[str, float]:
        """Make one step; its figures."""
        ...

    def preview(self, short: bool = False) -> str:
        """What the run is about to do, in words; nothing of it moves."""
        ...

    def evaluate(self) -> Figures:
        """Held-out figures; "score" is the one that runs are compared by."""
        ...

    def state(self) -> Any:
        """A tree of all that `save` does not write."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was trained so that other tools can load it."""
        ...

    def load(self, folder: Path, state: Any) -> None:
        """Put both back, bit for bit."""
        ...

    def record(self, folder: RunFolder) -> None:
        """Keep the step's rollouts, where that is asked for."""
        ...

    def forget(self, folder: RunFolder) -> None:
        """Remove what was kept of steps after the present one (after a resume)."""
        ...


class Callback:
    """Hooks into a run; override what you need. `run` is what is trained (for a `Method`, its `run` is the handle).

    A run ends early when `on_step` or `on_eval` returns True: after that step, with its last evaluation and checkpoint.
    """

    def on_step(self, run: Any, metrics: Mapping[str, Any]) -> bool | None:
        """After every step, with its figures."""

    def on_eval(self, run: Any, figures: Figures) -> bool | None:
        """After every evaluation."""

    def on_save(self, run: Any, path: Path) -> None:
        """After every checkpoint."""


@dataclass
class Training:
    """One run being trained.

    Attributes:
        trainee: what is trained.
        settings: its budget and intervals.
        folder: where everything is written.
        progress: what is shown meanwhile.
        trackers: further places for figures.
        callbacks: the user's hooks.
    """

    trainee: Trainee
    settings: RunSettings
    folder: RunFolder
    progress: Progress
    trackers: Sequence[Tracker] = ()
    callbacks: Sequence[Callback] = ()
    before: Figures = field(default_factory=dict)
    after: Figures = field(default_factory=dict)
    tokens: float = 0.0
    seconds: float = 0.0
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._checkpoints = Checkpoints(self.folder.path, self.settings.keep, self.settings.keep_best)
        self._score: float | None = None
        self._noted = len(self.trainee.notes)  # what was there before the run has been said
        self._evaluated_at = self._saved_at = -1
        self._best = -math.inf
        self._enough = False  # a callback said so
        self._latest: Figures = {}
        # The figures of a step whose evaluation is still to be made, and the seconds it took.
        self._open: tuple[dict[str, Any], float] | None = None

    def start(self) -> None:
        """The first evaluation and a checkpoint before the first step."""
        try:
            self.before = self._evaluate()
        except RunError as error:
            raise RunError(f"{error} (nothing was trained yet; {self._how_to_go_on()})") from error
        self._save()

    def resume(self) -> None:
        """Back to the newest checkpoint; figures of later steps are cut off. A run without one begins."""
        path = self._checkpoints.latest()
        if path is None:
            if self.folder.read_metrics():
                raise RunError(f"{self.folder.path}/checkpoints holds no checkpoint to resume from")
            self.start()
            return
        trees = self._checkpoints.load(path)
        outer = trees["training"]
        self.before, self.tokens, self.seconds = outer["before"], outer["tokens"], outer["seconds"]
        self._score, self._best = outer["score"], outer["best"]
        self._open = None if outer["open"] is None else (dict(outer["open"][0]), outer["open"][1])
        self.trainee.load(path / "model", trees["state"])
        self.folder.cut_metrics(self.trainee.step)
        self._checkpoints.cut(self.trainee.step)
        self.trainee.forget(self.folder)
        self.folder.point("model", path / "model")
        self.progress.resumed(self.trainee.step, self._score)

    def run(self) -> dict[str, Any]:
        """Steps until the budget is spent or Ctrl-C; the summary that was written."""
        try:
            with _interruptible() as asked_to_stop:
                if self._open is not None:
                    self._conclude()
                while not self._done() and not asked_to_stop():
                    self._step()
                self.interrupted = not self._done()
                if not self.interrupted:
                    self.after = self._latest if self._evaluated_at == self.trainee.step else self._evaluate_or_save()
            self._save()
            return self._finish()
        finally:
            self.close()

    def close(self) -> None:
        """End what is shown and what is logged to; a second call does nothing."""
        for tracker in self.trackers:
            tracker.close()
        self.trackers = ()
        self.progress.close()

    # ---- inside

    def _done(self) -> bool:
        """Whether the steps are made, a budget is spent, or a callback has seen enough."""
        tokens, seconds = self.settings.budget_tokens, self.settings.budget_seconds
        spent = (0 < tokens <= self.tokens) or (0 < seconds <= self.seconds)
        return self._enough or spent or self.trainee.step >= self.settings.steps

    def _step(self) -> None:
        began = time.perf_counter()
        metrics = self._advance()
        took = time.perf_counter() - began
        self.seconds += took
        self.tokens += metrics.get("tokens", 0.0)
        self.trainee.record(self.folder)
        self._open = (metrics, took)
        self._conclude()

    def _conclude(self) -> None:
        """Evaluates where that is due, and writes down the step that was made."""
        assert self._open is not None
        (metrics, took), step = self._open, self.trainee.step
        improved = False
        if self.settings.eval_every and step % self.settings.eval_every == 0:
            best = self._best
            metrics = metrics | _flat(self._evaluate_or_save())
            improved = self._best > best
        timed = {"step_seconds": took, "tokens_per_second": metrics.get("tokens", 0.0) / max(took, 1e-9)}
        row = {"step": step, **metrics, **timed}
        self.folder.append_metrics(row)
        self._open = None
        for tracker in self.trackers:
            tracker.log(step, row)
        try:
            for callback in self.callbacks:
                self._enough |= callback.on_step(self.trainee, row) is True
        except Exception:
            self._save()
            raise
        for note in self.trainee.notes[self._noted :]:
            self.progress.note(note)
        self._noted = len(self.trainee.notes)
        self.progress.step(step, row)
        due = self.settings.save_every and step % self.settings.save_every == 0
        if due or (self.settings.keep_best and improved):
            self._save()

    def _advance(self) -> dict[str, Any]:
        """A step; when it fails before anything moved, the run is saved as it was."""
        try:
            return self.trainee.advance()
        except BaseException as error:
            if self.trainee.intact:
                self._save()
            if isinstance(error, RunError):
                raise self._explained(error) from error
            raise

    def _evaluate_or_save(self) -> Figures:
        """Held-out figures; when that fails, what was trained is saved."""
        try:
            return self._evaluate()
        except BaseException as error:
            self._save()
            if isinstance(error, RunError):
                raise self._explained(error) from error
            raise

    def _explained(self, error: RunError) -> RunError:
        newest = self._checkpoints.latest()
        if newest is None:
            return error
        return RunError(f"{error} (saved at step {checkpoint_step(newest)}; {self._how_to_go_on()})")

    def _how_to_go_on(self) -> str:
        return f"go on with: melior train --resume {self.folder.path}"

    def _evaluate(self) -> Figures:
        figures = self.trainee.evaluate()
        if not figures:  # nothing is evaluated in this run
            return figures
        self._evaluated_at, self._latest = self.trainee.step, figures
        self._score = figures.get("score")
        if self._score is not None and self._score > self._best:
            self._best = self._score
        for callback in self.callbacks:
            self._enough |= callback.on_eval(self.trainee, figures) is True
        self.progress.evaluated(self.trainee.step, figures)
        return figures

    def _save(self) -> None:
        if self._saved_at == self.trainee.step:
            return
        self.folder.sync_metrics()
        outer = {
            "before": dict(self.before),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "score": self._score,
            "best": self._best,
            "open": self._open,
        }
        path = self._checkpoints.save(
            self.trainee.step,
            {"state": self.trainee.state(), "training": outer},
            {"model": self.trainee.save},
            self._score if self._evaluated_at == self.trainee.step else None,
        )
        self._saved_at = self.trainee.step
        self.folder.point("model", path / "model")
        for callback in self.callbacks:
            callback.on_save(self.trainee, path)

    def _finish(self) -> dict[str, Any]:
        summary = {
            "before": dict(self.before),
            "after": dict(self.after) or None,
            "steps": self.trainee.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "peak_memory_gb": _peak_memory_gb(),
            "interrupted": self.interrupted,
            "checkpoint": str(self._checkpoints.latest()),
        }
        self.folder.write_summary(summary)
        return summary


def _peak_memory_gb() -> float:
    """Most memory that this process has held so far, in GB (on Linux getrusage counts in units of 1024 bytes)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 3)


def _flat(figures: Figures) -> dict[str, Any]:
    """Held-out figures as metrics of a step: an interval becomes the figure and, where they are known, its bounds."""
    found: dict[str, Any] = {}
    for name, figure in figures.items():
        value, *bounds = figure if isinstance(figure, list | tuple) else (figure,)
        found[f"eval/{name}"] = value
        if not any(math.isnan(bound) for bound in bounds):
            found |= {f"eval/{name}_{end}": bound for end, bound in zip(("low", "high"), bounds, strict=False)}
    return found


@contextmanager
def _interruptible() -> Iterator[Any]:
    """Within it the first Ctrl-C is noted and the step goes on; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop.is_set
        return

    def note(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield stop.is_set
    finally:
        signal.signal(signal.SIGINT, previous)

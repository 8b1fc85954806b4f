"""What a person sees while a run goes on: one line that moves on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from melior.loops.summary import count_text, interval_text, is_interval, number_text, time_text

PLAIN_LINES = 20  # of steps, in a whole run
RECENT = 20  # steps whose pace the time left is judged by


class Column(NamedTuple):
    """A figure of the line: its name in the metrics, what it is called, and how it is written."""

    metric: str
    label: str
    text: Callable[[float], str] = number_text


COLUMNS = (
    Column("reward", "reward"),
    Column("return", "return"),
    Column("mixed_share", "mixed", lambda share: f"{share:.0%}"),
    Column("entropy", "entropy"),
    Column("grad_norm", "grad norm"),
    Column("tokens_per_second", "tokens/s", count_text),
)
RATES = ("tokens_per_second",)  # not shown where they are zero, since then nothing of the kind is counted


class Progress:
    """Shows how a run goes: held-out score, reward, mixed share, entropy, gradient norm, rate, time left.

    On a terminal that is one line at the bottom, above which notes and warnings scroll; elsewhere a plain line after
    the first step, at every twentieth of the run and at every evaluation. Figures that a run does not have are not
    shown. The loss is not among them: its level says nothing about whether the policy gets better.

    Attributes:
        total: steps of the whole run.
        quiet: show nothing at all.
        columns: the figures to show of a step.
        stream: the text file that is written to; standard error by default, so that standard output holds results only.
        clock: seconds on any clock that does not run backward.
    """

    def __init__(
        self,
        total: int,
        quiet: bool = False,
        columns: tuple[Column, ...] = COLUMNS,
        stream: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console

        self.total, self.quiet, self.columns = total, quiet, columns
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = clock
        self._step, self._score = 0, math.nan
        self._ends: deque[float] = deque(maxlen=RECENT + 1)
        self._row: Mapping[str, Any] = {}
        self._live: Any = None

    # ---- what happens

    def note(self, text: str) -> None:
        """A sentence for the user, above the line."""
        if not self.quiet and text:
            self._console.print(text)

    def resumed(self, step: int, score: float | None = None) -> None:
        """The run goes on from this step, whose held-out score is known or not."""
        self._step, self._score = step, math.nan if score is None else score
        self.note(f"going on from step {step}")

    def evaluated(self, step: int, figures: Mapping[str, Any]) -> None:
        """Held-out figures as of this step; "score" is the one shown on the line."""
        score = figures.get("score")
        self._step, self._score = step, math.nan if score is None else float(score)
        shown = [f"{name} {interval_text(value)}" for name, value in figures.items() if is_interval(value)]
        self.note(f"step {step}/{self.total}  held out: {', '.join(shown) or number_text(self._score)}")
        self._refresh()

    def step(self, step: int, row: Mapping[str, Any]) -> None:
        """A step was made; these are its metrics."""
        now, first = self._clock(), not self._ends
        if first and "step_seconds" in row:
            self._ends.append(now - row["step_seconds"])
        self._ends.append(now)
        self._step, self._row = step, row
        every = max(1, math.ceil(self.total / PLAIN_LINES))
        if self._terminal:
            self._refresh()
        elif first or step % every == 0 or step == self.total:
            self.note(self.line())

    def close(self) -> None:
        """The line is left standing and the terminal is as it was; a second call does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- what is shown

    def line(self) -> str:
        """The line as of now."""
        parts = [f"step {self._step}/{self.total}"]
        left = self.time_left()
        if left is not None:
            parts.append(f"left {time_text(left)}")
        if not math.isnan(self._score):
            parts.append(f"held out {number_text(self._score)}")
        for metric, label, text in self.columns:
            value = self._row.get(metric)
            if isinstance(value, int | float) and not math.isnan(value) and (value or metric not in RATES):
                parts.append(f"{label} {text(value)}")
        return "  ".join(parts)

    def time_left(self) -> float | None:
        """Seconds that the remaining steps take at the pace of the recent ones, what happens between steps included.

        None before there is a pace and when no step remains.
        """
        if len(self._ends) < 2 or self._step >= self.total:
            return None
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return pace * (self.total - self._step)

    # ---- inside

    def _refresh(self) -> None:
        if self.quiet or not self._terminal:
            return
        from rich.live import Live
        from rich.text import Text

        text = Text(self.line(), no_wrap=False, overflow="fold")  # all of it, on two lines where the window is narrow
        if self._live is None:
            # Live also takes over standard output and error, so that warnings and prints scroll above the line. It
            # needs no thread of its own: nothing changes between steps.
            self._live = Live(text, console=self._console, auto_refresh=False)
            self._live.start()
            atexit.register(self.close)  # a run that fails still gives the cursor back
        self._live.update(text, refresh=True)

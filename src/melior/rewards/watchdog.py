"""A time limit for code that runs in this process: an alarm signal, which breaks through where a thread would starve.

A catastrophic regular expression holds the interpreter lock, so a watchdog thread never gets to run; a signal handler
does, because `re` (like `time.sleep` and every loop in Python) looks for pending signals. Code that neither returns to
the interpreter nor looks for signals, a long sum inside a C library say, can only be stopped in a worker process.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from types import FrameType


class TimeUp(BaseException):
    """The time is up. Not an `Exception`, so that an `except Exception` inside a reward does not swallow it."""


@contextlib.contextmanager
def time_limit(seconds: float | int) -> Iterator[None]:
    """Raise `TimeUp` inside the block once it has run for `seconds` of wall-clock time; `math.inf` means no limit.

    The alarm rings again every `seconds` until the block is left, for code that catches everything once; while a
    debugger waits for a command, it does not ring. An alarm that was already set (a test runner's, say) is put back
    with the time it had left. Code in the block that sets an alarm of its own replaces this one. Outside the main
    thread no alarm is possible: the block then runs unwatched, and a warning says so once.
    """
    if math.isinf(seconds):
        yield
        return
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        _warn_unwatched()
        yield
        return
    armed = True

    def ring(number: int, frame: FrameType | None) -> None:
        if armed and not _in_debugger(frame):
            raise TimeUp

    started = time.monotonic()
    earlier_handler = signal.signal(signal.SIGALRM, ring)
    earlier_left, earlier_interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        # Two levels, so that an alarm between the end of the block and `armed = False` still meets the restoring one.
        try:
            yield
        finally:
            armed = False
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if earlier_handler is None else earlier_handler)
        if earlier_left:
            left = max(earlier_left - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, earlier_interval)


def _in_debugger(frame: FrameType | None) -> bool:
    """Whether `breakpoint()` has stopped the code: then its time is the user's own."""
    while frame is not None:
        if frame.f_globals.get("__name__") in ("pdb", "bdb", "IPython.core.debugger"):
            return True
        frame = frame.f_back
    return False


@functools.cache  # the cache is what makes it "once a process"
def _warn_unwatched() -> None:
    warnings.warn(
        "rewards run outside the main thread, where no alarm can stop one that hangs; use reward workers for a limit",
        RuntimeWarning,
        stacklevel=4,
    )

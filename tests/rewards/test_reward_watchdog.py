"""An alarm ends what hangs in this process."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
import types
import warnings

import pytest

from melior.rewards import watchdog
from melior.rewards.watchdog import TimeUp, time_limit


def catastrophe() -> None:
    """A match that takes longer than anyone waits, while it holds the interpreter lock."""
    re.match(r"(a+)+$", "a" * 40 + "b")


@pytest.mark.parametrize("hang", [catastrophe, lambda: time.sleep(60)])
def test_a_hang_ends(hang) -> None:
    start = time.monotonic()
    with pytest.raises(TimeUp), time_limit(0.2):
        hang()
    assert time.monotonic() - start < 5


def test_the_alarm_cannot_be_swallowed() -> None:
    def stubborn() -> None:
        try:
            time.sleep(60)
        except Exception:
            time.sleep(60)
        except BaseException:  # once; the alarm rings again
            time.sleep(60)

    with pytest.raises(TimeUp), time_limit(0.1):
        stubborn()


def test_an_alarm_that_was_set_before_is_put_back() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with time_limit(10):
            time.sleep(0.1)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 0.2
        time.sleep(0.4)
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_it_waits_while_a_debugger_does() -> None:
    def prompt() -> None:
        time.sleep(0.3)

    as_if_in_pdb = types.FunctionType(prompt.__code__, {"__name__": "pdb", "time": time})
    with time_limit(0.1):
        as_if_in_pdb()
    with pytest.raises(TimeUp), time_limit(0.1):
        prompt()


def test_no_limit_sets_no_alarm() -> None:
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    with time_limit(math.inf):
        during, _ = signal.getitimer(signal.ITIMER_REAL)
    assert during <= before


def test_outside_the_main_thread_it_warns_once_and_goes_on() -> None:
    watchdog._warn_unwatched.cache_clear()
    done = []

    def work() -> None:
        for _ in range(2):
            with time_limit(0.05):
                time.sleep(0.1)
                done.append(1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert done == [1, 1]
    assert [str(w.message) for w in caught if "outside the main thread" in str(w.message)] != []
    assert len(caught) == 1

"""The line shows what matters and stays whole, on a terminal and off it."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from melior.loops.progress import Progress

ROW = {
    "reward": 0.3512,
    "mixed_share": 0.625,
    "entropy": 0.8123,
    "grad_norm": 12.345,
    "tokens_per_second": 1234.0,
    "loss": 0.77,
}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def plain(total, quiet=False, clock=None):
    stream = io.StringIO()
    return Progress(total, quiet, stream=stream, clock=clock or Clock()), lambda: stream.getvalue().splitlines()


def test_the_line_shows_score_reward_mixed_entropy_gradient_rate_and_time_left_but_not_the_loss():
    clock = Clock()
    progress, lines = plain(100, clock=clock)
    progress.evaluated(0, {"score": 0.25, "pass@1": [0.25, 0.2, 0.31], "length_mean": 20.0})
    clock.now += 10  # the evaluation
    clock.now += 2
    progress.step(1, ROW | {"step_seconds": 2.0})
    figures = "held out 0.250  reward 0.351  mixed 62%  entropy 0.812  grad norm 12.3  tokens/s 1.2k"
    assert lines() == ["step 0/100  held out: pass@1 0.250 [0.200, 0.310]", f"step 1/100  left 3:18  {figures}"]


def test_figures_that_are_not_there_are_not_shown():
    progress, lines = plain(1)
    progress.step(1, {"return": 21.5, "tokens_per_second": 0.0, "entropy": float("nan"), "reward": None})
    assert lines() == ["step 1/1  return 21.5"]


def test_time_left_is_judged_by_recent_steps_with_what_lies_between_them():
    clock = Clock()
    progress, _ = plain(100, quiet=True, clock=clock)
    assert progress.time_left() is None
    for step in range(1, 31):
        clock.now += 50 if step <= 10 else 3  # slow at first; then two seconds of step, one of evaluation
        progress.step(step, {"step_seconds": 2.0})
    assert progress.time_left() == pytest.approx(3 * 70)
    progress.step(100, {})
    assert progress.time_left() is None


@pytest.mark.parametrize(("total", "most"), [(1, 1), (7, 7), (20, 20), (1000, 21), (1013, 21)])
def test_off_a_terminal_about_twenty_lines_a_run_the_first_and_last_step_among_them(total, most):
    progress, lines = plain(total)
    for step in range(1, total + 1):
        progress.step(step, ROW)
    progress.close()
    shown = [int(line.split("/")[0].removeprefix("step ")) for line in lines()]
    assert min(total, 18) <= len(shown) <= most and shown[0] == 1 and shown[-1] == total


def test_a_resumed_run_counts_from_where_it_was():
    progress, lines = plain(10)
    progress.resumed(4, 0.5)
    progress.step(5, {})
    assert lines() == ["going on from step 4", "step 5/10  held out 0.500"]


def test_quiet_shows_nothing_and_long_or_odd_notes_are_left_as_they_are():
    progress, lines = plain(3, quiet=True)
    progress.note("x")
    progress.resumed(1)
    progress.evaluated(1, {"score": 1.0})
    progress.step(2, ROW)
    progress.close()
    assert lines() == []
    progress, lines = plain(3)
    notes = ["word " * 60, "[bold] :x: [/nothing]"]
    for note in notes:
        progress.note(note)
    progress.note("")
    assert [line.rstrip() for line in lines()] == [note.rstrip() for note in notes]


ON_A_TERMINAL = """
import sys, warnings
from melior.loops.progress import Progress
progress = Progress(3)
progress.note("a note at the start")
progress.evaluated(0, {"score": 0.25, "pass@1": [0.25, 0.2, 0.31]})
for step in (1, 2):
    progress.step(step, {"reward": 0.5, "entropy": 0.75, "grad_norm": 1.0, "mixed_share": 0.5, "step_seconds": 1.0})
    warnings.warn(f"careful at step {step}")
    print(f"printed at step {step}", flush=True)
    progress.note(f"noted at step {step}: " + "long " * 20)
if sys.argv[1] == "fails":
    raise SystemExit("it failed")
progress.close()
print("after", flush=True)
"""


def on_a_terminal(ending, columns):
    """What a terminal of that width shows in the end, line by line, and the raw text."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"}
    done = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, ending], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    raw = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how the end of a terminal reads on Linux
            break
        if not part:
            break
        raw += part
    os.close(ours)
    done.wait()
    text = raw.decode().replace("\r\n", "\n")
    screen, row = [""], 0
    for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if token == "\n":
            row += 1
            screen += [""] * (row + 1 - len(screen))
        elif token == "\x1b[2K":
            screen[row] = ""
        elif match := re.fullmatch(r"\x1b\[(\d+)A", token):
            row -= int(match[1])
        elif token[0] not in "\r\x1b":
            screen[row] += token
    return screen, text


@pytest.mark.parametrize("ending", ["ends", "fails"])
def test_on_a_terminal_one_line_moves_and_warnings_scroll_above_it(ending):
    screen, raw = on_a_terminal(ending, 60)
    assert raw.count("step 1/3") >= 1  # it was shown, and then overwritten
    shown = [line.rstrip() for line in screen if line.strip()]
    assert sum(line.startswith("step ") for line in shown) == 2 and all(len(line) <= 60 for line in shown[-3:])
    assert shown[1] == "step 0/3  held out: pass@1 0.250 [0.200, 0.310]"
    last = shown[-3:-1] if ending == "ends" else shown[-2:]
    line = " ".join(last)
    assert re.fullmatch(
        r"step 2/3  left [\d.]+ s  held out 0.250 +reward 0.500 +mixed 50% +entropy 0.750 +grad norm 1.000", line
    )
    assert shown[-1 if ending == "ends" else -3] == ("after" if ending == "ends" else "it failed")
    for step in (1, 2):
        assert any(f"careful at step {step}" in line for line in shown)
        assert f"printed at step {step}" in shown
        assert any(line.startswith(f"noted at step {step}: long") for line in shown)
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 1  # the cursor is given back

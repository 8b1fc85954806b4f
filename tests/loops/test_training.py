"""The loop around a run: what an interrupt does at every moment, what the hooks see, what is closed."""

from __future__ import annotations

import json
import os
import signal

import pytest

import melior
from melior.loops.training import Training
from melior.storage import trackers
from runs import lock_run, rows


class Interrupt(melior.Callback):
    """Ctrl-C at a moment, `times` times."""

    def __init__(self, moment: str, times: int = 1) -> None:
        self.moment, self.times, self.seen = moment, times, []

    def _at(self, moment: str) -> None:
        self.seen.append(moment)
        if moment == self.moment:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)

    def on_step(self, run, metrics):
        self._at(f"step {metrics['step']}")

    def on_eval(self, run, figures):
        self._at(f"eval {run.step}")

    def on_save(self, run, path):
        self._at(f"save {run.step}")


def test_hooks_are_called_in_the_order_of_events(tmp_path):
    watch = Interrupt("never")
    lock_run(tmp_path / "a", steps=3, eval_every=2, save_every=2, callbacks=[watch])
    assert watch.seen == ["eval 0", "save 0", "step 1", "eval 2", "step 2", "save 2", "step 3", "eval 3", "save 3"]


@pytest.mark.parametrize(("moment", "stops_at"), [("step 1", 1), ("eval 2", 2), ("save 2", 2)])
def test_an_interrupt_stops_after_what_is_going_on(tmp_path, moment, stops_at):
    lock_run(tmp_path / "whole", steps=4, eval_every=2, save_every=2)
    result = lock_run(tmp_path / "a", steps=4, eval_every=2, save_every=2, callbacks=[Interrupt(moment)])
    assert result.summary["interrupted"] and result.summary["steps"] == stops_at and result.summary["after"] is None
    melior.train(resume=tmp_path / "a", quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "whole")


def test_an_interrupt_during_the_last_evaluation_lets_the_run_finish(tmp_path):
    result = lock_run(tmp_path / "a", steps=2, callbacks=[Interrupt("eval 2")])
    assert not result.summary["interrupted"] and result.summary["after"]["score"] >= 0


def test_a_second_interrupt_stops_at_once_and_loses_no_finished_step(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        lock_run(tmp_path / "a", steps=2, callbacks=[Interrupt("eval 2", times=2)])
    assert (tmp_path / "a" / "checkpoints" / "step-000002").exists() and not (tmp_path / "a" / "summary.json").exists()
    result = melior.train(resume=tmp_path / "a", quiet=True)
    lock_run(tmp_path / "b", steps=2)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert result.summary["after"] == json.loads((tmp_path / "b" / "summary.json").read_text())["after"]


class Logged:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.steps, self.closed = [], 0

    def log(self, step, metrics):
        self.steps.append(step)

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
def test_trackers_see_every_step_and_are_closed_however_it_ends(tmp_path, monkeypatch, fails):
    logged = Logged()
    monkeypatch.setitem(trackers.MAKERS, "tensorboard", lambda folder, config: logged)
    if fails:
        with pytest.raises(KeyboardInterrupt):
            lock_run(tmp_path / "a", log_to="tensorboard", callbacks=[Interrupt("step 2", times=2)])
    else:
        lock_run(tmp_path / "a", log_to="tensorboard")
    assert logged.steps == ([1, 2] if fails else [1, 2, 3, 4]) and logged.closed == 1


def test_times_are_of_the_steps_alone(tmp_path, monkeypatch):
    """Evaluations and saves take their time; tokens a second are of the steps."""
    slow = Training._evaluate
    monkeypatch.setattr(Training, "_evaluate", lambda self: (__import__("time").sleep(0.2), slow(self))[1])
    result = lock_run(tmp_path / "a", steps=2, eval_every=1)
    assert result.summary["seconds"] < 0.4

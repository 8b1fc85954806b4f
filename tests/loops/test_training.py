"""The loop around a run: what an interrupt does at every moment, what the hooks see, what is closed."""

from __future__ import annotations

import json
import os
import signal

import pytest

import melior
from melior.api import check_callbacks
from melior.errors import UserError
from melior.loops.training import Training
from melior.storage import trackers
from runs import lock_run, rows, sums, text_run


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


# ---- runs that end before their budget, and runs that measure nothing


class Enough(melior.Callback):
    """Says that it is enough at an evaluation or after a step."""

    def __init__(self, evaluation: int = -1, step: int = -1) -> None:
        self.evaluation, self.step = evaluation, step

    def on_eval(self, run, figures):
        return run.step == self.evaluation

    def on_step(self, run, metrics):
        return metrics["step"] == self.step


@pytest.mark.parametrize(("when", "steps"), [({"evaluation": 2}, 2), ({"step": 3}, 3), ({"evaluation": 0}, 0)])
def test_a_callback_may_end_a_run_which_is_then_finished_and_may_go_on(tmp_path, when, steps):
    result = lock_run(tmp_path / "a", steps=5, eval_every=2, callbacks=[Enough(**when)])
    assert result.summary["steps"] == steps and not result.summary["interrupted"]
    assert result.summary["after"]["score"] >= 0 and result.model.exists()
    lock_run(tmp_path / "whole", steps=5, eval_every=2)
    melior.train(resume=tmp_path / "a", quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "whole")


def test_a_callback_of_another_library_is_refused_with_our_hooks_named():
    class TrainerCallback:
        def on_step_end(self, args, state, control):
            return control

    with pytest.raises(UserError, match=r"TrainerCallback has no on_step, on_eval, on_save; .*melior\.Callback"):
        check_callbacks([TrainerCallback()])


def test_a_hook_that_nothing_would_call_is_refused():
    class Watch(melior.Callback):
        def on_step_end(self, run, metrics):
            return True

    with pytest.raises(UserError, match=r"nothing calls on_step_end of the callback Watch; did you mean 'on_step'"):
        check_callbacks([Watch()])


def test_a_run_may_evaluate_nothing_and_learn_from_every_row(tmp_path):
    seen = []
    watch = Interrupt("never")

    def reward(prompts, completions):
        seen.extend(prompts)
        return [1.0] * len(completions)

    plain = {"data": sums(4), "reward": reward, "eval_prompts": 0, "steps": 2, "callbacks": [watch]}
    result = text_run(tmp_path / "a", **plain)
    assert set(seen) == {row["prompt"] for row in sums(4)}  # two steps of two prompts: all rows, each once
    assert not result.summary["before"] and result.summary["after"] is None
    assert watch.seen == ["save 0", "step 1", "step 2", "save 2"]
    with pytest.raises(UserError, match="trained on all its rows"):
        melior.evaluate(tmp_path / "a", reward=reward)
    assert melior.evaluate(tmp_path / "a", reward=reward, data=sums(3))["prompts"] == 3
    with pytest.raises(UserError, match="keep_best would have no effect"):
        text_run(tmp_path / "b", **plain, keep_best=True)

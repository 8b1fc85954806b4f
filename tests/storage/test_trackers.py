"""Figures reach each tracker under the right step, and a missing package is said, once and by name."""

from __future__ import annotations

import importlib.machinery
import math
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from melior.errors import RunError, UserError
from melior.settings import RunSettings
from melior.storage.trackers import trackers

ROW = {"step": 3, "reward": 0.5, "rows": 8, "name": "x", "none": None, "pair": [1, 2], "loss": torch.tensor(0.25)}
NUMBERS = {"reward": 0.5, "rows": 8, "loss": 0.25}


def fake(monkeypatch, name, **functions):
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_events_and_a_resumed_run_replaces_what_it_does_again(tmp_path):
    (first,), notes = trackers("tensorboard", tmp_path, RunSettings())
    for step in (1, 2, 3):
        first.log(step, {"step": step, "reward": float(step), "nan": math.nan})
    time.sleep(1.1)  # event files are ordered by the second in their names
    (again,), _ = trackers("tensorboard", tmp_path, RunSettings())
    for step in (2, 3):
        again.log(step, {"reward": step * 10.0, "rows": 8})
    again.close()
    first.close()
    seen = events(tmp_path)
    assert notes == [] and set(seen) == {"reward", "nan", "rows"}
    assert seen["reward"] == [(1, 1.0), (2, 20.0), (3, 30.0)] and seen["rows"] == [(2, 8.0), (3, 8.0)]


def test_a_tracker_that_never_logged_leaves_nothing(tmp_path):
    (tracker,), _ = trackers("tensorboard", tmp_path)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_wandb_gets_settings_and_figures_and_goes_on_under_its_identifier(tmp_path, monkeypatch):
    calls = []

    def init(**options):
        calls.append(options)
        log = lambda metrics, step: calls.append((step, metrics))  # noqa: E731
        return SimpleNamespace(id="abc", log=log, finish=lambda: calls.append("finished"))

    fake(monkeypatch, "wandb", init=init)
    (tracker,), notes = trackers("wandb", tmp_path, RunSettings(steps=7))
    tracker.log(3, ROW)
    tracker.close()
    assert notes == [] and calls[1:] == [(3, NUMBERS), "finished"]
    assert calls[0]["project"] == "melior" and calls[0]["name"] == tmp_path.name and calls[0]["dir"] == str(tmp_path)
    assert calls[0]["config"]["steps"] == 7 and calls[0]["config"]["betas"] == [0.9, 0.999] and "id" not in calls[0]
    trackers("wandb", tmp_path, RunSettings())
    assert (calls[-1]["id"], calls[-1]["resume"]) == ("abc", "allow")
    (tmp_path / "wandb-run.json").write_text("{")
    with pytest.raises(RunError, match=r"wandb-run\.json is damaged"):
        trackers("wandb", tmp_path, RunSettings())


def test_trackio_gets_settings_and_figures(tmp_path, monkeypatch):
    calls = []
    fake(
        monkeypatch,
        "trackio",
        init=lambda **options: calls.append(options),
        log=lambda metrics, step: calls.append((step, metrics)),
        finish=lambda: calls.append("finished"),
    )
    (tracker,), _ = trackers("trackio", tmp_path, {"path": tmp_path})
    tracker.log(3, ROW)
    tracker.close()
    shown = {"path": repr(tmp_path)}
    assert calls == [
        {"project": "melior", "name": tmp_path.name, "config": shown, "resume": "allow"},
        (3, NUMBERS),
        "finished",
    ]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    for name in ("tensorboard", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    made, notes = trackers("tensorboard", tmp_path)
    assert made == [] and len(notes) == 1 and "pip install 'melior[report]'" in notes[0]
    for name in ("wandb", "trackio"):
        with pytest.raises(UserError, match=rf"log_to {name} needs the package: pip install 'melior\[{name}\]'"):
            trackers(f"tensorboard, {name}", tmp_path)


def test_names(tmp_path, monkeypatch):
    assert trackers("", tmp_path) == ([], []) == trackers(" , ", tmp_path)
    made, _ = trackers("tensorboard,tensorboard", tmp_path)
    assert len(made) == 1
    started = []
    fake(monkeypatch, "wandb", init=lambda **options: started.append(options))
    with pytest.raises(UserError, match="log_to names 'tensorbord', which is no tracker; did you mean 'tensorboard'"):
        trackers("wandb,tensorbord", tmp_path)
    assert started == []

"""Melior's own run folders as logs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from melior.errors import UserError
from melior.inspect.logs import read
from melior.inspect.logs.log import Rollouts, Row, by_step
from melior.storage.folder import RunFolder
from melior.storage.rollouts import RolloutWriter
from runs import lock_run, text_run


def test_a_run_is_read_as_it_was_logged(tmp_path):
    run = text_run(tmp_path / "run", "grpo", steps=3, report=False).path
    log = read(run)
    assert log.trainer == "melior" and log.steps.tolist() == [0, 1, 2, 3]
    assert log.settings["method"] == "grpo" and log.settings["n"] == 4 and log.settings["prompts"] == 2
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert log.metrics["reward"][1:].tolist() == [row["reward"] for row in logged]
    assert np.isnan(log.metrics["reward"][0])
    summary = json.loads((run / "summary.json").read_text())
    assert log.metrics["eval/score"][[0, 3]].tolist() == [summary["before"]["score"], summary["after"]["score"]]
    assert log.metrics["eval/pass@1_low"][0] == summary["before"]["pass@1"][1]
    assert log.unread == ()


def test_completions_have_what_is_known_of_them(tmp_path):
    log = read(text_run(tmp_path / "run", "grpo", steps=2, report=False).path)
    assert log.rollouts.steps == (1, 2)
    rows = log.rollouts.rows(2)
    assert len(rows) == 8 and sorted({row.group for row in rows}) == [0, 1]
    for row in rows:
        assert row.prompt and row.text is not None and row.length and row.truncated is not None
        assert row.reward == row.components["correct"] == row.outcome
        assert row.version == 1 and row.advantage is not None
    by_group = [[row.advantage for row in rows if row.group == group] for group in (0, 1)]
    assert all(abs(sum(each)) < 1e-5 for each in by_group)
    assert log.rollouts.rows(2) is rows and log.rollouts.rows(7) == ()


def test_a_run_that_goes_on_can_be_read(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "record: {method: rloo}\nsettings: {kind: LanguageSettings}\n", "0")
    assert read(folder.path).steps.tolist() == []
    folder.append_metrics({"step": 1, "reward": 0.5})
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "rew')
    assert read(folder.path).metrics["reward"].tolist() == [0.5]
    folder.close()


def test_rollouts_that_were_pruned_meanwhile_are_none(tmp_path):
    log = read(lock_run(tmp_path / "run", report=False).path)
    writer = RolloutWriter(log.source)
    writer.cut(2)
    assert log.rollouts.rows(4) == () and len(log.rollouts.rows(1)) > 0


def test_what_holds_no_run_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("model: mine\n")
    with pytest.raises(UserError, match=r"looked for .*config\.yaml"):
        read(tmp_path)
    with pytest.raises(UserError, match="there is no file or folder"):
        read(tmp_path / "none")


def test_figures_are_filed_by_step():
    steps, metrics = by_step([(2, {"a": 1, "b": "x"}), (1, {"a": None, "c": 2.5}), (2, {"a": 3})])
    assert steps.tolist() == [1, 2]
    assert metrics["a"][1] == 3 and np.isnan(metrics["a"][0])
    assert metrics["c"][0] == 2.5 and "b" not in metrics


def test_steps_are_spread_from_the_first_to_the_last():
    rollouts = Rollouts(range(1, 101), lambda step: [Row(text=str(step))])
    assert rollouts.spread(4) == (1, 34, 67, 100) and rollouts.spread(200) == rollouts.steps

"""`melior doctor` as it is called."""

from __future__ import annotations

import json

import pytest

from melior.cli import run as command
from melior.inspect.doctor import CHECKS
from runs import lock_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return lock_run(tmp_path_factory.mktemp("doctor") / "run", "grpo", steps=22, report=False, **{"lr": 0.03}).path


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "dead.py").write_text("def nothing(completions, **columns):\n    return [0.5] * len(completions)\n")
    return lock_run(folder / "sick", "grpo", steps=8, reward=f"{folder / 'dead.py'}:nothing", report=False).path


def test_it_answers_in_words(run, capsys):
    assert command(["doctor", str(run)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{run} (melior, steps 1 to 22): healthy")


def test_it_answers_in_json(sick, capsys):
    assert command(["doctor", str(sick), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "ill" and answer["findings"][0]["name"] == "dead-reward"


def test_too_little_is_said(tmp_path, capsys):
    short = lock_run(tmp_path / "short", report=False).path
    assert command(["doctor", str(short)]) == 4
    assert "4 steps so far; 20 are needed" in capsys.readouterr().out


def test_a_finished_run_is_watched_to_its_end(sick, capsys):
    assert command(["doctor", str(sick), "--watch", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["verdict"] == "ill"
    assert command(["doctor", str(sick), "--watch"]) == 1
    assert capsys.readouterr().out.count("ill: dead-reward") == 2  # the diagnosis, and the verdict at the end


def test_thresholds_can_be_set(run, capsys):
    assert command(["doctor", str(run), "--set", "too-few-samples.steps=50"]) == 4
    assert command(["doctor", str(run), "--set", "too-few-samples.stps=50"]) == 2
    assert "did you mean 'steps'" in capsys.readouterr().err


def test_definitions_need_no_run(capsys):
    assert command(["doctor", "--definitions"]) == 0
    printed = capsys.readouterr().out
    assert all(f"### {check.name}\n" in printed for check in CHECKS)


def test_mistakes_are_said(tmp_path, capsys):
    assert command(["doctor"]) == 2
    assert command(["doctor", str(tmp_path / "none")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err
    assert command(["doctor", str(tmp_path)]) == 2

"""`melior report` and `melior rollouts`, as they are typed."""

from __future__ import annotations

import json

import pytest

from melior.cli import run as command
from melior.storage.rollouts import rollout_learners
from runs import LOCK_OPTIONS, lock_run, text_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return lock_run(tmp_path_factory.mktemp("run") / "a", "grpo").path


def test_reports_are_written_where_they_are_asked_for(finished, tmp_path, capsys):
    (finished / "report.html").unlink()
    assert command(["report", str(finished)]) == 0
    assert capsys.readouterr().out.strip() == str(finished / "report.html")
    assert command(["report", str(finished), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == (finished / "report.html").read_bytes()


def test_several_runs_have_no_one_file(finished, tmp_path, capsys):
    assert command(["report", str(finished), str(finished), "--out", str(tmp_path / "page.html")]) == 2
    assert "one file" in capsys.readouterr().err
    assert command(["report", str(finished), str(finished)]) == 0
    assert command(["report", str(tmp_path / "none")]) == 2


def test_the_worst_of_a_step_in_the_terminal(finished, capsys):
    assert command(["rollouts", str(finished), "--step", "2", "--worst", "5"]) == 0
    head, *blocks = capsys.readouterr().out.strip().split("\n\n")
    assert head.startswith("step 2: 32 completions of 4 prompts, mean reward ")
    assert [block.split("  ")[0] for block in blocks] == [f"worst {i}" for i in range(1, 6)]
    for block in blocks:
        first, prompt, completion, *_ = block.splitlines()
        assert "reward " in first and "advantage " in first and "2 tokens" in first
        assert prompt.startswith("  prompt     lock ") and completion.startswith("  completion ")


def test_three_of_each_of_the_last_step_and_their_tokens(finished, capsys):
    assert command(["rollouts", str(finished), "--tokens", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["best"] * 3 + ["worst"] * 3
    assert rows[0]["reward"] >= rows[3]["reward"]
    for row in rows:
        assert "".join(token["text"] for token in row["tokens"]) == row["text"]
        assert all(token["log-probability"] <= 0 and "advantage" in token for token in row["tokens"])
        assert all(token["entropy"] > 0 and "trainer minus sampler" in token for token in row["tokens"])
    assert command(["rollouts", str(finished), "--best", "1", "--tokens"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["token", "advantage", "log-probability"] for line in table)


def test_tokens_of_a_language_model_by_its_own_tokenizer(tmp_path, capsys):
    run = text_run(tmp_path / "a", steps=1).path
    assert command(["rollouts", str(run), "--best", "1", "--tokens", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert len(row["tokens"]) == row["length"]
    assert "".join(token["text"] for token in row["tokens"]).removesuffix("<|eos|>") == row["text"]


def test_rollouts_that_are_not_there_are_said(finished, tmp_path, capsys):
    assert command(["rollouts", str(finished), "--step", "99"]) == 2
    assert "there are those of steps 1, 2, 3, 4" in capsys.readouterr().err
    assert command(["rollouts", str(finished), "--learner", "critic"]) == 2
    assert "no rollouts of 'critic'" in capsys.readouterr().err
    assert command(["rollouts", str(tmp_path)]) == 2


def test_whose_rollouts_are_read_is_said(tmp_path, capsys):
    run = lock_run(tmp_path / "a", "dapo", overrides=["curriculum.refill=0"], prompts=4, steps=2).path
    whose = rollout_learners(run)
    assert whose == ["policy", "policy-dropped"]
    assert command(["rollouts", str(run), "--learner", "policy-dropped", "--best", "1"]) == 0
    head, note, *_ = capsys.readouterr().out.splitlines()
    assert ", not kept by the curriculum: " in head and note == "(of --learner policy-dropped; there are also policy)"
    assert command(["rollouts", str(run), "--json", "--best", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["learner"] == "policy"
    assert command(["rollouts", str(run), "--learner", "hinter"]) == 2
    assert "there are those of policy, policy-dropped" in capsys.readouterr().err
    assert ", not kept by the curriculum" in (run / "report.html").read_text()


def test_a_run_that_wants_no_report_has_none(tmp_path, capsys):
    run = tmp_path / "a"
    assert command(["train", *LOCK_OPTIONS, "--steps", "1", "--log-to", "", "--no-report", "--out", str(run)]) == 0
    assert not (run / "report.html").exists() and "read it" not in capsys.readouterr().out
    assert command(["report", str(run)]) == 0 and (run / "report.html").is_file()

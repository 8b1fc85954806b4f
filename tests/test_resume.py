"""Stopped in whatever way, a run that goes on gives the numbers of one that was never stopped."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import melior
import melior.storage.checkpoints
from melior.cli import run as command
from melior.errors import RunError, UserError
from melior.run import Run
from runs import LOCK_OPTIONS, every_row, in_a_process, lock_run, rows, text_run

# ---- killed


@pytest.mark.parametrize(
    ("method", "more", "moment"),
    [
        ("dapo", {"lora": 2, "overrides": ["refill=2"], "eval_every": 2, "keep_best": True, "keep": 1}, "mid-step"),
        ("poise", {}, "mid-save"),
        ("ppo-lm", {"schedule": "cosine", "warmup": 1}, "mid-save"),
    ],
)
def test_a_killed_language_run_goes_on_as_if_it_had_lived(tmp_path, monkeypatch, method, more, moment):
    more = {"steps": 5, "save_every": 2, **more}
    text_run(tmp_path / "whole", method, **more)

    def die() -> None:
        if moment == "mid-step":  # the weights have moved, nothing of the step is written
            monkeypatch.setattr(Run, "sync", lambda run, name: run.step == 3 and os.kill(os.getpid(), signal.SIGKILL))
        else:
            kill = lambda path: "step-000004" in str(path) and os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            monkeypatch.setattr(melior.storage.checkpoints, "sync_file", kill)
        text_run(tmp_path / "killed", method, **more)

    assert in_a_process(die) == -signal.SIGKILL
    saved = sorted(path.name for path in (tmp_path / "killed" / "checkpoints").iterdir() if path.name[0] != ".")
    assert saved[-1] == "step-000002" and not (tmp_path / "killed" / "summary.json").exists()
    melior.train(resume=tmp_path / "killed", quiet=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    ends = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("killed", "whole")]
    assert ends[0]["after"] == ends[1]["after"] and ends[0]["tokens"] == ends[1]["tokens"]
    kept = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("killed", "whole")]
    assert kept[0] == kept[1]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, monkeypatch):
    lock_run(tmp_path / "whole")

    def die() -> None:
        kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        monkeypatch.setattr(melior.storage.checkpoints, "sync_file", kill)
        lock_run(tmp_path / "killed")

    assert in_a_process(die) == -signal.SIGKILL
    melior.train(resume=tmp_path / "killed", quiet=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_figures_of_steps_after_the_checkpoint_are_cut_off(tmp_path):
    lock_run(tmp_path / "a", steps=4, save_every=2)
    whole = rows(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "step-000004")
    with open(tmp_path / "a" / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "rew')
    (tmp_path / "a" / "rollouts" / "step-000009.parquet").write_text("of a later step")
    melior.train(resume=tmp_path / "a", quiet=True)
    assert rows(tmp_path / "a") == whole
    assert not (tmp_path / "a" / "rollouts" / "step-000009.parquet").exists()


# ---- interrupted

INTERRUPTING = """
import os, signal

calls = []


def first_digit(completions, trainer_state, **columns):
    calls.append(1)
    if trainer_state.global_step == 1 and len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return [float(text[:1] == "a") for text in completions]
"""


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(INTERRUPTING)
    options = ["train", "grpo", *LOCK_OPTIONS, "--reward", "mine.py:first_digit", "--steps", "4", "--log-to", ""]
    assert command([*options, "--out", "a"]) == 130
    said = capsys.readouterr()
    assert "interrupted after 2 steps" in said.out and "go on: melior train --resume a" in said.out
    assert [row["step"] for row in every_row(tmp_path / "a")] == [1, 2]
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["interrupted"] is True
    assert command(["train", "--resume", "a", "--quiet"]) == 0
    (tmp_path / "mine.py").write_text(INTERRUPTING.replace("os.kill", "(lambda *_: None)"))
    assert command([*options, "--out", "b", "--quiet"]) == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


# ---- extended


@pytest.mark.parametrize("method", ["grpo", "dapo"])
def test_a_finished_run_can_be_given_more_steps(tmp_path, method):
    lock_run(tmp_path / "whole", method, steps=5)
    lock_run(tmp_path / "a", method, steps=3)
    result = melior.train(resume=tmp_path / "a", steps=5, quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "whole") and result.summary["steps"] == 5
    assert "steps: 5" in (tmp_path / "a" / "config.yaml").read_text()
    melior.train(resume=tmp_path / "a", quiet=True)
    assert len(rows(tmp_path / "a")) == 5


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"steps": 2}, "can have more, not 2"),
        ({"lr": 0.5}, "lr cannot be given with resume"),
        ({"method": "dapo"}, "method cannot be given with resume"),
        ({"overrides": ["clip.high=0.3"]}, "overrides cannot be given with resume"),
        ({"out": "elsewhere"}, "out cannot be given with resume"),
        ({"reward": len}, "reward cannot be given with resume"),
    ],
)
def test_nothing_but_the_steps_may_change(tmp_path, given, sentence):
    lock_run(tmp_path / "a", steps=3)
    before = rows(tmp_path / "a"), (tmp_path / "a" / "config.yaml").read_text()
    with pytest.raises(UserError, match=re.escape(sentence)):
        melior.train(resume=tmp_path / "a", quiet=True, **given)
    assert before == (rows(tmp_path / "a"), (tmp_path / "a" / "config.yaml").read_text())


def test_a_schedule_that_ends_later_is_said(tmp_path, capsys):
    lock_run(tmp_path / "a", steps=2, schedule="linear")
    melior.train("rloo", resume=tmp_path / "a", steps=3)
    assert "the linear schedule now ends at step 3, not 2" in capsys.readouterr().err


# ---- damaged


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "a"
    lock_run(path, "ppo-lm", steps=2)
    return path


def test_every_part_of_a_checkpoint_is_missed_by_name(finished, tmp_path, capsys):
    newest = finished / "checkpoints" / "step-000002"
    parts = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(parts) >= 5
    for number, part in enumerate(parts):
        shutil.copytree(finished, tmp_path / str(number), symlinks=True)
        (tmp_path / str(number) / "checkpoints" / "step-000002" / part).unlink()
        assert command(["train", "--resume", str(tmp_path / str(number)), "--quiet"]) == 3
        said = capsys.readouterr().err
        assert f"checkpoint step-000002 lacks {part}" in said and said.count("\n") == 1


def test_an_altered_part_is_named(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "a", symlinks=True)
    part = tmp_path / "a" / "checkpoints" / "step-000002" / "state.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    assert command(["train", "--resume", str(tmp_path / "a"), "--quiet"]) == 3
    assert "state.safetensors of checkpoint step-000002 is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.unlink(), "the saved scorer 'policy/reference' lacks tree.safetensors"),
        (
            lambda file: file.write_bytes(bytes(file.stat().st_size)),
            "of the saved scorer 'policy/reference' is damaged",
        ),
    ],
)
def test_a_reference_that_is_gone_or_altered_is_named(tmp_path, capsys, damage, sentence):
    lock_run(tmp_path / "a", "grpo", steps=2)
    (kept,) = (tmp_path / "a" / "reference").iterdir()
    damage(kept / "tree.safetensors")
    assert command(["train", "--resume", str(tmp_path / "a"), "--quiet"]) == 3
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_what_never_changes_is_saved_once_a_run_and_the_policy_once_a_checkpoint(tmp_path):
    size = lambda path: path.stat().st_size  # noqa: E731
    text_run(tmp_path / "a", "grpo", steps=2, save_every=1)
    (kept,) = (tmp_path / "a" / "reference").iterdir()
    written = (kept / "tree.safetensors").stat().st_mtime_ns
    first = load_file(kept / "tree.safetensors")
    melior.train(resume=tmp_path / "a", steps=3, quiet=True)
    assert (kept / "tree.safetensors").stat().st_mtime_ns == written
    newest = tmp_path / "a" / "checkpoints" / "step-000003"
    model = load_file(newest / "model" / "model.safetensors")
    assert any(not torch.equal(model[name.partition(".")[2]], value) for name, value in first.items())
    moments = 2 * size(newest / "model" / "model.safetensors")
    assert size(newest / "state.safetensors") == pytest.approx(moments, rel=0.01)
    back = melior.load(tmp_path / "a").run
    assert all(torch.equal(first[name], value) for name, value in back.scorer("reference").state().items())
    assert all(torch.equal(model[name.partition(".")[2]], v) for name, v in back.learner().policy.state().items())


def test_checkpoints_that_are_gone_are_missed(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "a", symlinks=True)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    assert command(["train", "--resume", str(tmp_path / "a"), "--quiet"]) == 3
    assert "holds no checkpoint" in capsys.readouterr().err


# ---- failing


class FullDisk(melior.Callback):
    """From a step on no file may grow beyond a few kilobytes."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, run, metrics):
        if metrics["step"] == self.at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def disk_limit():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path, disk_limit):
    more = {"steps": 3, "save_every": 2, "task": "lock:P=64,L=4,V=6", "max_tokens": 4, "keep_rollouts": -1}
    lock_run(tmp_path / "whole", **more)
    with pytest.raises(RunError, match="could not save checkpoint step-000002") as error:
        lock_run(tmp_path / "a", callbacks=[FullDisk(2)], **more)
    disk_limit()
    assert "\n" not in str(error.value) and "--resume" in str(error.value)
    assert [path.name for path in (tmp_path / "a" / "checkpoints").iterdir()] == ["step-000000"]
    melior.train(resume=tmp_path / "a", quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "whole")


@pytest.mark.parametrize("failing", ["first", "between", "last"])
def test_an_evaluation_that_fails_loses_no_step(tmp_path, failing):
    first = {"first": 1, "between": 4, "last": 6}[failing]  # evaluations: 1, 4 and 6; steps: 2, 3 and 5
    calls = []

    def fragile(completions, **columns):
        calls.append(1)
        if len(calls) == first:
            raise OSError("the judge is down")
        return [float(text[:1] == "a") for text in completions]

    more = {"reward": fragile, "steps": 3, "eval_every": 2}
    with pytest.raises(RunError, match="judge is down") as error:
        lock_run(tmp_path / "a", **more)
    assert "go on with: melior train --resume" in str(error.value)
    if failing != "first":
        assert f"saved at step {2 if failing == 'between' else 3}" in str(error.value)
    melior.train(resume=tmp_path / "a", reward=fragile, quiet=True)
    lock_run(tmp_path / "b", **more)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert (tmp_path / "a" / "rollouts" / "step-000002.parquet").exists()


# ---- what is kept


def test_the_best_checkpoint_is_kept_wherever_the_saves_fall(tmp_path):
    scores = {}

    class Watch(melior.Callback):
        def on_eval(self, run, figures):
            scores[run.step] = figures["score"]

    lock_run(tmp_path / "a", steps=30, eval_every=3, keep=1, keep_best=True, lr=1.0, callbacks=[Watch()])
    best = next(step for step, score in scores.items() if score == max(scores.values()))
    kept = {path.name for path in (tmp_path / "a" / "checkpoints").iterdir()}
    assert 0 < best < 30, "the test needs a run whose best is not its last"
    assert kept == {f"step-{best:06d}", "step-000030"}
    manifest = json.loads((tmp_path / "a" / "checkpoints" / f"step-{best:06d}" / "manifest.json").read_text())
    assert manifest["score"] == max(scores.values())

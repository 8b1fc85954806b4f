"""`melior train`, as it is typed: what is printed where, what is written, what the options reach."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import melior
from melior.cli import run as command
from melior.settings import LanguageSettings
from runs import LOCK_OPTIONS, TEXT_OPTIONS, every_row, lock_run, rows, sums, write_rows

LOCK = ["rloo", *LOCK_OPTIONS, "-n", "8", "--steps", "3", "--log-to", ""]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_progress_and_summary_of_a_run_that_no_one_watches(capsys):
    assert command(["train", *LOCK, "--out", "a", "--eval-every", "2"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-2:] == ["measure it: melior eval a    use it: a/model", "read it: a/report.html"]
    assert "pass@1  " in said.out and " -> " in said.out and "3 steps" in said.out
    lines = said.err.splitlines()
    assert lines[0].startswith("rloo: 3 steps of 4 prompts x 8 completions of at most 2 tokens; 96 trained parameters")
    steps = [line for line in lines if line.startswith("step ") and "reward" in line]
    assert [line.split()[1] for line in steps] == ["1/3", "2/3", "3/3"]
    for shown in ("held out ", "reward ", "mixed ", "entropy ", "grad norm ", "tokens/s "):
        assert all(shown in line for line in steps)
    assert all("left " in line for line in steps[:-1]) and not any("loss" in line for line in lines)
    assert "\x1b" not in said.err and "\r" not in said.err


def test_quiet_prints_nothing_on_either_stream(tmp_path):
    """In a process of its own, so that nothing that a library prints goes unseen."""
    call = [sys.executable, "-m", "melior", "train", "grpo", *TEXT_OPTIONS, "--lora", "2", "--quiet", "--out", "a"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    events = list((tmp_path / "a" / "tensorboard").iterdir())
    assert len(events) == 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged = EventAccumulator(str(events[0]))
    logged.Reload()
    (row,) = every_row(tmp_path / "a")
    assert set(logged.Tags()["scalars"]) == set(row) - {"step"}
    (reward,) = logged.Scalars("reward")
    assert (reward.step, reward.value) == (1, pytest.approx(row["reward"]))
    assert (tmp_path / "a" / "model" / "adapter_config.json").exists()


def test_every_option_reaches_its_setting(capsys):
    write_rows(Path("rows.jsonl"), sums())
    options = {
        "--steps": "0", "--seed": "7", "--data": "rows.jsonl", "--prompt-template": "{prompt}",
        "--answer-column": "answer", "--reward": "numeric", "--reward-weight": "0.5", "--reward-workers": "0",
        "--eval-fraction": "0.3", "--eval-every": "2", "--eval-prompts": "2", "--eval-k": "1,2", "--prompts": "3",
        "--n": "5", "--max-tokens": "20", "--temperature": "0.9", "--stop": ";", "--truncated": "mask",
        "--prefill": "1", "--lr": "1e-3", "--schedule": "cosine", "--optimizer": "sgd", "--clip-grad": "0.4",
        "--lora": "0", "--dtype": "float64", "--device": "cpu", "--rows-per-micro": "2", "--save-every": "3",
        "--keep": "4", "--keep-rollouts": "5", "--log-to": "", "--top-p": "0.9", "--top-k": "3",
    }  # fmt: skip
    flags = ["--keep-best", "--gradient-checkpointing"]
    words = [word for pair in options.items() for word in pair]
    assert command(["train", "rloo", *words, *flags, "--quiet", "--out", "a"]) == 0
    settings = melior.load("a").run.settings
    expected = {
        **{name[2:].replace("-", "_"): value for name, value in options.items()},
        "reward": ("numeric",), "reward_weights": (0.5,), "eval_k": (1, 2), "stop": (";",), "keep_best": True,
        "gradient_checkpointing": True, "task": "",
    }  # fmt: skip
    del expected["reward_weight"]
    for name, value in expected.items():
        kind = type(getattr(LanguageSettings(), name))
        assert getattr(settings, name) == (kind(value) if isinstance(value, str) else value), name


def test_the_same_configuration_runs_again_and_overrides_are_exact(capsys):
    assert command(["train", *LOCK, "--set", "settings.lr=0.2", "--quiet", "--out", "a"]) == 0
    assert command(["train", "--config", "a/config.yaml", "--quiet", "--out", "b"]) == 0
    assert command(["train", "--config", "a", "--seed", "1", "--quiet", "--out", "c"]) == 0
    assert rows(Path("a")) == rows(Path("b")) != rows(Path("c"))
    assert command(["diff", "a", "c"]) == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last.split() == ["settings.seed", "0", "1"]


def test_a_run_of_a_record_that_has_changed_says_so(capsys):
    assert command(["train", *LOCK, "--quiet", "--out", "a"]) == 0
    config = Path("a/config.yaml")
    written = Path("a/fingerprint.txt").read_text().strip()
    assert f"fingerprint: {written}" in config.read_text()
    config.write_text(config.read_text().replace(f"fingerprint: {written}", "fingerprint: 0123456789ab"))
    for again in (["--config", "a/config.yaml", "--out", "b"], ["--resume", "a"]):
        assert command(["train", *again]) == 0
        assert f"the record of 'rloo' was 0123456789ab when this run was written and is {written} now" in (
            capsys.readouterr().err
        )


def test_a_name_begins_the_folder_that_is_made(tmp_path):
    assert command(["train", *LOCK, "--steps", "0", "--quiet", "--name", "my try"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("my-try-20") and json.loads((made / "summary.json").read_text())["steps"] == 0


OWN_PART = '''
from dataclasses import dataclass

import melior
from melior.advantages import GroupRelative
from melior.parts import Transform


@dataclass(frozen=True)
class Broken(Transform):
    """Divides by zero in the second step."""

    def __call__(self, batch):
        calls.append(1)
        return batch.with_(advantage=batch.advantage / (1 // (2 - len(calls))))


calls = []
MINE = melior.get("grpo").but("mine", advantage=GroupRelative() | Broken())
'''


def test_what_the_users_own_part_raises_keeps_its_traceback_and_the_run(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(OWN_PART)
    assert command(["train", "./mine.py:MINE", *LOCK[1:], "--quiet", "--out", "a"]) == 3
    said = capsys.readouterr().err
    assert "Traceback" in said and 'mine.py", line ' in said and "ZeroDivisionError" in said
    assert said.splitlines()[-1] == "The run is saved at step 1; go on with: melior train --resume a"
    assert len(rows(Path("a"))) == 1


def test_a_callback_that_raises_leaves_the_run_saved(tmp_path):
    class Failing(melior.Callback):
        def on_step(self, run, metrics):
            if metrics["step"] == 2:
                raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        lock_run(tmp_path / "a", callbacks=[Failing()], steps=3)
    assert caught.value.__notes__ == [f"The run is saved at step 2; go on with: melior train --resume {tmp_path / 'a'}"]
    lock_run(tmp_path / "b", steps=3)
    melior.train(resume=tmp_path / "a", quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")

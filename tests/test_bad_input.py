"""Mistakes and mishaps: one clear sentence, the right exit code, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import threading

import pytest

import melior
import tiny_models
from melior.cli import run as command
from melior.errors import UserError
from melior.tasks import bundled_model
from runs import LOCK_OPTIONS, TEXT_OPTIONS, lock_run, rows, sums, write_rows

REWARDS = """
import math, time


def right(completions, answer, **columns):
    return [float(a in c) for a, c in zip(answer, completions)]


def asks(completions, difficulty):
    return [0.0 for _ in completions]


def raises(completions, **columns):
    raise OSError("the judge is down")


def too_few(completions, **columns):
    return [0.5]


def nan(completions, **columns):
    return [0.0] * (len(completions) - 1) + [math.nan]


def infinite(completions, **columns):
    return [math.inf for _ in completions]


def words(completions, **columns):
    return ["good" for _ in completions]


def scalar(completions, **columns):
    return 0.5


def hangs(completions, **columns):
    while True:
        time.sleep(0.01)


async def fails_later(completions, **columns):
    raise ValueError("the service said no")


class Judge:
    pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with rows and rewards, which is the current one."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "good.jsonl", sums())
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said: one line on standard error, nothing else."""
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    assert said.err.startswith("melior: ") and said.err.count("\n") == 1, said.err
    return said.err


# ---- the user's mistakes, before anything runs

GOOD = ["--data", "good.jsonl", "--reward", "rewards.py:right"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--data", "nowhere.jsonl", "--reward", "numeric"], "no data file nowhere.jsonl"),
        (["--data", "god.jsonl", "--reward", "numeric"], "did you mean 'good.jsonl'"),
        (["--data", "good.csv", "--reward", "numeric"], "good.csv"),
        (["--data", "good.jsonl"], "no reward: give reward functions"),
        (["--data", "good.jsonl", "--reward", "rewards.py:asks"], "'asks' has a parameter 'difficulty', but the data"),
        (["--data", "good.jsonl", "--reward", "rewards.py:wrong"], "rewards.py has no 'wrong'"),
        (["--data", "good.jsonl", "--reward", "rewards.py"], "name the function after a colon"),
        (["--data", "good.jsonl", "--reward", "reward.py:right"], "reward.py"),
        (["--data", "good.jsonl", "--reward", "rewards.py:Judge"], "is a class; give an instance"),
        (["--data", "good.jsonl", "--reward", "numerc"], "did you mean 'numeric'"),
        (["--data", "good.jsonl", "--reward", "numeric@gold"], "needs a column 'gold'"),
        ([*GOOD, "--reward-weight", "1", "--reward-weight", "2"], "reward_weights has 2 numbers for 1 rewards"),
        ([*GOOD, "--task", "lock"], "a task or data, not both"),
        ([*GOOD, "--prompt-column", "question"], "good.jsonl, line 1: no column 'question'"),
        ([*GOOD, "--prompt-template", "Q: {question}"], "asks for a column 'question' that is not there"),
        ([*GOOD, "--prompt-template", "Q: {prompt"], "malformed"),
        ([*GOOD, "--answer-column", "anwser"], "did you mean 'answer'"),
        ([*GOOD, "--eval-fraction", "1.5"], "eval_fraction"),
        ([*GOOD, "--max-tokens", "512"], "leave no room for a prompt in a context of 512"),
        ([*GOOD, "--system", "Be brief."], "system would have no effect"),
        ([*GOOD, "--top-p", "0.9"], "truncate the sampler only in evaluations"),
        ([*GOOD, "--temperature", "0"], "temperature"),
        ([*GOOD, "--lora", "-1"], "lora must be at least 0"),
        ([*GOOD, "--schedule", "cosin"], "cosine"),
        ([*GOOD, "--eval-k", "1,many"], "whole numbers separated by commas"),
        ([*GOOD, "--eval-k", "0"], "eval_k"),
        ([*GOOD, "--template-arg", "thinking"], "KEY=VALUE"),
        ([*GOOD, "--log-to", "tensorbord"], "tensorboard"),
        ([*GOOD, "--device", "tpu9"], "device 'tpu9'"),
        ([*GOOD, "--model", "./nowhere"], "there is no model folder nowhere"),
        ([*GOOD, "--env", "CartPole-v1"], "no setting 'env'; it is for methods that act in environments"),
        (["ppo", "--data", "good.jsonl"], "reads no setting 'data'; it is for methods that act on text, such as grpo"),
        ([*GOOD, "--keep", "0"], "keep must be at least 1"),
        ([*GOOD, "--stop", ""], "a stop string is empty"),
        ([*GOOD, "--set", "objective.clip.hihg=0.3"], "objective.clip.high"),
        ([*GOOD, "--set", "clip.high=much"], "clip.high"),
        ([*GOOD, "--stpes", "3"], "no such option '--stpes'; did you mean '--steps'"),
        ([*GOOD, "--config", "nowhere.yaml"], "there is no file nowhere.yaml"),
        (["--model", "table", *GOOD], "the tabular policy plays tasks"),
        (["--task", "arithmetics"], "did you mean 'arithmetic'"),
        (["--answer-column", "answer"], "answer_column would have no effect on the task"),
        (["--resume", "nowhere"], "there is no run folder nowhere"),
        (["--steps", "2", "--warmup", "5"], "warmup is 5, longer than the run's 2 steps"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_nothing_is_written(here, capsys, options, expected):
    before = sorted(os.listdir(here))
    out = [] if "--resume" in options else ["--out", "a"]
    assert command(["train", *options, *out]) == 2
    assert expected in sentence(capsys)
    assert sorted(name for name in os.listdir(here) if name != "__pycache__") == before


LONG = json.dumps({"prompt": "1+" * 300, "answer": "2"})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+', "rows.jsonl, line 2: not valid JSON"),
        ('{"prompt": "1+1=", "answer": "2"}\n\n["1+2=", 3]\n', "rows.jsonl, line 3: "),
        ('{"prompt": "1+1=", "answer": "2"}\n{"query": "1+2=", "answer": "3"}\n', "line 2: no column 'prompt'"),
        ('{"prompt": "", "answer": "2"}\n', "rows.jsonl, line 1: the prompt (column 'prompt') is empty"),
        ('{"prompt": " ", "answer": "2"}\n', "rows.jsonl, line 1: the prompt (column 'prompt') is blank"),
        ('{"prompt": null, "answer": "2"}\n', "rows.jsonl, line 1: the prompt (column 'prompt') is empty"),
        ('{"prompt": 5, "answer": "2"}\n', "rows.jsonl, line 1: the prompt (column 'prompt') is of type int"),
        ('{"prompt": [{"role": "user"}], "answer": "2"}\n', "rows.jsonl, line 1: message 1 of the prompt"),
        ('{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}\n', "the tokenizer has no chat template"),
        ('{"prompt": "1+1=", "answer": "2"}\n' + LONG, "line 2: the prompt has 600 tokens, more than the 4"),
        ("", "holds no rows"),
        ("\x00\x01", "rows.jsonl"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_its_line(here, capsys, lines, expected):
    (here / "rows.jsonl").write_text(lines)
    assert command(["train", "--data", "rows.jsonl", "--reward", "numeric", "--max-tokens", "24", "--out", "a"]) == 2
    assert expected in sentence(capsys)
    assert not (here / "a").exists()


def test_a_damaged_parquet_file_is_one_sentence(here, capsys):
    (here / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    assert command(["train", "--data", "rows.parquet", "--reward", "numeric", "--out", "a"]) == 2
    assert "rows.parquet" in sentence(capsys) and not (here / "a").exists()


def test_a_model_folder_without_weights_is_refused(here, capsys):
    shutil.copytree(bundled_model(), here / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert command(["train", *GOOD, "--model", "model", "--out", "a"]) == 2
    assert "the model folder model has no weights" in sentence(capsys)
    (here / "model" / "model.safetensors").write_bytes(b"not weights")
    assert command(["train", *GOOD, "--model", "model", "--out", "a"]) == 2
    assert "cannot load the model" in sentence(capsys) and not (here / "a").exists()


def test_a_tokenizer_without_an_end_needs_a_stop_string_and_one_without_padding_needs_nothing(here, capsys):
    letters = write_rows(here / "letters.jsonl", [{"prompt": p} for p in ("abc", "bcd", "cde", "def")])
    options = ["train", "--data", str(letters), "--reward", "length:3", "--model", "model", *TEXT_OPTIONS, "--quiet"]
    network = tiny_models.network(eos_token_id=None)
    network.generation_config.eos_token_id = None
    network.save_pretrained("model")
    tiny_models.tokenizer(eos=None).save_pretrained("model")
    capsys.readouterr()
    assert command([*options, "--out", "a"]) == 2
    assert "end-of-sequence" in sentence(capsys) and not (here / "a").exists()
    assert command([*options, "--stop", "c", "--out", "a"]) == 0
    texts = [row["text"] for row in melior.storage.rollouts.read_rollouts(here / "a", 1)]
    assert all("c" not in text[:-1] for text in texts)
    shutil.rmtree("model")
    tiny_models.network().save_pretrained("model")
    tiny_models.tokenizer(pad=None).save_pretrained("model")
    assert command([*options, "--out", "b"]) == 0


def test_an_argument_of_python_that_no_setting_reads_is_named(tmp_path):
    with pytest.raises(UserError, match=re.escape("reads no setting 'learning_rate'")):
        lock_run(tmp_path / "a", learning_rate=0.1)
    assert not (tmp_path / "a").exists()


# ---- failures during a run


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("raises", r"reward 'raises' raised OSError: the judge is down \(.*rewards.py, line \d+\), .*completion '"),
        ("too_few", r"reward 'too_few' returned 1 values for 4 completions"),
        ("nan", r"reward 'nan' returned nan .*on row 3, completion '"),
        ("infinite", r"reward 'infinite' returned inf .*on row 0, completion '"),
        ("words", r"reward 'words' returned a str \('good'\), not a number, on row 0, completion '"),
        ("scalar", r"reward 'scalar' returned a float for 4 completions; it must return a list"),
        ("hangs", r"reward 'hangs' took longer than 0.3 s.* completion '"),
        ("fails_later", r"reward 'fails_later' raised ValueError: the service said no"),
    ],
)
def test_a_reward_that_goes_wrong_is_named_with_the_completion(here, capsys, reward, expected):
    options = ["--data", "good.jsonl", "--eval-data", "good.jsonl", "--reward", f"rewards.py:{reward}", *TEXT_OPTIONS]
    assert command(["train", *options, "--set", "reward_timeout=0.3", "--log-to", "", "--quiet", "--out", "a"]) == 3
    said = sentence(capsys)
    assert re.search(expected, said), said
    assert "melior train --resume a" in said
    assert not [path for path in (here / "a").rglob("*") if path.name.startswith(".tmp")]


def test_a_disk_that_is_full_from_the_start_is_one_sentence(here, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        code = command(["train", *GOOD, *TEXT_OPTIONS, "--log-to", "", "--quiet", "--out", "a"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 3 and "could not save checkpoint step-000000" in sentence(capsys)
    assert list((here / "a" / "checkpoints").iterdir()) == []
    assert command(["train", "--resume", "a", "--quiet"]) == 0  # there is room again
    assert len(rows(here / "a")) == 1


def test_a_loss_that_is_not_finite_stops_the_step(here, capsys):
    (here / "mine.py").write_text(
        "import melior\nfrom dataclasses import dataclass\nfrom melior.parts import Transform\n\n"
        "@dataclass(frozen=True)\nclass Bad(Transform):\n"
        "    def __call__(self, batch):\n"
        "        return batch.with_(advantage=batch.mask.float() / 0)\n\n"
        "MINE = melior.get('rloo').but('bad', advantage=Bad())\n"
    )
    assert command(["train", "./mine.py:MINE", *LOCK_OPTIONS, "--log-to", "", "--quiet", "--out", "a"]) == 3
    said = sentence(capsys)
    assert "not finite for rows [0, 1, 2, 3, 4] of step 1" in said and "saved at step 0" in said


# ---- two runs, and none


def test_a_folder_that_holds_a_run_is_not_run_over(here, capsys):
    options = ["train", "rloo", *LOCK_OPTIONS, "--steps", "1", "--log-to", "", "--quiet", "--out", "a"]
    assert command(options) == 0
    before = {path: path.stat().st_mtime_ns for path in (here / "a").rglob("*")}
    assert command(options) == 2
    assert "a already holds a run; go on with it by --resume a" in sentence(capsys)
    assert before == {path: path.stat().st_mtime_ns for path in (here / "a").rglob("*")}


def test_a_second_run_in_the_folder_of_a_running_one_is_refused(here, capsys):
    codes = []

    class Meanwhile(melior.Callback):
        def on_step(self, run, metrics):
            codes.append(command(["train", "--resume", "a", "--quiet"]))
            codes.append(command(["train", "rloo", *LOCK_OPTIONS, "--out", "a", "--quiet"]))

    lock_run(here / "a", steps=1, callbacks=[Meanwhile()])
    assert codes == [2, 2]
    assert capsys.readouterr().err.count("another run is using") == 2
    assert len(rows(here / "a")) == 1 and threading.active_count() >= 1


def test_a_folder_with_something_else_in_it_is_left_alone(here, capsys):
    (here / "a").mkdir()
    (here / "a" / "thesis.txt").write_text("all of it")
    assert command(["train", "rloo", *LOCK_OPTIONS, "--out", "a"]) == 2
    assert "a is not empty" in sentence(capsys)
    assert os.listdir(here / "a") == ["thesis.txt"]


def test_a_damaged_configuration_is_named(here, capsys):
    lock_run(here / "a", steps=1)
    config = here / "a" / "config.yaml"
    text = config.read_text()
    for broken, expected in (
        (text.replace("steps: 1", "steps: many"), "steps"),
        (text.replace("part: SequenceSum", "part: SequenceSumm"), "SequenceSum"),
        (text.replace("seed: 0", "sead: 0"), "seed"),
        ("record: [", "config.yaml"),
        (json.dumps({"settings": {}}), "it needs a record"),
    ):
        assert broken != text
        config.write_text(broken)
        assert command(["train", "--resume", "a"]) == 2
        assert expected in sentence(capsys)

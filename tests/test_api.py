"""The Python entry, mostly on the lock with the tabular policy: runs of a second."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import melior
from melior.errors import RunError, UserError

LOCK = {"model": "table", "task": "lock:P=4,L=2,V=3", "prompts": 4, "n": 8, "lr": 0.1, "max_tokens": 2}


def run(out: Path, method: object = "rloo", **more: object) -> melior.api.Result:
    settings = {"steps": 4, "quiet": True, "log_to": "", **LOCK, **more}
    return melior.train(method, out=out, **settings)


def rows(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith(("_seconds", "_per_second"))} for row in lines]


def test_a_run_leaves_its_folder(tmp_path):
    result = run(tmp_path / "a")
    assert result.summary["steps"] == 4 and len(rows(tmp_path / "a")) == 4
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    value, low, high = summary["before"]["pass@1"]
    assert low <= value <= high and summary["after"]["pass@1"][0] >= value
    for name in ("config.yaml", "fingerprint.txt", "model", "rollouts/step-000004.parquet"):
        assert (tmp_path / "a" / name).exists(), name
    assert result.model.resolve().parent.name == "step-000004"


def test_the_same_seed_is_the_same_run_also_within_one_process(tmp_path):
    for name in "ab":
        run(tmp_path / name, "grpo")
    run(tmp_path / "c", "grpo", seed=1)
    assert rows(tmp_path / "a") == rows(tmp_path / "b") != rows(tmp_path / "c")


def test_evaluating_changes_nothing_of_the_training(tmp_path):
    run(tmp_path / "a", "grpo")
    run(tmp_path / "b", "grpo", eval_every=1, eval_k=(1, 4))
    seen = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in rows(tmp_path / "b")]
    assert seen == rows(tmp_path / "a")
    assert "eval/pass@4" in rows(tmp_path / "b")[0]


def test_micro_batches_change_nothing_in_float64(tmp_path):
    run(tmp_path / "a", "tpo", dtype="float64")
    run(tmp_path / "b", "tpo", dtype="float64", rows_per_micro=3)
    for one, other in zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("method", ["grpo", "dapo", "ppo-lm", "tpo"])
def test_a_resumed_run_equals_one_that_was_never_cut(tmp_path, method):
    run(tmp_path / "whole", method, steps=6, save_every=1)

    class Cut(melior.Callback):
        def on_step(self, run, metrics):
            if metrics["step"] == 4:
                raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        run(tmp_path / "cut", method, steps=6, save_every=3, callbacks=[Cut()])
    assert len(rows(tmp_path / "cut")) == 4
    melior.train(resume=tmp_path / "cut", quiet=True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_a_configuration_runs_again(tmp_path):
    run(tmp_path / "a", "grpo", overrides=["objective.clip.high=0.3"])
    again = melior.train(config=tmp_path / "a" / "config.yaml", out=tmp_path / "b", quiet=True)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert "high=0.3" in repr(again.trainee.run.method.objective)


def test_zero_steps_evaluate_only(tmp_path):
    result = run(tmp_path / "a", steps=0)
    assert result.summary["before"] == result.summary["after"] and result.summary["steps"] == 0


def test_callables_rows_and_callbacks_are_accepted(tmp_path):
    seen = []

    class Watch(melior.Callback):
        def on_step(self, run, metrics):
            seen.append(("step", metrics["step"]))

        def on_eval(self, run, figures):
            seen.append(("eval", figures["score"]))

        def on_save(self, run, path):
            seen.append(("save", path.name))

    def digits(completions, total, trainer_state, **columns):
        assert trainer_state.max_steps == 1
        return [float(t in c) for c, t in zip(completions, total, strict=True)]

    data = [{"prompt": f"{a}+{b}=", "total": str(a + b)} for a, b in ((12, 30), (20, 21), (35, 14), (50, 9))]
    result = melior.train(
        "rloo", data=data, reward=digits, steps=1, prompts=2, n=2, out=tmp_path / "a", quiet=True,
        callbacks=[Watch()], log_to="", max_tokens=24,
    )  # fmt: skip
    kinds = [kind for kind, _ in seen]
    assert kinds.count("step") == 1 and kinds.count("eval") == 2 and ("save", "step-000000") in seen
    assert (result.model / "config.json").exists()


def test_every_metric_is_documented(tmp_path):
    run(tmp_path / "a", "ppo-lm", eval_every=2)
    run(tmp_path / "b", "grpo")
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    known = set(re.findall(r"`([^`]+)`", page))
    for row in rows(tmp_path / "a") + rows(tmp_path / "b"):
        for name in row:
            general = "reward/NAME" if name.startswith("reward/") else "eval/NAME" if name.startswith("eval/") else name
            assert general in known, name


def test_load_gives_back_what_was_trained(tmp_path):
    result = run(tmp_path / "a", steps=6)
    again = melior.load(tmp_path / "a")
    assert again.step == 6
    assert again.evaluate()["score"] == result.summary["after"]["score"]
    assert melior.evaluate(tmp_path / "a", eval_k=(1, 2))["pass@2"][0] >= result.summary["after"]["score"]


def test_a_pin_wins_and_is_said(tmp_path, capsys):
    result = melior.train("two-grpo", out=tmp_path / "a", steps=1, log_to="", **LOCK)
    assert result.trainee.run.settings.n == 2
    assert "pins n = 2" in capsys.readouterr().err + "".join(result.trainee.notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stepz": 3}, "steps"),
        ({"steps": -3}, "steps must be at least 0"),
        ({"top_p": 0.9}, "top_p"),
        ({"env": "CartPole-v1"}, "env"),
        ({"lora": 4}, "lora"),
        ({"prompt_column": "q"}, "prompt_column"),
        ({"task": "lokc"}, "lock"),
        ({"data": "nowhere.jsonl", "task": None}, "nowhere.jsonl"),
        ({"lora_alpha": 3}, "lora"),
        ({"warmup": 9}, "warmup"),
        ({"overrides": ["objective.weight=1"]}, "objective"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, change, sentence):
    change = {k: v for k, v in {**LOCK, "steps": 4, **change}.items() if v is not None}
    with pytest.raises(UserError, match=re.escape(sentence)):
        melior.train("rloo", out=tmp_path / "a", quiet=True, log_to="", **change)
    assert not (tmp_path / "a").exists()


def test_two_runs_in_one_folder_are_refused(tmp_path):
    run(tmp_path / "a", steps=1)
    with pytest.raises(UserError, match="--resume"):
        run(tmp_path / "a", steps=1)


def test_a_group_of_one_is_said(tmp_path):
    result = run(tmp_path / "a", "grpo", n=1, steps=1)
    assert any("n is 1" in note for note in result.trainee.notes)
    assert rows(tmp_path / "a")[0]["grad_norm"] == 0


def test_a_failing_reward_saves_and_the_run_goes_on_later(tmp_path):
    calls = []

    def fragile(completions, **columns):
        calls.append(1)
        if len(calls) == 4:  # the first evaluation, then three steps
            raise OSError("the judge is down")
        return [float(len(c) % 2) for c in completions]

    more = {"reward": fragile, "steps": 5, "save_every": 0}
    with pytest.raises(RunError, match="judge is down") as error:
        run(tmp_path / "a", "rloo", **more)
    assert "saved at step 2" in str(error.value)
    melior.train(resume=tmp_path / "a", reward=fragile, quiet=True)
    calls[:] = [0] * 10
    run(tmp_path / "b", "rloo", **more)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")

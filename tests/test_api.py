"""The Python entry, mostly on the lock with the tabular policy: runs of a second."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from pathlib import Path

import pytest
import torch
import transformers

import melior
import tiny_models
from melior.errors import RunError, UserError
from melior.storage.rollouts import read_rollouts
from runs import LOCK, every_row, rows, sums, text_run
from runs import lock_run as run


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
                raise SystemExit("cut")  # which is no failure of the callback, so nothing is saved

    with pytest.raises(SystemExit, match="cut"):
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
    run(tmp_path / "a", "ppo-lm", eval_every=2, eval_k=(1, 2))
    run(tmp_path / "b", "grpo")
    text_run(tmp_path / "c", "poise", steps=1, eval_every=1)
    control = {"env": "CartPole-v1", "quiet": True, "log_to": "", "eval_episodes": 1, "eval_every": 1}
    melior.train("ppo", out=tmp_path / "d", steps=2, envs=2, horizon=64, hidden=(8,), **control)
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    known = set(re.findall(r"`([^`]+)`", page))
    for row in (row for name in "abcd" for row in every_row(tmp_path / name)):
        for name in row:
            plain = re.sub(r"_(low|high)$", "", name.removeprefix("eval/")) if name.startswith("eval/") else name
            plain = re.sub(r"@\d+", "@k", plain)
            plain = {"mean@k": "mean@n"}.get(plain, plain)
            assert ("reward/NAME" if plain.startswith("reward/") else plain) in known, name


def test_load_gives_back_what_was_trained(tmp_path):
    result = run(tmp_path / "a", steps=6)
    again = melior.load(tmp_path / "a")
    assert again.step == 6
    assert again.evaluate()["score"] == result.summary["after"]["score"]
    assert melior.evaluate(tmp_path / "a", eval_k=(1, 2))["pass@2"][0] >= result.summary["after"]["score"]


def test_a_pin_wins_and_is_said(tmp_path, capsys):
    result = run(tmp_path / "a", "two-grpo", steps=1, quiet=False)
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
        melior.train("rloo", out=tmp_path / "a", **change)
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


# ---- notebooks


def test_a_thread_may_train_and_leaves_no_handler_behind(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    failures = []

    def work():
        try:
            run(tmp_path / "a")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == [] and signal.getsignal(signal.SIGINT) is before
    run(tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b") and signal.getsignal(signal.SIGINT) is before


def test_a_running_event_loop_is_no_obstacle(tmp_path):
    async def cell():
        return run(tmp_path / "a", steps=1)

    assert asyncio.run(cell()).summary["steps"] == 1


def test_a_model_object_is_trained_in_place_and_saved(tmp_path):
    network, tokenizer = tiny_models.network(dtype=torch.float32), tiny_models.tokenizer()
    before = network.get_output_embeddings().weight.detach().clone()
    data = [{"prompt": prompt} for prompt in ("abc", "bcd", "cde", "def")]
    result = text_run(tmp_path / "a", model=(network, tokenizer), data=data, reward="length:9")
    assert not torch.equal(before, network.get_output_embeddings().weight)
    again = transformers.AutoModelForCausalLM.from_pretrained(result.model)
    ids = torch.tensor([tokenizer("abcde")["input_ids"]])
    assert torch.equal(again(ids).logits, network(ids).logits)
    with pytest.raises(UserError, match=r"its model and data in Python, .*: model=\.\.\., data=\.\.\."):
        melior.train(resume=tmp_path / "a", quiet=True)


def test_a_run_goes_on_with_the_rows_and_rewards_it_was_begun_with(tmp_path):
    def right(completions, answer, **columns):
        return [float(a in c) for a, c in zip(answer, completions, strict=True)]

    def short(completions, **columns):
        return [float(len(c) < 9) for c in completions]

    data = sums(6)
    given = {"reward": [right, short], "reward_weights": [1.0, 0.2]}
    text_run(tmp_path / "a", data=data, steps=1, eval_prompts=1, **given)
    go_on = lambda **other: melior.train(resume=tmp_path / "a", quiet=True, steps=2, **other)  # noqa: E731
    with pytest.raises(UserError, match=r"begun with reward .*right>, .*short>; .*short>, .*right> would change it"):
        go_on(data=data, reward=[short, right])
    with pytest.raises(UserError, match=r"begun with data <6 rows, \w+>; going on with <5 rows, \w+> would change it"):
        go_on(data=data[:5], reward=[right, short])
    with pytest.raises(UserError, match=r"begun with data .* would change it"):
        go_on(data=[*data[:5], {**data[5], "answer": "no"}], reward=[right, short])
    with pytest.raises(UserError, match=r"its data in Python, .*; go on with melior.train\(resume="):
        go_on(data="rows.jsonl")
    assert go_on(data=iter(data), reward=[right, short]).summary["steps"] == 2


def test_an_adapted_model_can_be_trained_twice_in_one_process(tmp_path):
    peft = pytest.importorskip("peft")
    network = peft.get_peft_model(
        tiny_models.network(dtype=torch.float32), peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    data = [{"prompt": prompt} for prompt in ("abc", "bcd", "cde", "def")]
    given = {"model": (network, tiny_models.tokenizer()), "data": data, "reward": "length:9"}
    first = text_run(tmp_path / "a", "grpo", steps=1, **given)  # grpo's reference is a frozen copy of the adapter
    second = text_run(tmp_path / "b", "grpo", steps=1, **given)
    assert first.summary["steps"] == second.summary["steps"] == 1


# ---- methods from outside

PART = """
from dataclasses import dataclass

import melior
from melior.parts import Term


@dataclass(frozen=True)
class Squared(Term):
    \"\"\"A penalty on the log-probability itself.\"\"\"

    weight: float = 0.01

    def __call__(self, now, batch):
        return self.weight * now.logp**2


MINE = melior.get("rloo").but("squared", objective=melior.get("rloo").objective + Squared())
PLAIN = melior.get("grpo").but("plain")
"""


def test_a_file_of_ones_own_is_a_method_like_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PART)
    run(tmp_path / "a", "./mine.py:MINE", overrides=["objective.squared.weight=0.5"])
    assert "weight: 0.5" in (tmp_path / "a" / "config.yaml").read_text()
    run(tmp_path / "b", "rloo")
    assert rows(tmp_path / "a") != rows(tmp_path / "b")
    run(tmp_path / "c", "./mine.py:PLAIN")
    run(tmp_path / "d", melior.get("grpo").but("mine"))
    run(tmp_path / "e", "grpo")
    assert rows(tmp_path / "c") == rows(tmp_path / "d") == rows(tmp_path / "e")
    with pytest.raises(UserError, match="did you mean 'MINE'"):
        run(tmp_path / "f", "./mine.py:MIEN")


def test_a_file_with_a_fault_of_its_own_says_where(tmp_path):
    (tmp_path / "broken.py").write_text("import melior\n\nMINE = melior.get('grpo').but('x', advantag=1)\n")
    with pytest.raises(UserError, match=r"broken\.py"):
        run(tmp_path / "a", f"{tmp_path}/broken.py:MINE")


# ---- what is left


def test_rollouts_hold_what_was_learnt_from(tmp_path):
    result = text_run(tmp_path / "a", "grpo", data=sums(), reward=["numeric", "length:30"], reward_weights=(1.0, 0.1))
    assert [path.name for path in sorted((tmp_path / "a" / "rollouts").iterdir())] == [
        f"step-{step:06d}.parquet" for step in (1, 2, 3)
    ]
    rollouts = read_rollouts(tmp_path / "a", 2)
    metrics = rows(tmp_path / "a")[1]
    assert len(rollouts) == metrics["rows"] == 8 and sum(row["length"] for row in rollouts) == metrics["tokens"]
    for row in rollouts:
        assert row["reward"] == pytest.approx(row["reward/numeric"] + 0.1 * row["reward/length"])
        assert row["prompt_text"] == row["row_prompt"] and row["pair"] in range(8) and row["answer"]
        assert len(row["advantage"]) == len(row["behaviour_logp"]) == len(row["token_ids"]) == row["length"]
    assert {row["group"] for row in rollouts} == {0, 1}
    assert metrics["reward"] == pytest.approx(sum(row["reward"] for row in rollouts) / 8)
    assert result.summary["tokens"] == sum(row["tokens"] for row in rows(tmp_path / "a"))


def test_only_as_many_rollouts_are_kept_as_asked_for(tmp_path):
    run(tmp_path / "a", keep_rollouts=2)
    assert sorted(path.name for path in (tmp_path / "a" / "rollouts").iterdir()) == [
        "step-000003.parquet", "step-000004.parquet",
    ]  # fmt: skip
    run(tmp_path / "b", keep_rollouts=-1)
    assert not (tmp_path / "b" / "rollouts").exists()


def test_evaluations_report_every_k(tmp_path):
    result = run(tmp_path / "a", steps=2, eval_every=1, eval_k=(1, 8))
    names = {"pass@1", "pass@8", "mean@8"}
    assert names <= set(result.summary["before"]) and all(len(result.summary["after"][name]) == 3 for name in names)
    first, last = rows(tmp_path / "a")
    assert {f"eval/{name}" for name in names | {"score", "prompts"}} <= set(first)
    for name in names:
        assert [last[f"eval/{name}{end}"] for end in ("", "_low", "_high")] == result.summary["after"][name]


def test_what_failed_leaves_no_lock_and_no_open_handler(tmp_path):
    class Fails(melior.Callback):
        def on_step(self, run, metrics):
            raise KeyError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError):
        run(tmp_path / "a", callbacks=[Fails()])
    assert signal.getsignal(signal.SIGINT) is before and not (tmp_path / "a" / "lock").exists()
    melior.train(resume=tmp_path / "a", quiet=True)
    assert len(rows(tmp_path / "a")) == 4

"""What a language run promises: what is a pass, what is trained, what a reward sees, what reaches a part."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import melior
import tiny_models
from melior.advantages.group import spread
from melior.advantages.groups import group_moments
from melior.errors import UserError
from melior.loops.preview import language_preview
from melior.parts import Transform
from melior.storage.rollouts import read_rollouts
from melior.trajectories import Trajectories
from runs import lock_run, rows, sums, text_run, write_rows


def first_letter(completions, **columns):
    """1 for a completion that begins with a, a half for b."""
    return [{"a": 1.0, "b": 0.5}.get(text[:1], 0.0) for text in completions]


# ---- what is a pass


@pytest.mark.parametrize("pass_at", [0.5, 1.0])
def test_a_pass_is_an_outcome_that_reaches_pass_at(tmp_path, pass_at):
    lock_run(tmp_path / "a", reward=first_letter, pass_at=pass_at, steps=1)
    (row,), outcomes = rows(tmp_path / "a"), [r["outcome"] for r in read_rollouts(tmp_path / "a", 1)]
    assert set(outcomes) == {0.0, 0.5, 1.0}
    assert row["pass_rate"] == sum(outcome >= pass_at for outcome in outcomes) / len(outcomes)
    assert row["reward"] == pytest.approx(sum(outcomes) / len(outcomes))


def test_outcome_names_the_component_that_decides(tmp_path):
    def short(completions, **columns):
        return [1.0 for _ in completions]

    more = {"reward": [first_letter, short], "reward_weights": (2.0, 0.5), "steps": 1}
    lock_run(tmp_path / "a", outcome="first_letter", **more)
    lock_run(tmp_path / "b", **more)
    named, summed = (read_rollouts(tmp_path / name, 1) for name in "ab")
    assert [r["outcome"] for r in named] == [r["reward/first_letter"] for r in named]
    assert [r["outcome"] for r in summed] == [2 * r["reward/first_letter"] + 0.5 for r in summed]
    assert [r["reward"] for r in named] == [r["reward"] for r in summed] == [r["outcome"] for r in summed]
    with pytest.raises(UserError, match="outcome 'first_leter' is no reward of this run; did you mean 'first_letter'"):
        lock_run(tmp_path / "c", outcome="first_leter", **more)


def test_mixed_groups_are_those_of_the_raw_outcome(tmp_path):
    """DAPO's length penalty shapes the reward; a group whose answers are all right is still left out."""

    def right(completions, **columns):
        return [1.0 for _ in completions]

    text_run(tmp_path / "a", "dapo", reward=right, steps=1, max_tokens=16, overrides=["refill=1", "buffer=8"])
    (row,) = rows(tmp_path / "a")
    assert row["reward"] < 1 and row["reward_std"] > 0, "the penalty must tell the answers apart"
    assert row["pass_rate"] == 1 and row["mixed_share"] == 0
    assert row["skipped"] == 1 and row["rows"] == 0 and row["refills"] == 1


def test_zero_steps_evaluate_only_and_may_truncate_the_sampler(tmp_path):
    result = text_run(tmp_path / "a", steps=0, top_k=1, eval_k=(1, 4))
    after = result.summary["after"]
    assert after == result.summary["before"] and not (tmp_path / "a" / "metrics.jsonl").exists()
    assert after["pass@1"][0] == after["pass@4"][0]  # with one token to choose from, siblings are equal
    with pytest.raises(UserError, match="truncate the sampler only in evaluations"):
        text_run(tmp_path / "b", top_k=1)


# ---- what a reward is given


def test_rewards_are_given_what_trl_gives_them(tmp_path):
    seen: list[dict[str, Any]] = []

    def watch(prompts, completions, completion_ids, trainer_state, **columns):
        seen.append(
            {
                "prompts": prompts, "completions": completions, "ids": completion_ids,
                "steps": (trainer_state.global_step, trainer_state.max_steps), **columns,
            }
        )  # fmt: skip
        return [0.0 if i % 2 else None for i, _ in enumerate(completions)]

    result = text_run(tmp_path / "a", data=sums(6), reward=watch, prefill="1", steps=2, eval_prompts=1)
    evaluated, first, second, last = seen
    assert [call["steps"] for call in seen] == [(0, 2), (0, 2), (1, 2), (2, 2)]
    assert len(evaluated["prompts"]) == len(last["prompts"]) == 1
    assert first["prompts"][0] == first["prompts"][3] != first["prompts"][4]
    assert set(first) == {"prompts", "completions", "ids", "steps", "answer", "pair", "log_metric", "log_extra"}
    decode = result.trainee.run.learner().policy.decode
    for call in (first, second):
        assert call["completions"] == ["1" + decode(ids) for ids in call["ids"]]  # the prefilled text is judged too
    rollouts = read_rollouts(tmp_path / "a", 1)
    assert ["1" + row["text"] for row in rollouts] == first["completions"]
    assert all(row["prompt_text"].endswith("=1") for row in rollouts)
    assert [row["reward/watch"] for row in rollouts] == [None, 0.0] * 4
    assert [any(row["mask"]) for row in rollouts] == [False, True] * 4  # where no reward applies nothing is trained


def chat_model(tmp_path: Path) -> str:
    """The bundled model with a chat template that its vocabulary can write."""
    from melior.tasks import bundled_model

    folder = tmp_path / "chat"
    folder.mkdir()
    for file in Path(bundled_model()).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %}={% endif %}{% endfor %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_chat_rows_give_completions_as_messages(tmp_path):
    seen = []

    def watch(prompts, completions, **columns):
        seen.append((prompts, completions))
        return [float(c[0]["content"].startswith("1")) for c in completions]

    data = [{"prompt": [{"role": "user", "content": f"{n}+11"}], "answer": str(n + 11)} for n in range(10, 16)]
    text_run(tmp_path / "a", model=chat_model(tmp_path), data=data, reward=watch, steps=1)
    prompts, completions = seen[1]
    assert prompts[0] == [{"role": "user", "content": prompts[0][0]["content"]}]
    assert [message["role"] for message in completions[0]] == ["assistant"]
    (row, *_) = read_rollouts(tmp_path / "a", 1)
    assert row["prompt_text"] == prompts[0][0]["content"] + "=" and row["text"] == completions[0][0]["content"]


def test_rewards_may_be_coroutines_in_a_running_event_loop_too(tmp_path):
    async def later(completions, **columns):
        await asyncio.sleep(0.001)
        return [float(text[:1] == "a") for text in completions]

    def now(completions, **columns):
        return [float(text[:1] == "a") for text in completions]

    async def notebook():
        lock_run(tmp_path / "a", reward=later)

    asyncio.run(notebook())
    lock_run(tmp_path / "b", reward=now)
    named = [{k.replace("later", "now"): v for k, v in row.items()} for row in rows(tmp_path / "a")]
    assert named == rows(tmp_path / "b")


# ---- where the rows come from


def test_gsm8k_rows_need_no_code(tmp_path):
    lines = [
        {"question": f"{a}+{b}=", "answer": f"{a} and {b} are <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}"}
        for a, b in ((12, 30), (20, 21), (35, 14), (50, 9), (11, 11), (23, 32))
    ]
    path = write_rows(tmp_path / "gsm8k.jsonl", lines)
    result = text_run(tmp_path / "a", data=str(path), reward="numeric", steps=1, overrides=["eval_fraction=0.2"])
    assert any("read from the column 'question'" in note for note in result.trainee.notes)
    for row in read_rollouts(tmp_path / "a", 1):
        said = re.findall(r"\d+", row["text"])
        expected = float(bool(said) and said[-1] == row["answer"].split()[-1])
        assert row["outcome"] == row["reward/numeric"] == expected


def test_verl_rows_and_their_scores_are_read_as_they_are(tmp_path):
    table = [
        {
            "data_source": "sums", "prompt": [{"role": "user", "content": f"{n}+11"}], "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 11)}, "extra_info": {"index": n},
        }
        for n in range(10, 16)
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "rows.parquet")
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert data_source == 'sums' and int(ground_truth) == extra_info['index'] + 11\n"
        "    right = solution_str.endswith(ground_truth)\n"
        "    return {'score': float(right), 'digits': float(len(solution_str))}\n"
    )
    more = {"model": chat_model(tmp_path), "data": str(tmp_path / "rows.parquet"), "steps": 1}
    text_run(tmp_path / "a", reward=f"{tmp_path}/mine.py:compute_score", **more)
    for row in read_rollouts(tmp_path / "a", 1):
        assert row["reward/compute_score"] == float(row["text"].endswith(row["reward_model"]["ground_truth"]))
    (step,) = rows(tmp_path / "a")
    texts = [row["text"] for row in read_rollouts(tmp_path / "a", 1)]
    assert step["reward/compute_score/digits"] == sum(map(len, texts)) / len(texts)


# ---- what is trained


def test_cut_off_completions_are_left_out_of_the_loss_and_stay_in_the_statistics(tmp_path):
    more = {"data": sums(4), "reward": "numeric", "steps": 1, "max_tokens": 17, "eval_fraction": 0.0}
    text_run(tmp_path / "a", "grpo", truncated="mask", **more)
    text_run(tmp_path / "b", "grpo", **more)
    masked, kept = (read_rollouts(tmp_path / name, 1) for name in "ab")
    assert {row["truncated"] for row in masked} == {True, False}, "the test needs both kinds"
    for one, other in zip(masked, kept, strict=True):
        assert one["token_ids"] == other["token_ids"] and one["reward"] == other["reward"]
        assert one["mask"] == [not one["truncated"]] * one["length"] and all(other["mask"])
        assert one["advantage"] == [a if not one["truncated"] else 0 for a in other["advantage"]]


def test_when_all_are_cut_off_the_step_is_skipped(tmp_path):
    text_run(tmp_path / "a", "grpo", truncated="mask", max_tokens=3, steps=2)
    for row in rows(tmp_path / "a"):
        assert row["skipped"] == 1 and row["truncated_share"] == 1 and "grad_norm" not in row


def test_masks_and_log_probabilities_are_those_of_the_sampled_tokens(tmp_path):
    """Honest tokens: what lies on disk is what was sampled, likely as the sampler said (temperature included)."""
    result = text_run(tmp_path / "a", temperature=0.7, steps=1, lr=0.0, dtype="float64")
    policy = result.trainee.run.learner().policy
    for row in read_rollouts(tmp_path / "a", 1)[:3]:
        exact = tiny_models.direct_logp(policy.network, row["prompt_ids"], row["token_ids"], 0.7)
        assert row["behaviour_logp"] == pytest.approx(exact.tolist(), abs=1e-9)
        assert len(row["mask"]) == row["length"] == len(row["token_ids"])
        assert policy.decode(row["token_ids"]) == row["text"]
        assert (row["token_ids"][-1] in policy.stop_ids) != row["truncated"]
    (step,) = rows(tmp_path / "a")
    assert step["gap_max"] < 1e-9 and step["ess"] == pytest.approx(1)


# ---- what reaches a part


@dataclass(frozen=True)
class ByDifficulty(Transform):
    """Credit by columns of the user's: a number, a text and an object."""

    def __call__(self, batch: Trajectories) -> Trajectories:
        mean, _ = group_moments(batch.reward, batch.group)
        factor = batch.columns["difficulty"].to(batch.reward)
        pairs = zip(batch.objects["answer"], batch.objects["note"], strict=True)
        named = torch.tensor([len(answer) + note["weight"] for answer, note in pairs])
        return batch.with_(advantage=spread((batch.reward - mean) * factor * named, batch.mask))


@pytest.fixture(scope="module")
def with_columns(tmp_path_factory):
    """The settings of runs whose advantage reads the user's columns, and the figures of one that was not cut."""
    path = tmp_path_factory.mktemp("columns")
    data = [{**row, "difficulty": 1 + row["pair"] / 2, "note": {"weight": row["pair"]}} for row in sums()]
    method = melior.get("rloo").but("by-difficulty", advantage=ByDifficulty())
    more = {"data": data, "reward": "numeric", "dtype": "float64", "steps": 3}
    text_run(path / "a", method, **more)
    return method, more, rows(path / "a")


@pytest.mark.parametrize("change", [{"rows_per_micro": 3}, {"rows_per_micro": 1, "gradient_checkpointing": True}])
def test_columns_survive_micro_batches_whose_size_changes_no_number(tmp_path, with_columns, change):
    method, more, expected = with_columns
    text_run(tmp_path / "a", method, **more, **change)
    for one, other in zip(rows(tmp_path / "a"), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-11)


def test_columns_survive_minibatches_and_a_resume(tmp_path, with_columns):
    method, more, _ = with_columns
    more = {**more, "overrides": ["update.minibatches=3", "update.epochs=2"]}
    text_run(tmp_path / "whole", method, **more)
    text_run(tmp_path / "cut", method, **{**more, "steps": 2})
    melior.train(resume=tmp_path / "cut", steps=3, data=more["data"], quiet=True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    assert rows(tmp_path / "whole")[0]["updates"] == 6


def test_a_column_with_a_name_of_our_own_is_kept_aside(tmp_path):
    data = [{**row, "value": 7, "text": "theirs", "greedy": None} for row in sums(4)]
    text_run(tmp_path / "a", "ppo-lm", data=data, reward="numeric", steps=1)
    row = read_rollouts(tmp_path / "a", 1)[0]
    assert row["row_value"] == 7 and row["row_text"] == "theirs" and len(row["value"]) == row["length"]


def test_a_column_that_some_rows_lack_survives_refills(tmp_path):
    data = [{**row, **({"rare": 1.0} if row["pair"] == 3 else {})} for row in sums()]
    seen = []

    def watch(completions, rare, **columns):
        seen.extend(rare)
        return [float(i % 3 == 0) if len(seen) > 12 else 0.0 for i, _ in enumerate(completions)]

    with pytest.raises(UserError, match="parameter 'rare', but the data has no such column"):
        text_run(tmp_path / "a", "dapo", data=data, reward=watch, steps=1)

    def lenient(completions, rare=None, **columns):
        return watch(completions, rare or [None] * len(completions), **columns)

    text_run(tmp_path / "b", "dapo", data=data, reward=lenient, steps=2, eval_prompts=1)
    assert set(seen) == {None, 1.0} and rows(tmp_path / "b")[0]["refills"] > 0


# ---- what it costs


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_no_step_makes_a_tensor_of_rows_by_tokens_by_vocabulary(tmp_path):
    vocabulary, tokens, many = 60_000, 24, 64
    network = tiny_models.network(vocab_size=vocabulary, dtype=torch.float32)
    network.generation_config.eos_token_id = None
    words = tiny_models.tokenizer()
    data = [{"prompt": prompt} for prompt in ("abc", "bcd", "cde", "def")]
    with Largest() as largest:
        text_run(
            tmp_path / "a", "grpo", model=(network, words), data=data, reward="length:9", prompts=4, n=many // 4,
            max_tokens=tokens, steps=1, eval_fraction=0.0, eval_prompts=4, lr=1e-3, keep_rollouts=-1,
        )  # fmt: skip
    assert rows(tmp_path / "a")[0]["tokens"] > 0.9 * many * tokens
    assert largest.elements < many * tokens * vocabulary / 1.5
    assert largest.elements <= 2**25 + vocabulary * many


# ---- what is shown beforehand


def test_a_preview_moves_nothing(tmp_path):
    text_run(tmp_path / "a", data=sums(), reward="numeric")

    class Look(melior.Callback):
        def on_step(self, run, metrics):
            language_preview(run.run, short=False)

    text_run(tmp_path / "b", data=sums(), reward="numeric", callbacks=[Look()])
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_several_rewards_of_which_none_decides_are_said(tmp_path, capsys):
    def short(completions, **columns):
        return [1.0 for _ in completions]

    lock_run(tmp_path / "a", reward=[first_letter, short], steps=0, quiet=False)
    assert "passes when the weighted sum of first_letter, short reaches 1; --set settings.outcome=first_letter" in (
        capsys.readouterr().err
    )
    lock_run(tmp_path / "b", reward=[first_letter, short], outcome="short", steps=0, quiet=False)
    assert "a completion passes" not in capsys.readouterr().err


def test_what_a_callback_samples_between_steps_changes_no_step(tmp_path):
    class Curious(melior.Callback):
        def on_eval(self, run, figures):
            run.run.sample(run.run.next_prompts(2, "test"), 2)

        def on_step(self, run, metrics):
            self.on_eval(run, metrics)

    lock_run(tmp_path / "a", callbacks=[Curious()])
    lock_run(tmp_path / "b")
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    first, second = ([r["text"] for r in read_rollouts(tmp_path / name, 4)] for name in "ab")
    assert first == second

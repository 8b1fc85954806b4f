"""Faults that users of other libraries met, as they would show in whole runs."""

from __future__ import annotations

import math

import pytest
import torch

import tiny_models
from melior.storage.rollouts import read_rollouts
from runs import lock_run, rows, sums, text_run

LETTERS = [{"prompt": prompt} for prompt in ("abc", "bcd", "cdefgh", "d", "ef", "fgabcd")]


def few_vowels(completions, **columns):
    return [float(sum(letter in "aeiou" for letter in text) < 2) for text in completions]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_dropout_left_padding_and_temperature_leave_the_first_ratio_at_one(tmp_path, kind):
    """Prompts of different lengths, a model configured with dropout, a temperature: sampler and trainer agree."""
    dropout = (
        {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1} if kind == "gpt2" else {"attention_dropout": 0.1}
    )
    network = tiny_models.network(kind, dtype=torch.float32, **dropout)
    network.train()
    text_run(
        tmp_path / "a", "grpo", model=(network, tiny_models.tokenizer()), data=LETTERS, reward=few_vowels, prompts=4,
        steps=2, temperature=0.6, dtype="float64", lr=1e-2, rows_per_micro=5,
    )  # fmt: skip
    for row in rows(tmp_path / "a"):
        assert row["gap_max"] < 1e-9 and row["kl_proximal"] == 0 and row["kl_sampler"] < 1e-12
        assert row["clip_low"] == row["clip_high"] == 0 and row["ess"] == pytest.approx(1, abs=1e-9)
    assert rows(tmp_path / "a")[0]["kl_reference"] == pytest.approx(0, abs=1e-12)


def test_later_epochs_are_measured_against_the_start_of_the_update(tmp_path):
    lock_run(tmp_path / "a", "grpo", steps=1, lr=1.0, overrides=["update.epochs=8"])
    (row,) = rows(tmp_path / "a")
    assert row["kl_proximal"] > 0 and row["clip_low"] + row["clip_high"] > 0 and row["updates"] == 8


@pytest.mark.parametrize(("prompts", "n", "micro"), [(7, 8, 5), (7, 1, 2), (3, 5, 4)])
def test_no_size_must_divide_another(tmp_path, prompts, n, micro):
    more = {"data": sums(5), "reward": "numeric", "steps": 2, "prompts": prompts, "n": n, "dtype": "float64"}
    text_run(tmp_path / "a", "grpo", rows_per_micro=micro, overrides=["update.minibatches=2"], **more)
    text_run(tmp_path / "b", "grpo", rows_per_micro=prompts * n, overrides=["update.minibatches=2"], **more)
    for one, other in zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-11) and one["rows"] == prompts * n


def test_the_end_is_trained_and_nothing_after_it_though_padding_is_the_same_token(tmp_path):
    network, words = tiny_models.network(dtype=torch.float32), tiny_models.tokenizer(pad="<eos>")
    text_run(
        tmp_path / "a", model=(network, words), data=LETTERS, reward=few_vowels, prompts=4, n=16, steps=1,
        max_tokens=12, eval_fraction=0.2,
    )  # fmt: skip
    rollouts = read_rollouts(tmp_path / "a", 1)
    ended = [row for row in rollouts if not row["truncated"]]
    assert len(ended) > 3 and any(row["truncated"] for row in rollouts)
    for row in rollouts:
        ids = row["token_ids"]
        assert tiny_models.EOS not in ids[:-1] and row["mask"] == [True] * len(ids)
        assert (ids[-1] == tiny_models.EOS) != row["truncated"] and len(ids) == row["length"]
        assert row["truncated"] == (len(ids) == 12 and ids[-1] != tiny_models.EOS)  # no end is forced upon it


def test_a_kl_coefficient_is_never_ignored(tmp_path):
    for name, weight in (("a", 0.0), ("b", 5.0)):
        lock_run(tmp_path / name, "grpo", steps=3, lr=0.5, overrides=[f"objective.reference_kl.weight={weight}"])
    one, other = rows(tmp_path / "a"), rows(tmp_path / "b")
    assert one[0]["grad_norm"] == pytest.approx(other[0]["grad_norm"])  # at the start policy and reference agree
    assert one[2]["grad_norm"] != pytest.approx(other[2]["grad_norm"], rel=1e-3)
    assert other[2]["kl_reference"] < one[2]["kl_reference"]


def test_an_adapter_reaches_the_sampler(tmp_path):
    """What is sampled after a LoRA step is as likely under the trainer as the sampler says."""
    text_run(tmp_path / "a", "grpo", lora=4, lr=3e-2, steps=3, prompts=4, n=8)
    figures = rows(tmp_path / "a")
    assert all(row["gap_max"] < 1e-4 for row in figures)
    assert figures[2]["kl_reference"] > 1e-3 and not math.isnan(figures[2]["loss"])

"""A trained table as the start of a run and as what is measured."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file

import melior
from melior.cli import run as command
from melior.errors import UserError
from melior.parts import Scorer
from melior.policies.saved_table import fill_table
from melior.policies.table import Table
from runs import LOCK, LOCK_OPTIONS, lock_run

TASK = {"task": LOCK["task"], "max_tokens": LOCK["max_tokens"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "a"
    return lock_run(path, steps=30, seed=1)


def test_a_run_begins_from_the_table_of_another(trained, tmp_path):
    again = lock_run(tmp_path / "b", steps=0, model=str(trained.model))
    assert again.summary["before"] == trained.summary["after"] != trained.summary["before"]
    weights = [load_file(path / "table.safetensors")["logits"] for path in (trained.model, again.model)]
    assert torch.equal(*weights)
    assert lock_run(tmp_path / "c", steps=2, model=str(trained.model), lr=0.05).summary["steps"] == 2


def test_a_table_is_measured_by_its_folder_whatever_that_is(trained, tmp_path):
    shutil.copytree(trained.model, tmp_path / "copied")
    whole = melior.evaluate(trained.path)
    assert whole["pass@1"] == trained.summary["after"]["pass@1"]
    assert melior.evaluate(trained.path / "model") == whole
    assert melior.evaluate(tmp_path / "copied", **TASK, seed=1, temperature=1.0) == whole


def test_an_older_checkpoint_is_measured_by_its_own_folder(trained):
    older = trained.path / "checkpoints" / "step-000000" / "model"
    assert melior.evaluate(older)["pass@1"] == trained.summary["before"]["pass@1"]


def test_a_table_of_values_comes_along(tmp_path):
    run = lock_run(tmp_path / "a", "ppo-lm", steps=3)
    again = lock_run(tmp_path / "b", "ppo-lm", steps=0, model=str(run.model))
    values = [load_file(path / "table.safetensors")["values"] for path in (run.model, again.model)]
    assert torch.equal(*values) and values[0].any()


def test_a_table_may_be_judged_by_a_trained_one(trained, tmp_path):
    grpo = melior.get("grpo")
    judged = grpo.but("judged", scorers={"reference": Scorer(weights=str(trained.model))})
    one, other = (
        lock_run(tmp_path / record.name, record, steps=2, overrides=["objective.reference_kl.weight=0.1"])
        for record in (grpo, judged)
    )
    assert other.trainee.run.scorer("reference").logits.any()
    assert not torch.equal(one.trainee.run.learner().vector(), other.trainee.run.learner().vector())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task": "lock:P=5,L=2,V=3"}, "has shape (4, 2, 4, 3), and this task, max_tokens and table index need (5, 2"),
        ({"max_tokens": 3}, "need (4, 3, 4, 3)"),
        ({"table": ("prompt",)}, "need (4, 1, 1, 3)"),
        ({"lora": 4}, "the tabular policy has no lora"),
    ],
)
def test_a_table_that_does_not_fit_says_what_it_needs(trained, tmp_path, changed, said):
    with pytest.raises(UserError) as caught:
        lock_run(tmp_path / "b", **{"model": str(trained.model), **changed})
    assert said in str(caught.value) and not (tmp_path / "b").exists()


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "table.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot read the table .*table\.safetensors"):
        fill_table(Table(1, 1, 2), tmp_path)


def test_a_run_folder_given_as_a_model_is_led_to_its_model(trained, capsys):
    assert command(["train", "rloo", *LOCK_OPTIONS, "--model", str(trained.path), "--steps", "1"]) == 2
    assert f"give {trained.path / 'model'}, the model of this run" in capsys.readouterr().err


def test_a_control_policy_is_measured_by_its_folder_within_the_run(tmp_path, capsys):
    run = melior.train("ppo", out=tmp_path / "a", steps=2, envs=2, horizon=8, eval_episodes=2, log_to="", quiet=True)
    assert melior.evaluate(run.model) == run.summary["after"] == melior.evaluate(run.path)
    shutil.copytree(run.model, tmp_path / "copied")
    assert command(["eval", str(tmp_path / "copied")]) == 2
    assert "a control policy without its environment; give the run folder" in capsys.readouterr().err

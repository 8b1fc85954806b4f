"""Whole comparisons on the smallest lock."""

from __future__ import annotations

import json
import math
import os
import signal
from typing import Any

import pytest

import melior
from melior.cli import run as command
from melior.errors import RunError, UserError
from runs import every_row, lock_run, rows

LOCK: dict[str, Any] = {
    "model": "table", "task": "lock:P=4,L=2,V=3", "prompts": 4, "n": 8, "lr": 0.1, "max_tokens": 2, "steps": 3,
    "eval_every": 1, "quiet": True,
}  # fmt: skip
LOCK_OPTIONS = [
    "--model", "table", "--task", "lock:P=4,L=2,V=3", "--prompts", "4", "-n", "8", "--lr", "0.1", "--max-tokens", "2",
    "--steps", "3", "--quiet",
]  # fmt: skip


def compare(methods, out, **more):
    return melior.compare(methods, out=out, **{**LOCK, **more})


def cell(out, label, seed):
    return out / "cells" / label / f"seed-{seed}"


def test_methods_that_do_the_same_have_the_same_figures_and_others_the_same_first_batch(tmp_path):
    grpo = melior.get("grpo")
    found = compare([grpo, grpo.but("twin"), "reinforce"], tmp_path, seeds=2)
    for seed in (0, 1):
        assert rows(cell(tmp_path, "grpo", seed)) == rows(cell(tmp_path, "twin", seed))
        first = [rows(cell(tmp_path, label, seed))[0] for label in ("grpo", "reinforce")]
        sampled = ("reward", "reward_std", "pass_rate", "mixed_share", "entropy")
        assert [first[0][name] for name in sampled] == [first[1][name] for name in sampled]
    assert rows(cell(tmp_path, "grpo", 0)) != rows(cell(tmp_path, "grpo", 1))
    assert found.row("twin")["difference"] == [0, 0, 0] and found.row("twin")["better"] == 0.5
    assert found.row("grpo")["difference"] is None
    assert any("sampling noise" in said for said in found.data["held_equal"])


def test_a_cell_is_the_run_that_train_would_have_made(tmp_path):
    compare(["rloo", "grpo"], tmp_path / "c", seeds=[3])
    alone = lock_run(tmp_path / "alone", "rloo", seed=3, steps=3, eval_every=1)
    assert rows(alone.path) == rows(cell(tmp_path / "c", "rloo", 3))
    assert melior.evaluate(cell(tmp_path / "c", "rloo", 3))["score"] == alone.summary["after"]["score"]


def test_finished_cells_are_not_repeated_and_more_methods_and_seeds_join_them(tmp_path):
    compare(["rloo", "grpo"], tmp_path, seeds=1)
    before = every_row(cell(tmp_path, "rloo", 0))  # wall-clock figures included
    found = compare(["rloo", "grpo", "tempo"], tmp_path, seeds=2)
    assert every_row(cell(tmp_path, "rloo", 0)) == before
    assert [row["runs"] for row in found.table] == [2, 2, 2]


def test_a_folder_of_other_settings_is_not_mixed_in(tmp_path):
    compare(["rloo", "grpo"], tmp_path, seeds=1)
    with pytest.raises(UserError, match=r"settings\.lr is 0\.1 there, 0\.2 here"):
        compare(["rloo", "grpo"], tmp_path, seeds=1, lr=0.2)


def test_an_interrupted_cell_goes_on_and_ends_as_if_it_had_not_been(tmp_path):
    def score(prompts, completions, trainer_state, **columns):
        if not (tmp_path / "stopped").exists() and trainer_state.global_step == 1:
            (tmp_path / "stopped").touch()
            os.kill(os.getpid(), signal.SIGINT)  # what Ctrl-C does
        return [float(text.startswith("a")) for text in completions]

    cut = compare(["rloo", "grpo"], tmp_path / "cut", seeds=1, reward=score)
    assert [row["runs"] for row in cut.table] == [0, 1]
    assert cut.crashed[0]["status"] == "interrupted"
    whole = compare(["rloo", "grpo"], tmp_path / "cut", seeds=1, reward=score)
    assert [row["runs"] for row in whole.table] == [1, 1]
    compare(["rloo", "grpo"], tmp_path / "fresh", seeds=1, reward=score)
    assert rows(cell(tmp_path / "cut", "rloo", 0)) == rows(cell(tmp_path / "fresh", "rloo", 0))


def test_when_no_run_finishes_the_first_error_is_told(tmp_path):
    with pytest.raises(RunError, match=r"no run of the comparison finished: .*no such answer"):
        compare(["rloo", "grpo"], tmp_path, seeds=1, reward=_always_raises)


def _always_raises(prompts, completions, **columns):
    raise ValueError("no such answer")


def test_a_crash_is_told_and_the_others_go_on(tmp_path):
    broken = melior.get("rloo").but("broken", pins={"n": 1, "prompts": 0})
    with pytest.raises(UserError, match="prompts"):  # what can be seen before the run is
        compare(["grpo", broken], tmp_path / "a", seeds=1)
    asks = melior.get("rloo").but("asks", scorers={"teacher": melior.method.Scorer(weights=str(tmp_path / "nowhere"))})
    found = compare(["grpo", asks], tmp_path / "b", seeds=1)
    assert [row["runs"] for row in found.table] == [1, 0]
    (crashed,) = found.crashed
    assert crashed["status"] == "crashed" and "nowhere" in crashed["error"]
    assert "nowhere" in str(found)


def test_equal_step_norm_gives_every_step_the_first_methods_length(tmp_path):
    found = compare(["rloo", "tempo"], tmp_path, seeds=2, equal_step_norm=True)
    for seed in (0, 1):
        first, second = (every_row(cell(tmp_path, label, seed)) for label in ("rloo", "tempo"))
        assert [row["step_norm"] for row in second] == [row["step_norm"] for row in first]
        assert [row["update_norm"] for row in first] == pytest.approx([row["step_norm"] for row in first], rel=1e-4)
    assert found.row("tempo")["step_norm"] == pytest.approx(found.row("rloo")["step_norm"])
    assert not any("as far a step" in said for said in found.data["not_equal"])
    again = compare(["rloo", "tempo"], tmp_path, seeds=2, equal_step_norm=True)
    assert again.table == found.table


def test_tuning_has_seeds_of_its_own_and_takes_the_best_or_the_first_of_equals(tmp_path):
    found = compare(["rloo", "grpo"], tmp_path, seeds=1, steps=6, tune={"settings.lr": ["1e-9", "0.3"]}, tune_seeds=1)
    tuning = found.data["tuning"]["rloo"]
    assert [tried["choice"] for tried in tuning["tried"]] == [["settings.lr=1e-9"], ["settings.lr=0.3"]]
    means = [tried["mean"] for tried in tuning["tried"]]
    assert tuning["chosen"] == tuning["tried"][means.index(max(means))]["choice"] == found.row("rloo")["chosen"]
    assert {cell["seed"] for cell in found.data["cells"]} == {0}
    assert (tmp_path / "tuning" / "rloo" / "settings.lr=0.3" / "seed-1000").is_dir()
    same = compare(["rloo", "grpo"], tmp_path / "tie", seeds=1, tune={"lr": ["1e-9", "2e-9"]}, tune_seeds=1)
    assert same.row("grpo")["chosen"] == ["lr=1e-9"]
    assert "tuned to lr=1e-9" in str(same)


def test_a_budget_of_tokens_ends_every_run_and_areas_are_over_tokens(tmp_path):
    found = compare(["grpo", "two-grpo"], tmp_path, seeds=1, steps=None, budget=("tokens", 130))
    spent = {row["label"]: (row["steps"], row["tokens"]) for row in found.table}
    assert spent == {"grpo": (3, 192), "two-grpo": (9, 144)}  # 4 prompts of 2 tokens: 64 and 16 a step
    assert found.data["axis"] == "tokens" and found.data["end"] == 130


def test_a_method_that_pins_its_group_takes_as_many_rows_a_step(tmp_path):
    found = compare(["grpo", "two-grpo"], tmp_path, seeds=1)
    assert [row["rows"] for row in found.table] == [32, 32]
    assert any("takes 16 prompts a step where others take 4" in note for note in found.data["notes"])


def test_runs_made_before_can_be_named_instead_of_methods(tmp_path):
    for seed in (0, 1):
        lock_run(tmp_path / "old" / f"{seed}", "rloo", seed=seed, steps=3)
    lock_run(tmp_path / "single", "tempo", steps=3)
    found = compare([str(tmp_path / "old"), "grpo", tmp_path / "single"], tmp_path / "c", seeds=2, eval_every=0)
    assert [(row["label"], row["runs"]) for row in found.table] == [("old", 2), ("grpo", 2), ("single", 1)]
    apart = compare([tmp_path / "old" / "0", tmp_path / "old" / "1", tmp_path / "single"], tmp_path / "e")
    assert [(row["label"], row["runs"]) for row in apart.table] == [("rloo", 2), ("single", 1)]
    with pytest.raises(UserError, match="there twice"):
        compare([tmp_path / "single", tmp_path / "single"], tmp_path / "f")
    with pytest.raises(UserError, match="holds no run that can be read"):
        (tmp_path / "empty").mkdir()
        compare([tmp_path / "empty", "grpo"], tmp_path / "d")


def test_one_seed_has_no_intervals_and_says_so(tmp_path):
    found = compare(["rloo", "grpo"], tmp_path, seeds=1)
    assert found.row("rloo")["final"][1] is None and found.row("grpo")["p"] is None
    assert any("one seed" in said for said in found.data["cautions"])


def test_control_and_actor_critic_are_compared_alike(tmp_path):
    pytest.importorskip("gymnasium")
    small = {"steps": 2, "seeds": 1, "quiet": True, "eval_every": 1, "eval_episodes": 2}
    ppo = melior.get("ppo")
    control = melior.compare([ppo, ppo.but("again")], env="CartPole-v1", out=tmp_path / "a", **small)
    assert control.data["sampled"] == "env steps" and control.row("again")["difference"][0] == 0
    td3 = melior.get("td3")
    critic = melior.compare([td3, td3.but("again")], horizon=5, out=tmp_path / "b", **small)
    assert critic.row("td3")["runs"] == 1 and critic.row("again")["difference"][0] == 0


def test_the_command_writes_json_goes_on_by_itself_and_by_resume(tmp_path, capsys):
    out = str(tmp_path / "c")
    words = ["compare", "rloo", "grpo", *LOCK_OPTIONS, "--seeds", "2", "--jobs", "2", "--out", out]
    assert command(words) == 0
    assert capsys.readouterr().out == ""
    before = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["table"] == before["table"]
    assert command(["compare", "--resume", out]) == 0
    told = capsys.readouterr().out
    assert "P(> rloo)" in told and "2 seeds are few" in told and "held equal" in told
    assert command(["compare", "grpo", "rlo", "--seeds", "1"]) == 2
    assert "did you mean 'rloo'" in capsys.readouterr().err


def test_the_shape_of_the_file_is_what_readers_count_on(tmp_path):
    data = compare(["rloo", "grpo"], tmp_path, seeds=2).data
    (first, *_) = data["cells"]
    assert [point[0] for point in first["curve"]] == [0, 1, 2, 3] and first["final"] == first["curve"][-1][3]
    assert data["axis"] == "step" and data["end"] == 3
    assert [pair["left"] + pair["right"] for pair in data["pairs"]] == ["rloogrpo"]
    assert math.isfinite(first["step_norm"]) and first["tokens"] == 192

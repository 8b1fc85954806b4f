"""TRL's state, completions and events are read as a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from foreign_logs import events, trl_completions, trl_entry, trl_evaluation, trl_state
from melior.inspect.logs import read
from melior.inspect.logs.held_out import held_out_curve
from melior.inspect.logs.trl import group_by_turn, text_of


def entries(steps):
    """Steps whose reward is the first function plus a fifth of the second."""
    return [trl_entry(s, 0.1 * s + 0.2 * 0.05 * s**2, {"correct": 0.1 * s, "brief": 0.05 * s**2}) for s in steps]


def completions(correct, brief, prompts=("2+2=", "3+3=")):
    """Two completions of each prompt; the rewards are given in the same order."""
    asked = [prompt for prompt in prompts for _ in range(2)]
    texts = [f"answer {place}" for place in range(len(asked))]
    pairs = zip(asked, texts, correct, brief, strict=True)
    return [
        {"prompt": p, "completion": t, "correct": c, "brief": b, "golden": "4", "advantage": c - 0.5}
        for p, t, c, b in pairs
    ]


def test_the_figures_of_a_state_have_our_names(tmp_path):
    trl_state(tmp_path / "checkpoint-2" / "trainer_state.json", entries([1, 2]))
    log = read(tmp_path)
    assert log.trainer == "trl" and log.steps.tolist() == [1, 2] and log.settings["steps"] == 8
    expected = {
        "loss": 0.01, "reward_std": 0.4, "mixed_share": 0.75, "length_mean": 40, "length_max": 64,
        "truncated_share": 0.125, "clip_low": 0.01, "clip_high": 0.02, "clip_share": 0.03, "grad_norm": 1.5,
        "lr": 1e-5, "step_seconds": 2.5,
    }  # fmt: skip
    for name, value in expected.items():
        assert log.metric(name).tolist() == [value, value], name
    np.testing.assert_allclose(log.metric("reward/correct"), [0.1, 0.2])
    np.testing.assert_allclose(log.metric("kl_reference"), [0.001, 0.002])
    np.testing.assert_allclose(log.metric("entropy"), [0.49, 0.48])


def test_what_has_no_counterpart_is_named_and_bookkeeping_is_not(tmp_path):
    log = read(trl_state(tmp_path / "trainer_state.json", entries([1])))
    assert {"num_tokens", "clip_ratio/high_max", "completions/... (4 figures)"} <= set(log.unread)
    assert not {"epoch", "step", "reward"} & set(log.unread)


def test_the_mismatch_of_a_vllm_run_is_the_gap(tmp_path):
    row = entries([1])[0] | {
        "sampling/sampling_logp_difference/mean": 0.02,
        "sampling/sampling_logp_difference/max": 1.5,
        "sampling/importance_sampling_ratio/min": 0.1,
    }
    log = read(trl_state(tmp_path / "trainer_state.json", [row]))
    assert log.metric("gap_mean") == [0.02] and log.metric("gap_max") == [1.5]
    assert "sampling/importance_sampling_ratio/min" in log.unread


def test_the_state_that_got_furthest_counts(tmp_path):
    trl_state(tmp_path / "checkpoint-9" / "trainer_state.json", entries(range(1, 10)))
    trl_state(tmp_path / "checkpoint-10" / "trainer_state.json", entries(range(1, 11)))
    assert read(tmp_path).steps.tolist() == list(range(1, 11))
    trl_state(tmp_path / "trainer_state.json", entries(range(1, 13)))
    assert read(tmp_path).steps[-1] == 12


def test_a_half_written_state_is_named_and_the_one_before_it_is_read(tmp_path):
    trl_state(tmp_path / "checkpoint-2" / "trainer_state.json", entries([1, 2]))
    whole = trl_state(tmp_path / "checkpoint-4" / "trainer_state.json", entries([1, 2, 3, 4]))
    whole.write_text(whole.read_text()[:-300])
    log = read(tmp_path)
    assert log.steps.tolist() == [1, 2]
    assert any("checkpoint-4/trainer_state.json" in entry for entry in log.unread)


def test_entries_without_a_step_and_rewards_that_applied_to_nothing_do_no_harm(tmp_path):
    undefined = entries([1])[0] | {"rewards/brief/mean": None, "grad_norm": float("nan")}
    log = read(trl_state(tmp_path / "trainer_state.json", [undefined, {"loss": 1.0}, *entries([2])]))
    assert log.steps.tolist() == [1, 2]
    assert np.isnan(log.metric("grad_norm")[0]) and np.isnan(log.metric("reward/brief")[0])
    assert any("1 entries of log_history that have no step" in entry for entry in log.unread)


def test_evaluations_are_held_out_figures(tmp_path):
    history = [*entries([1, 2]), trl_evaluation(2, 0.3), *entries([3, 4]), trl_evaluation(4, 0.6)]
    log = read(trl_state(tmp_path / "trainer_state.json", history))
    curve = held_out_curve(log)
    assert curve.name == "eval/reward" and curve.steps.tolist() == [2, 4] and curve.scores.tolist() == [0.3, 0.6]
    assert np.nanmax(log.metric("eval/truncated_share")) == 0.5 and "eval_runtime" in log.unread
    assert log.metric("reward")[1] == pytest.approx(0.24)  # the evaluation did not touch the training's


def test_completions_have_groups_components_and_weighted_rewards(tmp_path):
    correct, brief = [1.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.0, None]
    for step in range(1, 5):
        right = [c * step for c in correct]
        trl_completions(tmp_path, step, completions(right, brief))
    history = [
        trl_entry(s, 0.75 * s + 0.2 * 0.125, {"correct": 0.75 * s, "brief": 0.5 / 3}) for s in range(1, 5)
    ]  # fmt: skip
    trl_state(tmp_path / "checkpoint-4" / "trainer_state.json", history)
    log = read(tmp_path)
    assert log.rollouts.steps == (1, 2, 3, 4) and (log.settings["n"], log.settings["prompts"]) == (2, 2)
    rows = log.rollouts.rows(2)
    assert [row.group for row in rows] == [0, 0, 1, 1]
    assert rows[0].components == {"correct": 2.0, "brief": 0.5} and rows[3].components == {"correct": 2.0}
    # A reward that is None for a completion is left out of its own mean and counts as nothing in the sum.
    assert [row.reward for row in rows] == pytest.approx([2.1, 0.0, 2.0, 2.0], abs=1e-3)
    assert (rows[0].prompt, rows[0].text, rows[0].advantage) == ("2+2=", "answer 0", 1.5)
    assert rows[0].length is rows[0].truncated is rows[0].outcome is rows[0].version is None


def test_weights_that_the_log_does_not_tell_leave_the_reward_open(tmp_path):
    trl_completions(tmp_path, 1, completions([1.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.0, 1.0]))
    trl_state(tmp_path / "trainer_state.json", [trl_entry(1, 0.5, {"correct": 0.75, "brief": 0.375})])
    assert [row.reward for row in read(tmp_path).rollouts.rows(1)] == [None] * 4


def test_equal_weights_are_seen_in_one_step(tmp_path):
    trl_completions(tmp_path, 1, completions([1.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.0, 1.0]))
    trl_state(tmp_path / "trainer_state.json", [trl_entry(1, 1.125, {"correct": 0.75, "brief": 0.375})])
    assert [row.reward for row in read(tmp_path).rollouts.rows(1)] == [1.5, 0.0, 1.0, 2.0]


def test_completions_that_an_evaluation_wrote_over_are_left_out(tmp_path):
    for step in (1, 2):
        trl_completions(tmp_path, step, completions([1.0, 0.0, 1.0, 1.0], [0.0] * 4))
    trl_state(tmp_path / "trainer_state.json", [*entries([1, 2]), trl_evaluation(2, 0.5)])
    log = read(tmp_path)
    assert log.rollouts.steps == (1,) and "completions of steps 2 (an evaluation wrote over them)" in log.unread


def test_a_half_written_parquet_is_named(tmp_path):
    for step in (1, 2):
        file = trl_completions(tmp_path, step, completions([1.0, 0.0, 1.0, 1.0], [0.0] * 4))
    file.write_bytes(file.read_bytes()[:-20])
    trl_state(tmp_path / "trainer_state.json", entries([1, 2]))
    log = read(tmp_path)
    assert log.rollouts.steps == (1,) and "completions_00002.parquet (not whole, or no Parquet)" in log.unread


def test_completions_alone_give_the_figures_that_they_can(tmp_path):
    trl_completions(tmp_path, 3, completions([1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]))
    for path in (tmp_path, tmp_path / "completions", tmp_path / "completions" / "completions_00003.parquet"):
        log = read(path)
        assert log.steps.tolist() == [3] and log.metric("reward/correct") == [0.75]
        assert log.metric("mixed_share") == [0.5]
        # The extra column is text; `advantage` and `step` are no rewards.
        assert set(log.rollouts.rows(3)[0].components) == {"correct", "brief"}


def test_events_reach_beyond_the_last_checkpoint_and_hold_the_settings(tmp_path):
    trl_state(tmp_path / "checkpoint-2" / "trainer_state.json", entries([1, 2]))
    logged = [(s, {f"train/{k}": v for k, v in entries([s])[0].items() if k != "step"}) for s in (1, 2, 3)]
    logged.append((3, {"eval/reward": 0.5}))
    given = {"num_generations": 8, "max_completion_length": 64, "learning_rate": 1e-5, "generation_batch_size": 32,
             "max_steps": -1, "loss_type": "dapo", "temperature": 1.0, "seed": 0}  # fmt: skip
    events(tmp_path / "runs" / "Dec01", logged, {"args": json.dumps(given)})
    for path in (tmp_path, tmp_path / "runs"):
        log = read(path)
        assert log.trainer == "trl" and log.steps.tolist() == [1, 2, 3]
        np.testing.assert_allclose(log.metric("kl_reference"), [0.001, 0.002, 0.003], rtol=1e-6)
        assert log.metric("eval/reward")[2] == 0.5
        wanted = {"n": 8, "prompts": 4, "max_tokens": 64, "lr": 1e-5, "method": "dapo", "temperature": 1.0, "seed": 0}
        assert {name: log.settings[name] for name in wanted} == wanted
    assert read(tmp_path).settings["steps"] == 8


def test_chat_messages_are_read_as_text():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "2+2"}]}]
    assert text_of(chat) == "Be brief.\n2+2"
    assert text_of([{"role": "assistant", "content": "4"}]) == "4"
    assert text_of(None) is None


def test_a_prompt_drawn_twice_in_a_row_makes_two_groups():
    assert group_by_turn(["a", "a", "b", "b", "b", "b"]) == [0, 0, 1, 1, 2, 2]
    assert group_by_turn(["a", "a", "a", "b", "b"]) == [0, 0, 0, 1, 1]
    assert group_by_turn([]) == []

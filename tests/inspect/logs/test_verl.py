"""verl's metrics, rollout dumps, events and configuration are read as a run."""

from __future__ import annotations

import numpy as np
import pytest

from foreign_logs import events, verl_dump, verl_figures, verl_metrics, verl_validation
from melior.errors import UserError
from melior.inspect.logs import read
from melior.inspect.logs.held_out import held_out_curve

ROWS = [
    {"input": "2+2=", "output": "4", "score": 1.0, "acc": True, "format": 1.0},
    {"input": "3+3=", "output": "7", "score": 0.0, "acc": False, "format": 1.0},
    {"input": "2+2=", "output": "5", "score": 0.0, "acc": False, "format": 0.0},
    {"input": "3+3=", "output": "8", "score": 0.0, "acc": False, "format": 1.0},
]


def test_the_figures_of_the_file_logger_have_our_names(tmp_path):
    file = verl_metrics(tmp_path / "project" / "name.jsonl", [(s, verl_figures(s)) for s in (1, 2)])
    for path in (file, tmp_path / "project", tmp_path):
        log = read(path)
        assert log.trainer == "verl" and log.steps.tolist() == [1, 2]
    expected = {
        "reward": 0.45, "reward/score": 0.5, "value_loss": 0.2, "explained_variance": 0.3, "entropy": 0.4,
        "loss": 0.01, "kl_reference": 0.002, "kl_proximal": -0.0001, "clip_share": 0.04, "grad_norm": 0.8, "lr": 1e-6,
        "length_mean": 120, "length_max": 256, "truncated_share": 0.25, "kl_sampler": 0.0012, "ess": 0.8,
        "probability_gap_mean": 0.004, "probability_gap_max": 0.2, "step_seconds": 30,
    }  # fmt: skip
    for name, value in expected.items():
        assert log.metric(name).tolist() == pytest.approx([value, value]), name
    assert {"timing_s/... (4 figures)", "perf/throughput", "actor/kl_coef", "rollout_corr/kl"} <= set(log.unread)
    assert "actor/pg_clipfrac_lower" not in log.unread and "training/global_step" not in log.unread


def test_a_measured_effective_sample_size_goes_before_one_that_is_derived(tmp_path):
    row = verl_figures(1, **{"rollout_corr/rollout_is_eff_sample_size": 0.7})
    assert read(verl_metrics(tmp_path / "m.jsonl", [(1, row)])).metric("ess") == [0.7]


def test_the_lag_of_the_oldest_weights_is_that_of_an_asynchronous_run(tmp_path):
    lag = {f"training/off_policy/trajectory_staleness_worst/{what}": v for what, v in [("mean", 1.5), ("max", 6)]}
    assert read(verl_metrics(tmp_path / "m.jsonl", [(1, verl_figures(1) | lag)])).metric("version_lag") == [6]


def test_damaged_lines_are_named_and_the_others_read(tmp_path):
    file = verl_metrics(tmp_path / "m.jsonl", [(s, verl_figures(s)) for s in (1, 2, 3)])
    first, second, third = file.read_text().splitlines(keepends=True)
    file.write_text(first + "not json\n" + second + third[:50])
    log = read(file)
    assert log.steps.tolist() == [1, 2]
    assert {f"m.jsonl line {n} (not JSON, or not whole)" for n in (2, 4)} <= set(log.unread)


def test_undefined_numbers_are_missing_ones(tmp_path):
    log = read(verl_metrics(tmp_path / "m.jsonl", [(1, verl_figures(1)), (2, {"actor/grad_norm": float("nan")})]))
    assert log.metric("grad_norm")[0] == 0.8 and np.isnan(log.metric("grad_norm")[1])


def test_validations_are_held_out_figures(tmp_path):
    rows = [(0, verl_validation(0.2)), (1, verl_figures(1)), (2, verl_figures(2) | verl_validation(0.4))]
    log = read(verl_metrics(tmp_path / "m.jsonl", rows))
    assert log.steps.tolist() == [0, 1, 2]
    curve = held_out_curve(log)
    assert curve.name == "eval/pass@1" and curve.steps.tolist() == [0, 2] and curve.scores.tolist() == [0.2, 0.4]
    for name, value in {"eval/mean@4": 0.4, "eval/pass@4": 0.6, "eval/pass@2": 0.5, "eval/reward/format": 0.9}.items():
        assert log.metric(name)[2] == pytest.approx(value), name
    assert any("val-aux" in entry for entry in log.unread)


def test_several_validation_sets_are_averaged_and_kept_apart(tmp_path):
    row = verl_figures(1) | verl_validation(0.2, "openai/gsm8k") | verl_validation(0.6, "math")
    log = read(verl_metrics(tmp_path / "m.jsonl", [(1, row)]))
    assert log.metric("eval/pass@1") == pytest.approx([0.4])
    assert log.metric("eval/openai/gsm8k/pass@1") == [0.2] and log.metric("eval/math/pass@1") == [0.6]


def test_without_an_accuracy_the_reward_is_the_held_out_score(tmp_path):
    row = {"val-core/gsm/reward/mean@1": 0.7, "val-aux/gsm/score/mean@1": 0.7}
    log = read(verl_metrics(tmp_path / "m.jsonl", [(5, row)]))
    assert held_out_curve(log).name == "eval/mean@1" and log.metric("eval/reward/score") == [0.7]


def test_dumped_rollouts_are_completions_in_groups(tmp_path):
    for step in (9, 10):
        verl_dump(tmp_path / "rollouts", step, ROWS)
    verl_metrics(tmp_path / "m.jsonl", [(s, verl_figures(s)) for s in (9, 10)])
    log = read(tmp_path)
    assert log.rollouts.steps == (9, 10)
    first, *_ = rows = log.rollouts.rows(10)
    assert [row.group for row in rows] == [0, 1, 0, 1]  # batches are reordered: prompts need not stand together
    assert (first.prompt, first.text, first.reward, first.outcome) == ("2+2=", "4", 1.0, 1.0)
    assert first.components == {"format": 1.0, "score": 1.0, "acc": 1.0}
    assert first.advantage is first.length is first.version is None
    # verl logs neither of these two.
    assert log.metric("mixed_share").tolist() == [0.5, 0.5] and log.metric("pass_rate").tolist() == [0.25, 0.25]
    assert log.metric("reward").tolist() == [0.45, 0.45]


def test_dumps_alone_give_the_figures_that_they_can(tmp_path):
    verl_dump(tmp_path, 1, ROWS)
    for path in (tmp_path, tmp_path / "1.jsonl"):
        log = read(path)
        assert log.trainer == "verl" and log.steps.tolist() == [1]
        assert log.metric("reward") == [0.25] and log.metric("reward/format") == [0.75]


def test_uids_tell_groups_of_equal_prompts_apart(tmp_path):
    rows = [{"input": "2+2=", "output": "4", "score": 1.0, "uid": uid} for uid in ("a_0_0", "b_0_0", "a_1_0")]
    verl_dump(tmp_path, 1, rows)
    assert [row.group for row in read(tmp_path).rollouts.rows(1)] == [0, 1, 0]


def test_numpy_s_numbers_that_were_written_as_text_are_numbers(tmp_path):
    said = [("True", "1.0"), ("False", "0.0"), ("1.0", "0.5"), ("none", "")]
    verl_dump(tmp_path, 1, [{"input": "2+2=", "output": "4", "score": s, "acc": a, "pred": "42"} for a, s in said])
    rows = read(tmp_path).rollouts.rows(1)
    assert [row.outcome for row in rows] == [1.0, 0.0, 1.0, None] and [r.reward for r in rows] == [1.0, 0.0, 0.5, None]
    assert set(rows[0].components) == {"score", "acc"}  # an answer that happens to be a number is text


def test_a_dump_that_is_being_written_gives_its_whole_lines(tmp_path):
    file = verl_dump(tmp_path, 1, ROWS)
    file.write_text(file.read_text()[:-30])
    log = read(tmp_path)
    assert len(log.rollouts.rows(1)) == 3 and "1.jsonl line 4 (not JSON, or not whole)" in log.unread


def test_dumps_of_validations_are_no_rollouts(tmp_path):
    verl_dump(tmp_path / "train", 1, ROWS)
    verl_dump(tmp_path / "val", 0, ROWS)
    log = read(tmp_path)
    assert log.rollouts.steps == (1,) and "val (completions of validations)" in log.unread


@pytest.mark.parametrize("what", ["metrics", "rollouts", "TensorBoard events"])
def test_several_runs_are_refused_by_name(tmp_path, what):
    verl_metrics(tmp_path / "m.jsonl", [(1, verl_figures(1))])
    for run in ("one", "two"):
        if what == "metrics":
            verl_metrics(tmp_path / run / "m.jsonl", [(1, verl_figures(1))])
        elif what == "rollouts":
            verl_dump(tmp_path / run, 1, ROWS)
        else:
            events(tmp_path / "tensorboard_log" / run, [(1, verl_figures(1))])
    with pytest.raises(UserError, match=f"{what} of [23] runs.*one"):
        read(tmp_path)


def test_events_are_read_without_and_beside_other_files(tmp_path):
    folder = tmp_path / "tensorboard_log" / "project" / "name"
    events(folder, [(s, verl_figures(s)) for s in (1, 2)])
    for path in (folder, tmp_path):
        log = read(path)
        assert log.trainer == "verl" and log.steps.tolist() == [1, 2]
        np.testing.assert_allclose(log.metric("clip_share"), 0.04, rtol=1e-6)
    verl_dump(tmp_path / "rollouts", 2, ROWS)
    log = read(tmp_path)
    assert log.rollouts.steps == (2,) and log.metric("entropy") == pytest.approx([0.4, 0.4])


def test_the_configuration_of_hydra_gives_the_settings(tmp_path):
    verl_metrics(tmp_path / "m.jsonl", [(1, verl_figures(1))])
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "data:\n  train_batch_size: 256\n  max_response_length: 1024\n"
        "actor_rollout_ref:\n  actor:\n    optim:\n      lr: 1e-06\n  rollout:\n    n: 8\n    temperature: 1.0\n"
        "algorithm:\n  adv_estimator: grpo\n"
        "trainer:\n  total_training_steps: ${oc.select:nothing}\n"
    )
    settings = {"prompts": 256, "max_tokens": 1024, "lr": 1e-6, "n": 8, "temperature": 1.0, "method": "grpo"}
    assert read(tmp_path).settings == settings
    (tmp_path / ".hydra" / "config.yaml").write_text("data: [\n")
    log = read(tmp_path)
    assert log.settings == {} and any("config.yaml" in entry for entry in log.unread)

"""Exports of Weights & Biases are read as a run, whoever logged to it."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from foreign_logs import trl_entry, verl_figures, wandb_chart
from melior.errors import UserError
from melior.inspect.logs import read


def history(steps=(1, 2, 3)):
    """What `run.history()` returns for a run of TRL: wandb's own count differs from the trainer's."""
    rows = []
    for place, step in enumerate(steps):
        entry = trl_entry(step, 0.1 * step, {"correct": 0.1 * step})
        figures = {f"train/{name}": value for name, value in entry.items() if name != "step"}
        rows.append({"_step": 10 * place, "_timestamp": 1.7e9, "_runtime": 5.0, "train/global_step": step, **figures})
    return rows


def write_csv(file, rows):
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, ["", *dict.fromkeys(name for row in rows for name in row)])
        writer.writeheader()
        writer.writerows({"": place, **row} for place, row in enumerate(rows))
    return file


def write(file, rows):
    """A history in each of the formats in which it is kept."""
    if file.suffix == ".csv":
        return write_csv(file, rows)
    if file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.name == "frame.json":
        columns = {name: {str(place): row.get(name) for place, row in enumerate(rows)} for name in rows[0]}
        file.write_text(json.dumps(columns))
    else:
        file.write_text(json.dumps(rows))
    return file


@pytest.mark.parametrize("name", ["h.csv", "h.json", "frame.json", "h.jsonl", "h.parquet"])
def test_a_history_is_read_in_every_format(tmp_path, name):
    file = write(tmp_path / name, history())
    for path in (file, tmp_path):
        log = read(path)
        assert log.trainer == "wandb" and log.steps.tolist() == [1, 2, 3]  # the trainer's count, not wandb's
        np.testing.assert_allclose(log.metric("reward"), [0.1, 0.2, 0.3])
        np.testing.assert_allclose(log.metric("reward/correct"), [0.1, 0.2, 0.3])
        assert log.metric("mixed_share").tolist() == [0.75] * 3
        assert "train/clip_ratio/high_max" in log.unread and "train/epoch" not in log.unread


def test_a_history_of_verl_and_one_of_melior_are_read_by_their_names(tmp_path):
    rows = [{"_step": s, "_timestamp": 1.0, **verl_figures(s)} for s in (1, 2)]
    log = read(write(tmp_path / "verl.json", rows))
    assert log.steps.tolist() == [1, 2] and log.metric("clip_share").tolist() == [0.04] * 2
    rows = [{"_step": 4, "_timestamp": 1.0, "reward": 0.5, "pass_rate": 0.25, "eval/pass@1": 0.3, "mine": 1.0}]
    log = read(write(tmp_path / "melior.json", rows))
    assert log.metric("pass_rate") == [0.25] and log.metric("eval/pass@1") == [0.3] and log.unread == ("mine",)


def test_undefined_and_missing_cells_are_missing_figures(tmp_path):
    rows = [row | {"train/kl": value} for row, value in zip(history(), ["NaN", None, 0.5], strict=True)]
    log = read(write_csv(tmp_path / "h.csv", rows))
    assert np.isnan(log.metric("kl_reference")[:2]).all() and log.metric("kl_reference")[2] == 0.5


def test_rows_without_a_step_and_damaged_lines_are_named(tmp_path):
    file = write(tmp_path / "h.jsonl", [*history(), {"_step": 31, "completions": {"_type": "table-file"}}])
    file.write_text(file.read_text() + '{"_step": 32, "train/loss": 0.5}\n{"_step": 33, "tra')
    log = read(file)
    assert log.steps.tolist() == [1, 2, 3]
    assert "h.jsonl: 1 rows without train/global_step" in log.unread  # the table's row has nothing to lose
    assert any("h.jsonl line 6" in entry for entry in log.unread)


def test_charts_of_one_run_are_put_together(tmp_path):
    wandb_chart(tmp_path / "a.csv", "calm - sun-1", "train/reward", [(1, 0.1), (2, 0.2), (4, math.nan)])
    wandb_chart(tmp_path / "b.csv", "calm - sun-1", "train/entropy", [(1, 0.5), (4, 0.4)])
    log = read(tmp_path)
    assert log.steps.tolist() == [1, 2, 4]
    assert log.metric("reward")[:2].tolist() == [0.1, 0.2] and np.isnan(log.metric("reward")[2])
    assert log.metric("entropy")[[0, 2]].tolist() == [0.5, 0.4]
    assert log.unread == ()


def test_charts_of_several_runs_or_over_different_axes_are_refused(tmp_path):
    wandb_chart(tmp_path / "a.csv", "calm-sun-1", "train/reward", [(1, 0.1)])
    wandb_chart(tmp_path / "b.csv", "Group: wild", "train/entropy", [(1, 0.5)])
    with pytest.raises(UserError, match=r"2 runs \(Group: wild, calm-sun-1\)"):
        read(tmp_path)
    wandb_chart(tmp_path / "b.csv", "calm-sun-1", "train/entropy", [(1, 0.5)], axis="train/global_step")
    with pytest.raises(UserError, match="over Step and over train/global_step"):
        read(tmp_path)
    wandb_chart(tmp_path / "b.csv", "calm-sun-1", "train/entropy", [(1, 0.5)], axis="Relative Time (Process)")
    log = read(tmp_path)
    assert log.metric("reward") == [0.1]
    assert "b.csv (over 'Relative Time (Process)', which is no step)" in log.unread


def test_a_run_folder_of_this_machine_gives_its_last_step_and_settings(tmp_path):
    files = tmp_path / "run-20261201-abc" / "files"
    files.mkdir(parents=True)
    summary = history()[-1] | {"_wandb": {"runtime": 5}, "completions": {"_type": "table-file", "nrows": 2}}
    (files / "wandb-summary.json").write_text(json.dumps(summary))
    (files / "wandb-metadata.json").write_text('{"host": "here"}')
    (files / "config.yaml").write_text(
        "_wandb:\n  value:\n    cli_version: 0.31.0\nnum_generations:\n  desc: null\n  value: 8\n"
        "learning_rate:\n  value: 1e-05\nmax_completion_length:\n  value: 64\n"
    )
    (files.parent / "run-abc.wandb").write_bytes(b":W&B")
    log = read(files.parent)
    assert "run-abc.wandb (a format of wandb's own)" in log.unread
    assert log.steps.tolist() == [3] and log.metric("reward") == pytest.approx([0.3])
    assert log.settings == {"n": 8, "lr": 1e-5, "max_tokens": 64}


def test_a_run_folder_without_a_summary_says_what_to_export(tmp_path):
    (tmp_path / "run-abc.wandb").write_bytes(b":W&B")
    with pytest.raises(UserError, match="export the history"):
        read(tmp_path)


def test_tables_of_other_kinds_are_no_run(tmp_path):
    write_csv(tmp_path / "prices.csv", [{"step": 1, "price": 2.0}])
    (tmp_path / "notes.json").write_text('{"a": [1, 2]}')
    (tmp_path / "broken.json").write_text('{"a": ')
    with pytest.raises(UserError, match="holds no run that can be read"):
        read(tmp_path)

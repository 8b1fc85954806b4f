"""A run folder is never shared, never half-written, and goes on from where its checkpoint is."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from melior.errors import RunError, UserError
from melior.storage.folder import RunFolder, default_path, refuse_occupied
from melior.storage.metrics import read_metrics
from melior.storage.writing import json_text, write_atomic


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "runs" / "x", "method: grpo\n", "abc") as folder:
        yield folder


def names(path):
    return sorted(inner.name for inner in path.iterdir())


def test_a_new_folder_holds_configuration_and_fingerprint(tmp_path):
    with RunFolder.create(tmp_path / "a" / "b", "steps: 3\n", "f1") as folder:
        assert folder.config == "steps: 3\n" and folder.fingerprint == "f1"
        assert folder.read_metrics() == [] and folder.read_summary() is None
        assert names(folder.path) == ["config.yaml", "fingerprint.txt", "lock"]
        assert f"process {os.getpid()} on " in (folder.path / "lock").read_text()
    assert names(folder.path) == ["config.yaml", "fingerprint.txt"]
    with RunFolder.open(folder.path) as again:
        assert again.config == "steps: 3\n"


def test_a_second_run_in_one_folder_is_refused_in_one_sentence(folder):
    for again in (RunFolder.open, refuse_occupied, lambda path: RunFolder.create(path, "", "")):
        with pytest.raises(UserError, match=rf"^another run is using .*runs/x \(process {os.getpid()} on .*--out$"):
            again(folder.path)
    assert RunFolder.view(folder.path).fingerprint == "abc"
    folder.close()
    folder.close()
    RunFolder.open(folder.path).close()


def test_an_occupied_folder_is_left_alone_and_the_way_out_is_named(tmp_path, folder):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("...")
    with pytest.raises(UserError, match=r"thesis is not empty; give another --out, or --resume"):
        RunFolder.create(tmp_path / "thesis", "", "")
    assert names(tmp_path / "thesis") == ["chapter.tex"]
    with pytest.raises(UserError, match=r"chapter\.tex is a file, not a folder"):
        RunFolder.create(tmp_path / "thesis" / "chapter.tex", "", "")
    folder.close()
    with pytest.raises(UserError, match=rf"already holds a run; go on with it by --resume {folder.path}, or give"):
        RunFolder.create(folder.path, "", "")
    assert names(folder.path) == ["config.yaml", "fingerprint.txt"]


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "lock").write_text("left by a killed process")
    RunFolder.create(tmp_path, "", "").close()
    assert names(tmp_path) == ["config.yaml", "fingerprint.txt"]


def test_opening_what_is_no_run_names_the_runs_there_are(tmp_path, folder):
    runs = folder.path.parent
    with pytest.raises(UserError, match=r"there is no run folder .*runs/y; the newest runs in .*runs are x$"):
        RunFolder.open(runs / "y")
    with pytest.raises(UserError, match=r"runs is not a run folder: it has no config\.yaml; the newest runs in .* x$"):
        RunFolder.open(runs)
    assert names(runs) == ["x"]


HOLD = """
import os, sys, time
from melior.storage.folder import RunFolder
folder = RunFolder.create(sys.argv[1], "", "")
if os.fork() == 0:  # a worker that outlives the run
    time.sleep(30)
    os._exit(0)
print("held", flush=True)
time.sleep(30)
"""


def test_a_killed_run_leaves_no_lock_even_when_a_worker_of_its_outlives_it(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert run.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"another run is using .*\(process {run.pid} on"):
            RunFolder.open(tmp_path)
        run.kill()
        run.wait()
        open_soon(tmp_path)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.stdout.close()


def open_soon(folder):
    """A worker that has just been forked may need a moment to let go of its copy of the lock."""
    until = time.monotonic() + 10
    while True:
        try:
            return RunFolder.open(folder).close()
        except UserError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


# ---- metrics


def test_rows_keep_every_bit_and_are_standard_json(folder):
    row = {
        "step": 1,
        "reward": 0.1 + 0.2,
        "tiny": 5e-324,
        "nan": float("nan"),
        "inf": -float("inf"),
        "n": 3,
        "ok": True,
    }
    folder.append_metrics(row)
    folder.append_metrics({"step": 2, "torch": torch.tensor(0.1), "numpy": np.float64(0.1), "list": [torch.ones(2)]})
    text = (folder.path / "metrics.jsonl").read_text()
    json.loads(text.splitlines()[0], parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    first, second = folder.read_metrics()
    assert first == row | {"nan": None, "inf": None} and list(first) == list(row)
    assert second == {"step": 2, "torch": float(np.float32(0.1)), "numpy": 0.1, "list": [[1.0, 1.0]]}


def test_a_row_is_readable_as_soon_as_it_is_appended_and_needs_a_step(folder):
    folder.append_metrics({"step": 1})
    assert read_metrics(folder.path) == [{"step": 1}]
    with pytest.raises(ValueError, match="needs a step"):
        folder.append_metrics({"reward": 1.0})


@pytest.mark.parametrize("tail", ["", '{"step": 4, "rew', '{"step": 4}', '{"step": 4}\n'])
def test_going_on_from_a_checkpoint_cuts_later_rows_and_half_a_line(folder, tail):
    for step in (1, 2, 3):
        folder.append_metrics({"step": step, "x": step / 3})
    before = (folder.path / "metrics.jsonl").read_text()
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write(tail)
    assert [row["step"] for row in folder.read_metrics()] == [1, 2, 3] + [4] * ("4}" in tail)
    folder.cut_metrics(3)
    assert (folder.path / "metrics.jsonl").read_text() == before
    folder.cut_metrics(1)
    folder.append_metrics({"step": 2, "x": 5})
    assert folder.read_metrics() == [{"step": 1, "x": 1 / 3}, {"step": 2, "x": 5}]


def test_nothing_to_cut_is_no_error(folder):
    folder.cut_metrics(0)
    folder.sync_metrics()
    assert not (folder.path / "metrics.jsonl").exists()


@pytest.mark.parametrize("line", ["{", "[1]", '{"reward": 1}', "", '{"step": null}'])
def test_damage_in_the_middle_is_named(folder, line):
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2: not a row"):
        folder.read_metrics()


def test_a_full_disk_leaves_whole_rows_and_whole_files(folder):
    folder.append_metrics({"step": 1})
    folder.write_summary({"steps": 1})
    before = {name: (folder.path / name).read_bytes() for name in names(folder.path)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(RunError, match=r"could not save .*metrics\.jsonl: File too large"):
            folder.append_metrics({"step": 2, "text": "x" * 100})
        with pytest.raises(RunError, match=r"could not save .*summary\.json: File too large"):
            folder.write_summary({"text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {name: (folder.path / name).read_bytes() for name in names(folder.path)} == before


# ---- other files


def test_the_summary_is_read_back_with_null_for_nan(folder):
    folder.write_summary({"before": {"pass@1": [0.25, float("nan"), 1.0]}, "steps": 3})
    assert folder.read_summary() == {"before": {"pass@1": [0.25, None, 1.0]}, "steps": 3}
    (folder.path / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary\.json is damaged"):
        folder.read_summary()


def test_a_viewed_folder_is_not_written_to(folder):
    view = RunFolder.view(folder.path)
    for write in (
        lambda: view.append_metrics({"step": 1}),
        lambda: view.write_text("a", ""),
        lambda: view.cut_metrics(0),
    ):
        with pytest.raises(RuntimeError, match="not held"):
            write()


def test_a_link_to_the_newest_model_moves_in_one_step_and_survives_moving_the_folder(folder, tmp_path):
    for step in ("step-1", "step-2"):
        model = folder.path / "checkpoints" / step / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(step)
        folder.point("model", model)
        assert (folder.path / "model" / "config.json").read_text() == step
    folder.close()
    assert (folder.path.rename(tmp_path / "moved") / "model" / "config.json").read_text() == "step-2"
    assert names(tmp_path / "moved") == ["checkpoints", "config.yaml", "fingerprint.txt", "model"]


def test_an_atomic_write_that_fails_keeps_the_old_file(tmp_path):
    write_atomic(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "a", "new \ud800")
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_what_is_not_json_is_refused():
    with pytest.raises(TypeError, match="a set cannot be written"):
        json_text({"x": {1}})


def test_the_default_folder_is_named_by_time_and_new(tmp_path):
    now = datetime(2026, 11, 30, 20, 55, 0)
    first = default_path("trl:grpo", now, tmp_path)
    assert first == tmp_path / "trl-grpo-20261130-205500"
    first.mkdir()
    second = default_path("trl:grpo", now, tmp_path)
    assert second.name == "trl-grpo-20261130-205500-2"
    second.mkdir()
    assert default_path("trl:grpo", now, tmp_path).name.endswith("-3")
    assert default_path("./mine.py:MINE", now, tmp_path).name == "mine.py-MINE-20261130-205500"
    assert default_path("grpo", now) == Path("runs/grpo-20261130-205500")

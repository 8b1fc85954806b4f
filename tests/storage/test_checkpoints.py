"""A checkpoint is complete or not there, pruning keeps the right ones, and whatever was lost or altered is named."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from melior.errors import RunError, UserError
from melior.storage.checkpoints import Checkpoints, latest_checkpoint, load_checkpoint
from melior.storage.constants import Constant


def trees(step):
    return {"policy": {"weight": torch.full((4,), float(step))}, "run": {"step": step, "memory": [1, None]}}


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_is_saved_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None and latest_checkpoint(tmp_path / "nowhere") is None
    path = checkpoints.save(12, trees(12), {"model": lambda folder: (folder / "config.json").write_text("{}")}, 0.5)
    assert path == tmp_path / "checkpoints" / "step-000012" == checkpoints.latest()
    assert (path / "model" / "config.json").read_text() == "{}"
    back = checkpoints.load(path)
    assert list(back) == ["policy", "run"] and back["run"] == {"step": 12, "memory": [1, None]}
    assert torch.equal(back["policy"]["weight"], torch.full((4,), 12.0))
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 12 and manifest["score"] == 0.5 and manifest["files"]["model/config.json"]["bytes"] == 2
    assert manifest["files"]["model/config.json"]["sha256"].startswith("44136fa355b3678a1146ad16f7e8649e94fb4fc2")


def test_names_with_slashes_are_files_too(tmp_path):
    path = Checkpoints(tmp_path).save(0, {"hinter/probe.v2": {"w": torch.ones(1)}})
    assert load_checkpoint(path)["hinter/probe.v2"]["w"] == 1


def test_constants_are_written_once_and_are_back_in_their_place(tmp_path):
    def tree(step):
        return {"run": {"step": step, "scorers": {"a/b": Constant("a/b", {"w": torch.ones(2)}), "c": {"w": step}}}}

    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        path = checkpoints.save(step, tree(step))
    back = load_checkpoint(path)["run"]
    assert back["step"] == 2 and back["scorers"]["c"] == {"w": 2}
    assert torch.equal(back["scorers"]["a/b"]["w"], torch.ones(2))
    assert [path.name for path in (tmp_path / "reference").iterdir()] == ["a%2Fb"]
    written = (tmp_path / "reference" / "a%2Fb" / "tree.safetensors").stat().st_ino
    later = Checkpoints(tmp_path, keep=1)
    later.load(path)
    later.save(3, tree(3))
    assert (tmp_path / "reference" / "a%2Fb" / "tree.safetensors").stat().st_ino == written
    (tmp_path / "reference" / "a%2Fb" / "tree.json").unlink()
    with pytest.raises(RunError, match=r"the saved scorer 'a/b' lacks tree\.json"):
        later.load(later.latest())


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, trees(1))
    checkpoints.save(3, trees(2))
    assert names(tmp_path) == ["step-000003"] and checkpoints.load(checkpoints.latest())["run"]["step"] == 2


@pytest.mark.parametrize(
    ("keep", "keep_best", "kept", "best"),
    [(1, False, [5], 5), (2, False, [4, 5], 4), (1, True, [2, 5], 2), (9, True, [0, 1, 2, 3, 4, 5], 2)],
)
def test_pruning_keeps_the_newest_and_the_earliest_of_the_best(tmp_path, keep, keep_best, kept, best):
    checkpoints = Checkpoints(tmp_path, keep, keep_best)
    for step, score in enumerate([None, 0.2, 0.7, float("nan"), 0.7, 0.1]):
        checkpoints.save(step, {}, score=score)
    assert names(tmp_path) == [f"step-{step:06d}" for step in kept]
    assert checkpoints.best() == tmp_path / "checkpoints" / f"step-{best:06d}"


def test_order_is_by_number_beyond_six_digits(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(999_999, {})
    assert checkpoints.save(1_000_000, {}) == checkpoints.latest()
    assert names(tmp_path) == ["step-1000000"]


def test_going_on_from_an_earlier_step_drops_the_later_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (0, 5, 10):
        checkpoints.save(step, {})
    checkpoints.cut(5)
    assert names(tmp_path) == ["step-000000", "step-000005"]


def test_at_least_one_is_kept(tmp_path):
    with pytest.raises(UserError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("part", ["policy.safetensors", "run.json", "model/config.json", "manifest.json"])
def test_a_missing_part_is_named(tmp_path, part):
    path = Checkpoints(tmp_path).save(
        12, trees(12), {"model": lambda folder: (folder / "config.json").write_text("{}")}
    )
    (path / part).unlink()
    with pytest.raises(RunError, match=f"checkpoint step-000012 lacks {part}"):
        load_checkpoint(path)


def test_an_altered_part_is_named(tmp_path):
    path = Checkpoints(tmp_path).save(12, trees(12))
    file = path / "policy.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match=r"policy\.safetensors of checkpoint step-000012 is damaged: its content"):
        load_checkpoint(path)
    file.write_bytes(whole[:-1])
    with pytest.raises(RunError, match=rf"damaged: it has {len(whole) - 1} bytes, not {len(whole)}"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"step": 1, "trees": ["policy"], "files": {}}', '{"trees": [], "files": 3}']
)
def test_a_damaged_manifest_is_named(tmp_path, text):
    path = Checkpoints(tmp_path).save(12, trees(12))
    (path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json of checkpoint step-000012 is damaged"):
        load_checkpoint(path)


@contextlib.contextmanager
def largest_file(size):
    """Inside, no file may grow beyond `size` bytes, which fails like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_a_lot(folder):
    (folder / "model.bin").write_bytes(bytes(10_000))


BIG = {"policy": {"weight": torch.zeros(5000)}}
LONG = {"run": ["x" * 10_000]}


@pytest.mark.parametrize(("tree", "folders"), [(BIG, {}), (LONG, {}), ({}, {"model": write_a_lot})])
def test_a_full_disk_is_one_sentence_and_leaves_the_older_checkpoint_alone(tmp_path, tree, folders):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, trees(1))
    for step in (1, 2):
        with largest_file(5000), pytest.raises(RunError) as failure:
            checkpoints.save(step, tree, folders)
        text = str(failure.value)
        assert text.startswith(f"could not save checkpoint step-00000{step} in {tmp_path}/checkpoints: ")
        assert "File too large" in text and f"--resume {tmp_path}" in text and "\n" not in text
    assert names(tmp_path) == ["step-000001"] and checkpoints.load(checkpoints.latest())["run"]["step"] == 1


def test_an_interrupt_while_saving_leaves_nothing_half_written(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, trees(1))

    def interrupt(folder):
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, trees(2), {"model": interrupt})
    assert names(tmp_path) == ["step-000001"]


KILLED_AT_EVERY_OPERATION = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from melior.storage.checkpoints import Checkpoints, latest_checkpoint, load_checkpoint
from melior.storage.constants import Constant

root = Path(sys.argv[1])
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
budget = None

def hook(event, arguments):
    global budget
    if budget is not None and event in OPERATIONS:
        budget -= 1
        if budget < 0:
            os.kill(os.getpid(), signal.SIGKILL)

def half(folder):
    (folder / "weights").write_bytes(b"x" * 100)

def save(run, step):
    Checkpoints(run, keep=1).save(step, {"policy": {"w": torch.full((8,), float(step))}}, {"model": half})

sys.addaudithook(hook)
template = root / "template"
save(template, 1)
deaths = 0
for step in (1, 2):
    for operation in range(1000):
        run = root / f"run-{step}-{operation}"
        shutil.copytree(template, run)
        child = os.fork()
        if child == 0:
            budget = operation
            save(run, step)
            os._exit(0)
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        deaths += killed
        before = latest_checkpoint(run)  # as a reader sees it
        assert load_checkpoint(before)["policy"]["w"].tolist() in ([1.0] * 8, [float(step)] * 8), (step, operation)
        checkpoints = Checkpoints(run, keep=1)
        checkpoints.cut(step)  # whatever changes something clears the leftovers first
        left = sorted(path.name for path in checkpoints.folder.iterdir())
        assert all(name.startswith("step-") for name in left), (step, operation, left)
        latest = checkpoints.latest()
        value = load_checkpoint(latest)["policy"]["w"]
        assert torch.equal(value, torch.full((8,), float(latest.name[-1]))), (step, operation)
        assert latest.name in ("step-000001", f"step-00000{step}"), (step, operation)
        shutil.rmtree(run)
        if not killed:
            assert left == [f"step-00000{step}"], left
            break
print(deaths)
"""


def test_killed_before_any_operation_of_a_save_the_run_has_a_checkpoint(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_OPERATION, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40
    assert [path.name for path in Path(tmp_path).iterdir()] == ["template"]

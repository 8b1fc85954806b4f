"""TensorBoard events of any trainer are read as a run."""

from __future__ import annotations

import numpy as np
import pytest

import melior.inspect.logs.tensorboard as reader
from foreign_logs import events, verl_figures
from melior.errors import UserError
from melior.inspect.logs import read
from melior.storage.trackers import TensorBoard


def test_a_record_that_is_cut_short_ends_its_file_and_no_more(tmp_path):
    file = events(tmp_path, [(s, {"actor/entropy": 0.1 * s}) for s in (1, 2, 3)])
    file.write_bytes(file.read_bytes()[:-10])
    log = read(tmp_path)
    assert log.steps.tolist() == [1, 2]
    assert log.metric("entropy") == pytest.approx([0.1, 0.2])


def test_a_damaged_file_leaves_the_others_alone(tmp_path):
    events(tmp_path, [(1, {"actor/entropy": 0.1})])
    (tmp_path / "events.out.tfevents.9").write_bytes(b"\x08\x00\x00\x00nothing of the kind")
    assert read(tmp_path).steps.tolist() == [1]


def test_what_melior_itself_writes_comes_back(tmp_path):
    for steps in ((1, 2, 3), (2, 4)):  # the second process goes on from step 1: what was after it does not count
        tracker = TensorBoard(tmp_path, {})
        for step in steps:
            tracker.log(step, {"reward": 0.1 * step, "hinter/loss": 1.0, "eval/pass@1": 0.5})
        tracker.close()
    log = read(tmp_path / "tensorboard")
    assert log.trainer == "melior" and log.steps.tolist() == [1, 2, 4]
    np.testing.assert_allclose(log.metric("reward"), [0.1, 0.2, 0.4], rtol=1e-6)
    assert "eval/pass@1" in log.metrics and log.unread == ("hinter/loss",)


def test_scalars_that_are_stored_as_tensors_are_read(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("actor/entropy", 0.25, 7, new_style=True)
        writer.add_histogram("actor/weights", np.arange(5.0), 7)
    log = read(tmp_path)
    assert log.steps.tolist() == [7] and log.metric("entropy") == [0.25]


def test_without_the_package_events_alone_say_what_is_missing(tmp_path, monkeypatch):
    events(tmp_path, [(1, verl_figures(1))])
    monkeypatch.setattr(reader, "installed", lambda: False)
    with pytest.raises(UserError, match=r"melior\[report\]"):
        read(tmp_path)

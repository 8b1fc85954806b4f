"""Rollouts on disk say what was sampled, without padding, and come back as they were."""

from __future__ import annotations

import json
import math
import resource
import sys

import pytest
import torch

from melior.errors import RunError, UserError
from melior.prompts import Prompt
from melior.storage.rollouts import RolloutWriter, read_rollouts
from melior.trajectories import Trajectories

LOGP = torch.tensor([[-0.1, -0.2, 0.0], [-0.3, -0.4, -0.5]])


def batch():
    return Trajectories(
        mask=torch.tensor([[True, False, False], [True, True, True]]),
        group=torch.tensor([7, 7]),
        prompt=((1, 2), (1, 2, 3)),
        tokens=torch.tensor([[5, 6, 0], [5, 7, 8]]),
        behaviour_logp=LOGP,
        proximal_logp=LOGP.double() / 3,
        reward=torch.tensor([1.0, 0.0]),
        outcome=torch.tensor([1.0, 0.5]),
        components={"correct": torch.tensor([1.0, float("nan")])},
        scores={"reference": {"logp": LOGP * 2}},
        columns={
            "length": torch.tensor([2, 3]),
            "truncated": torch.tensor([False, True]),
            "level": torch.tensor([[1, 2, 0], [3, 4, 5]]),
            "chain": torch.arange(12.0, dtype=torch.bfloat16).reshape(2, 3, 2),
            "reward": torch.tensor([8.0, 9.0]),
        },
        features={"hidden": torch.arange(6.0).reshape(2, 3)},
        objects={
            "text": ("ab", "acd"),
            "prompt_text": ("q1", "q2"),
            "source": (Prompt(0, (1, 2)), Prompt(1, (1, 2, 3))),
            "answer": ("4", None),
            "tests": ([1, {"in": 2}], "x"),
            "big": (2**70, 1),
            "half": ("\ud800", "y"),
            "odd": ({(1, 2): 3}, {4}),
            "flag": (True, False),
            "nothing": (None, None),
        },
        advantage=LOGP * 10,
    )


def names(run):
    return sorted(path.name for path in (run / "rollouts").iterdir())


def test_rows_come_back_unpadded_and_exact(tmp_path):
    path = RolloutWriter(tmp_path).write(12, batch())
    assert path == tmp_path / "rollouts" / "step-000012.parquet"
    first, second = read_rollouts(tmp_path, 12)
    assert first["group"] == 7 and first["length"] == 2 and first["truncated"] is False
    assert first["prompt_ids"] == [1, 2] and second["prompt_ids"] == [1, 2, 3]
    assert first["token_ids"] == [5, 6] and second["token_ids"] == [5, 7, 8]
    assert first["text"] == "ab" and first["prompt_text"] == "q1"
    assert first["mask"] == [True, False] and second["mask"] == [True] * 3
    assert first["behaviour_logp"] == LOGP[0, :2].tolist() and second["behaviour_logp"] == LOGP[1].tolist()
    assert first["proximal_logp"] == (LOGP.double() / 3)[0, :2].tolist()
    assert second["advantage"] == (LOGP * 10)[1].tolist()
    assert (first["reward"], first["outcome"], first["column/reward"]) == (1.0, 1.0, 8.0)
    assert first["reward/correct"] == 1.0 and second["reward/correct"] is None
    assert first["scores/reference/logp"] == (LOGP * 2)[0, :2].tolist()
    assert first["level"] == [1, 2] and first["chain"] == [[0, 1], [2, 3]] and second["chain"][2] == [10, 11]
    assert second["hidden"] == [3.0, 4.0, 5.0]
    assert "source" not in first and "step_reward" not in first


def test_the_users_objects_come_back_json_where_they_are_not_plain(tmp_path):
    RolloutWriter(tmp_path).write(0, batch())
    first, second = read_rollouts(tmp_path, 0)
    assert (first["answer"], second["answer"]) == ("4", None)
    assert (first["tests"], second["tests"]) == ([1, {"in": 2}], "x")
    assert (first["big"], second["big"]) == (2**70, 1)
    assert (first["half"], second["half"]) == ("\ud800", "y")
    assert (first["odd"], second["odd"]) == ("{(1, 2): 3}", "{4}")
    assert first["flag"] is True and first["nothing"] is None


def test_a_control_batch_has_observations_and_actions(tmp_path):
    control = Trajectories(
        mask=torch.ones(2, 3, dtype=torch.bool),
        group=torch.arange(2),
        prompt=torch.arange(24.0).reshape(2, 3, 4),
        tokens=torch.arange(6.0).reshape(2, 3, 1),
        step_reward=torch.tensor([[0.0, math.nan, math.inf]] * 2),
    )
    RolloutWriter(tmp_path).write(1, control)
    row = read_rollouts(tmp_path, 1)[1]
    assert row["prompt"][0] == [12, 13, 14, 15] and row["token_ids"] == [[3], [4], [5]]
    assert math.isnan(row["step_reward"][1]) and row["step_reward"][2] == math.inf and "text" not in row


def test_an_empty_batch_is_a_table_without_rows(tmp_path):
    RolloutWriter(tmp_path).write(1, batch().rows([]))
    assert read_rollouts(tmp_path, 1) == []


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3]), (2, [2, 3]), (-1, [])])
def test_so_many_of_the_newest_steps_are_kept_for_every_learner(tmp_path, keep, kept):
    writer = RolloutWriter(tmp_path, keep)
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2, 3):
        assert (writer.write(step, batch()) is None) == (keep == -1)
        writer.write(step, batch(), "hinter")
    assert names(tmp_path) == sorted(f"step-00000{s}{end}" for s in kept for end in (".parquet", ".hinter.parquet"))
    assert all(len(read_rollouts(tmp_path, step, "hinter")) == 2 for step in kept)


def test_going_on_from_a_checkpoint_removes_later_steps_and_leftovers(tmp_path):
    writer = RolloutWriter(tmp_path)
    writer.cut(0)
    for step in (1, 2, 3):
        writer.write(step, batch())
    (tmp_path / "rollouts" / ".tmp-step-000004.parquet").write_text("half")
    writer.cut(1)
    assert names(tmp_path) == ["step-000001.parquet"]


def test_missing_rollouts_name_those_that_are_there(tmp_path):
    with pytest.raises(UserError, match=r"no rollouts of step 3 of 'hinter'; there are none"):
        read_rollouts(tmp_path, 3, "hinter")
    RolloutWriter(tmp_path).write(1, batch())
    with pytest.raises(UserError, match=r"no rollouts of step 3 of 'policy'; there are those of steps 1$"):
        read_rollouts(tmp_path, 3)


def test_without_pyarrow_nothing_is_written_and_it_is_said_once(tmp_path, monkeypatch):
    assert RolloutWriter(tmp_path).note is None
    RolloutWriter(tmp_path).write(1, batch())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    writer = RolloutWriter(tmp_path)
    assert "pip install 'melior[lm]'" in writer.note and RolloutWriter(tmp_path, keep=-1).note is None
    assert writer.write(2, batch()) is None and names(tmp_path) == ["step-000001.parquet"]
    with pytest.raises(UserError, match="needs pyarrow"):
        read_rollouts(tmp_path, 1)


def test_a_full_disk_is_one_sentence_and_leaves_no_part(tmp_path):
    writer = RolloutWriter(tmp_path)
    writer.write(1, batch())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(RunError, match=r"could not save .*step-000002\.parquet: "):
            writer.write(2, batch())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000001.parquet"]


def test_other_readers_see_plain_parquet(tmp_path):
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(RolloutWriter(tmp_path).write(1, batch()))
    assert table.column_names[:4] == ["group", "length", "prompt_ids", "prompt_text"]
    assert str(table.schema.field("behaviour_logp").type) == "list<element: float>"
    assert str(table.schema.field("proximal_logp").type) == "list<element: double>"
    assert json.loads(table.column("tests")[0].as_py()) == [1, {"in": 2}]

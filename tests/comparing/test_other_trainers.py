"""Finished runs of other trainers stand in a comparison's table."""

from __future__ import annotations

import pytest

from foreign_logs import trl_entry, trl_evaluation, trl_state, verl_figures, verl_metrics, verl_validation
from melior.comparing import compare
from melior.errors import UserError


def trl_run(folder, scores):
    history = [
        e for s, r in scores.items() for e in (trl_entry(s, 0.5, {"correct": 0.5}), trl_evaluation(s, r))
    ]  # fmt: skip
    trl_state(folder / "trainer_state.json", history)
    return str(folder)


def test_runs_of_trl_and_verl_are_compared_by_their_held_out_scores(tmp_path):
    theirs = trl_run(tmp_path / "trl", {2: 0.25, 4: 0.5})
    rows = [(0, verl_validation(0.25)), (4, verl_figures(4) | verl_validation(0.75))]
    other = str(verl_metrics(tmp_path / "verl.jsonl", rows))
    found = compare([theirs, other], out=tmp_path / "out", quiet=True)
    assert [row["final"][0] for row in found.table] == [0.5, 0.75]
    first, second = found.data["cells"]
    assert (first["measure"], second["measure"]) == ("eval/reward", "eval/pass@1")
    assert [(p[0], p[3]) for p in first["curve"]] == [(2, 0.25), (4, 0.5)]
    # Figures of two kinds are said to be that.
    assert "may not be of one kind: trl eval/reward, verl.jsonl eval/pass@1" in str(found.data)


def test_scores_of_one_figure_need_no_warning(tmp_path):
    runs = [trl_run(tmp_path / name, {2: 0.25, 4: score}) for name, score in (("a", 0.5), ("b", 0.75))]
    assert "of one kind" not in str(compare(runs, out=tmp_path / "out", quiet=True).data)


def test_a_log_without_an_evaluation_cannot_be_compared(tmp_path):
    trl_state(tmp_path / "run" / "trainer_state.json", [trl_entry(1, 0.5, {"correct": 0.5})])
    evaluated = trl_run(tmp_path / "evaluated", {2: 0.25})
    with pytest.raises(UserError, match="run holds no held-out score"):
        compare([evaluated, str(tmp_path / "run")], out=tmp_path / "out", quiet=True)

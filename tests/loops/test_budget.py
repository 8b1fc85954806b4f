"""A run ends when its budget of tokens or of seconds is spent."""

from __future__ import annotations

import pytest

import melior
from runs import every_row, lock_run


def test_the_step_that_spends_the_tokens_is_the_last(tmp_path):
    result = lock_run(tmp_path / "run", steps=50, budget_tokens=130)  # 64 tokens a step
    assert result.summary["steps"] == 3 and not result.summary["interrupted"]
    assert result.summary["after"] is not None


def test_a_run_that_was_cut_off_ends_where_it_would_have(tmp_path):
    class Stop(melior.Callback):
        def on_step(self, run, metrics):
            return metrics["step"] == 1

    lock_run(tmp_path / "run", steps=50, budget_tokens=130, callbacks=(Stop(),))
    assert len(every_row(tmp_path / "run")) == 1
    melior.train(resume=tmp_path / "run", quiet=True)
    assert len(every_row(tmp_path / "run")) == 3


def test_seconds_end_a_run(tmp_path):
    assert lock_run(tmp_path / "run", steps=50, budget_seconds=1e-9).summary["steps"] == 1


def test_a_negative_budget_is_refused(tmp_path):
    with pytest.raises(melior.errors.UserError, match="budget_tokens must be at least 0"):
        lock_run(tmp_path / "run", budget_tokens=-1)

"""A run's held-out score along its steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from melior.inspect.logs.held_out import held_out_curve
from melior.inspect.logs.log import RunLog


def log(**metrics):
    return RunLog(Path("run"), "trl", np.arange(3), metrics)


@pytest.mark.parametrize(
    ("has", "name"),
    [
        (["eval/score", "eval/pass@1", "eval/reward"], "eval/score"),
        (["eval/reward", "eval/pass@1", "eval/mean@8"], "eval/pass@1"),
        (["eval/reward", "eval/mean@8", "eval/pass@8"], "eval/mean@8"),
        (["eval/reward", "eval/reward/brief"], "eval/reward"),
    ],
)
def test_the_most_telling_figure_is_the_score(has, name):
    curve = held_out_curve(log(**{key: np.array([0.1, np.nan, 0.3]) for key in has}))
    assert curve.name == name and curve.steps.tolist() == [0, 2] and curve.scores.tolist() == [0.1, 0.3]


def test_a_run_that_never_evaluated_has_no_curve():
    assert held_out_curve(log(reward=np.ones(3), **{"eval/score": np.full(3, np.nan)})) is None

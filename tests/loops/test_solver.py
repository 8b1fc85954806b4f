"""A solver's run: the trace of its certificate, step by step, and comparisons of it."""

from __future__ import annotations

import math

import pytest

import melior
from melior.errors import UserError
from melior.exact import ValueIteration, problem
from melior.loops.solver import digits
from runs import every_row

SOLVER = {"log_to": "", "report": False, "quiet": True}


def test_a_run_tells_the_trace_and_repeats_its_end(tmp_path):
    solver = ValueIteration(sweeps=4)
    result = melior.train(solver, steps=6, out=tmp_path / "run", **SOLVER)
    trace = solver(problem("chain")).trace
    assert [row["gap"] for row in every_row(result.path)] == [*trace, trace[-1], trace[-1]]
    assert result.summary["after"]["score"] == pytest.approx(-math.log10(trace[-1]))
    assert melior.evaluate(result.path)["gap"] == trace[-1]


def test_digits_of_nothing_and_of_an_unknown_error():
    assert digits(1e-3) == pytest.approx(3) and digits(0.0) == 16 and math.isnan(digits(math.inf))


def test_an_unknown_problem_is_named_before_the_run(tmp_path):
    with pytest.raises(UserError, match="did you mean 'chain'"):
        melior.train("value-iteration", problem="chian", out=tmp_path / "run", **SOLVER)


def test_solvers_are_compared_by_their_error_along_sweeps(tmp_path):
    pytest.importorskip("rliable")
    axis = {"sweeps": ["100", "5"]}
    found = melior.compare(["value-iteration"], grid=axis, steps=10, seeds=2, quiet=True, out=tmp_path)
    full, half = (cell["curve"] for cell in found.data["cells"][::2])
    assert [point[0] for point in full] == list(range(1, 11))
    scores = [[point[3] for point in curve] for curve in (full, half)]
    assert scores[0][:5] == scores[1][:5] and scores[0] == sorted(scores[0]) and scores[1][4:] == [scores[1][4]] * 6
    assert found.table[1]["difference"][0] == pytest.approx(scores[1][-1] - scores[0][-1])
    assert any("seeds change nothing" in said for said in found.data["held_equal"])

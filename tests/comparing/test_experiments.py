"""What is expected of a comparison is judged by its intervals, and told in one row for each experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_comparisons import made_data, made_outcomes, outcome, write_comparison
from melior.comparing.expectations import AS_EXPECTED, NOT_AS_EXPECTED, NOT_SETTLED, Better, Reaches, Within, overall
from melior.comparing.experiments import (
    Experiment,
    Named,
    chosen,
    find_experiments,
    run_experiment,
    write_row,
)
from melior.comparing.running import read_comparison
from melior.errors import RunError, UserError

FILE = """
from melior.comparing.experiments import Better, Experiment
EXPERIMENT = Experiment("Which?", ("a", "b"), (Better("b", than="a"),), {"task": "lock"}, seeds=(0, 1), minutes=%s)
"""


def scored(folder: Path, **finals: list[float]) -> dict:
    """A comparison with these final scores by seed."""
    return made_data({
        label: [outcome(label, seed, [0.0, score / 2, score], folder) for seed, score in enumerate(scores)]
        for label, scores in finals.items()
    })  # fmt: skip


@pytest.mark.parametrize(
    ("expectation", "verdict"),
    [
        (Better("b", than="a"), AS_EXPECTED),
        (Better("a", than="b"), NOT_AS_EXPECTED),
        (Better("c", than="a"), NOT_SETTLED),
        (Better("b", than="a", by="area"), AS_EXPECTED),
        (Reaches("b", 0.4), AS_EXPECTED),
        (Reaches("b", 0.9), NOT_AS_EXPECTED),
        (Reaches("b", 0.5), NOT_SETTLED),
        (Within("b", of="a", margin=0.5), AS_EXPECTED),
        (Within("b", of="a", margin=0.1), NOT_AS_EXPECTED),
        (Within("c", of="a", margin=0.1), NOT_SETTLED),
        (Better("b", than="nobody"), NOT_SETTLED),
    ],
)
def test_an_expectation_is_settled_by_its_interval_alone(tmp_path, expectation, verdict):
    data = scored(tmp_path, a=[0.1, 0.2, 0.3], b=[0.4, 0.5, 0.6], c=[0.0, 0.2, 0.5])
    assert expectation.judge(data).verdict == verdict


def test_what_was_found_is_told_with_its_interval(tmp_path):
    data = scored(tmp_path, a=[0.1, 0.2], b=[0.4, 0.5])
    judged = Better("b", than="a").judge(data)
    assert (judged.expected, judged.found) == ("b > a (final)", "b - a +0.300 [+0.300, +0.300]")


def test_one_thing_that_failed_decides_over_all():
    assert overall([AS_EXPECTED, NOT_SETTLED, NOT_AS_EXPECTED]) == NOT_AS_EXPECTED
    assert overall([AS_EXPECTED, NOT_SETTLED]) == NOT_SETTLED
    assert overall([AS_EXPECTED]) == AS_EXPECTED


def test_an_expectation_of_who_is_not_compared_is_refused():
    experiment = Experiment("?", ("grpo", "rloo"), (Better("grpo", than="rlo"),))
    with pytest.raises(UserError, match=r"'rlo', which is not compared.*rloo"):
        experiment.comparison()


def test_experiments_are_found_cheapest_first(tmp_path):
    (tmp_path / "dear.py").write_text(FILE % 9)
    (tmp_path / "cheap.py").write_text(FILE % 1)
    found = find_experiments(tmp_path, tmp_path / "runs")
    assert [each.name for each in found] == ["cheap", "dear"] and found[0].runs == (0, 4)
    assert [each.name for each in chosen(found, ["dear"])] == ["dear"]
    with pytest.raises(UserError, match="cheap"):
        chosen(found, ["chep"])
    (tmp_path / "wrong.py").write_text("EXPERIMENT = 3")
    with pytest.raises(UserError, match="no Experiment but a int"):
        find_experiments(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        find_experiments(tmp_path / "nowhere")


def test_those_that_are_shipped_are_whole_and_fit_their_time():
    found = find_experiments(Path(__file__).parents[2] / "benchmarks" / "experiments")
    for each in found:
        asked = each.experiment.comparison()
        assert len(asked.methods) == 14 and asked.seeds == (0, 1, 2, 3, 4) and each.experiment.expects
    assert 0 < sum(each.experiment.minutes for each in found) <= 90


def test_a_row_is_replaced_and_what_stands_around_it_stays(tmp_path):
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nText.\n")
    for name, row in (("b", "| **b** 1 |"), ("a", "| **a** 1 |"), ("b", "| **b** 2 |")):
        write_row(page, name, row)
    text = page.read_text()
    assert text.startswith("# Results\n\nText.\n") and "**b** 1" not in text
    assert text.index("| **a** 1 |") < text.index("| **b** 2 |")
    before = page.read_text()
    write_row(page, "b", "| **b** 2 |")
    assert page.read_text() == before
    page.write_text("<!-- experiments -->")
    with pytest.raises(RunError, match="must hold"):
        write_row(page, "b", "| **b** |")


def test_an_experiment_is_judged_and_written_down(tmp_path):
    outcomes = made_outcomes(("grpo", "rloo"), tmp_path)
    write_comparison(tmp_path / "out", made_data(outcomes))
    experiment = Experiment("Which?", ("grpo", "rloo"), (Reaches("grpo", 0.2),))
    named, page = Named("mine", experiment, tmp_path / "out"), tmp_path / "results.md"
    ran = run_experiment(named, results=page, compare=lambda asked, out, *more: read_comparison(out))
    assert ran.verdict == AS_EXPECTED and named.runs == (10, 10)
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| **mine**")]
    assert "grpo ≥ 0.2" in row and "as expected" in row and "`melior experiment mine`" in row and "5 seeds" in row

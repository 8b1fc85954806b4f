"""The geometry of the drawings, and the numbers that stand for them."""

from __future__ import annotations

import re

import pytest

from melior.report.charts import SMALL, Series, bands, histogram, line_chart
from melior.report.figures import rooms


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", path)]


def test_a_straight_line_is_drawn_straight_between_round_ticks():
    chart = line_chart("Up", "", "", [Series("", [1, 2, 3], [0.0, 5.0, 10.0])])
    (a, b, c) = points(chart.curves[0].path)
    assert a == (SMALL.left, SMALL.bottom) and c[0] == SMALL.right
    assert b == pytest.approx(((a[0] + c[0]) / 2, (a[1] + c[1]) / 2), abs=0.1)
    assert [tick.text for tick in chart.y_ticks] == ["0", "5", "10"]
    assert [tick.text for tick in chart.x_ticks] == ["1", "2", "3"]
    assert c[1] > SMALL.top and chart.told == "0 at step 1, 10 at step 3; lowest 0 at step 1, highest 10 at step 3."
    assert chart.table == (("1", "0"), ("2", "5"), ("3", "10")) and not chart.thinned


def test_a_long_run_is_thinned_to_its_means_and_its_table_to_spread_steps():
    steps = list(range(1, 2001))
    chart = line_chart("Long", "", "", [Series("", steps, [float(step % 2) for step in steps])])
    assert len(points(chart.curves[0].path)) <= 240 and chart.curves[0].smooth
    assert len(chart.table) == 40 and chart.thinned
    assert (chart.table[0][0], chart.table[-1][0]) == ("1", "2000")


def test_a_constant_a_single_value_and_a_gap_are_drawn():
    chart = line_chart("One", "", "", [Series("", [5], [0.25])])
    assert len(chart.curves[0].marks) == 1
    flat = line_chart("Flat", "", "", [Series("", [1, 2], [0.0, 0.0])])
    assert len({y for _, y in points(flat.curves[0].path)}) == 1
    two = line_chart("Two", "", "", [Series("a", [1, 2], [1.0, 2.0]), Series("b", [2], [3.0])])
    assert two.header == ("step", "a", "b") and two.table == (("1", "1", "-"), ("2", "2", "3"))


def test_intervals_at_every_value_are_a_band_and_single_ones_stand_apart():
    spread = {step: (0.1, 0.9) for step in (0, 5, 10)}
    series = Series("a", [0, 5, 10], [0.2, 0.5, 0.8], spread, marked=True)
    (curve,) = line_chart("Held out", "", "", [series]).curves
    assert len(points(curve.band)) == 6 and curve.band.endswith("Z")
    assert all(y == low == high for _, y, low, high in curve.marks)
    ends = [Series(name, [0, 5, 10], [0.2, 0.5, 0.8], {0: (0.1, 0.9)}, marked=True) for name in "ab"]
    first, second = line_chart("Held out", "", "", ends).curves
    assert not first.band and [low != high for _, _, low, high in first.marks] == [True, False, False]
    assert first.marks[0][0] != second.marks[0][0]  # intervals at one step do not hide each other


def test_a_histogram_counts_every_length_once():
    chart = histogram("Lengths", "", "tokens", {"step 1": [3, 3, 4, 90], "step 9": [50]})
    assert len(chart.table) <= 24
    assert [sum(int(row[k]) for row in chart.table) for k in (1, 2)] == [4, 1]
    heights = [height for _, _, _, height, kind in chart.bars if kind == 0]
    assert max(heights) == pytest.approx(2 * sorted(height for height in heights if height)[0])
    assert "step 1: 4 completions, mean 25.0, longest 90." in chart.told


def test_shares_are_drawn_from_0_to_1_and_other_figures_on_their_own_scale():
    (band,), low, high = bands([[0.5, 0.25, 0.75]])
    assert (band.low, band.value, band.high, low, high) == (25, 50, 75, 0, 1)
    (_, band), low, high = bands([[-20.0, -30.0, -10.0], [-5.0, -6.0, -4.0]])
    assert low < -30 and high == 0 and 0 < band.low < band.value < band.high < 100


def test_every_figure_of_a_run_is_drawn_once_or_named():
    rows = [
        {"step": step, "reward": 0.1 * step, "pass_rate": 0.1 * step, "reward/a": 0.1 * step, "reward/b": -0.2 * step,
         "reward/c": 0.3 * step * step, "lr": 1e-3, "gap_mean": 1e-8 * step, "critic/loss": 2.0 * step, "note": "text"}
        for step in (1, 2, 3)
    ]  # fmt: skip
    found = rooms(rows)
    drawn = [name for room in found.rooms for figure in room.figures for name, _ in figure.curves]
    assert sorted(drawn) == ["critic/loss", "reward", "reward/b", "reward/c"]
    assert found.as_reward == ("pass_rate", "reward/a")
    assert found.still == pytest.approx({"lr": 1e-3, "gap_mean": 3e-8})
    assert all(figure.how for room in found.rooms for figure in room.figures)


def test_the_bounds_of_a_held_out_figure_are_its_interval_and_no_curve():
    bounds = {"eval/pass@8_low": 0.1, "eval/pass@8_high": 0.9}
    rows = [
        {"step": step, "eval/score": 0.1 * step, "eval/pass@1": 0.1 * step, "eval/pass@8": 0.2 * step} | bounds
        for step in (2, 4, 6)
    ]
    (figure,) = [figure for room in rooms(rows).rooms for figure in room.figures]
    assert figure.curves == (("eval/pass@8", ""),)


def test_one_step_is_drawn_too():
    assert rooms([{"step": 1, "reward": 0.5}]).still == {}


def test_a_bin_can_be_read_like_a_step():
    chart = histogram("Lengths", "", "tokens", {"step 1": [3, 3, 4], "step 9": [5]})
    assert [(label, texts) for label, _, texts in chart.points] == [
        ("3", ("2", "0")), ("4", ("1", "0")), ("5", ("0", "1")),
    ]  # fmt: skip

"""What a few runs say, on numbers whose answers are known."""

from __future__ import annotations

import math

import pytest

from melior.comparing.statistics import (
    area,
    cautions,
    holm,
    improvement,
    interquartile_mean,
    mean_over_seeds,
    paired_difference,
)

NAN = math.nan


def test_a_mean_lies_in_its_interval_and_equal_runs_have_none_of_width():
    value, low, high = mean_over_seeds([0.1, 0.2, 0.3, 0.4, 0.5])
    assert value == pytest.approx(0.3) and 0.1 < low < value < high < 0.5
    assert mean_over_seeds([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_one_run_has_no_interval_and_none_no_mean():
    value, low, high = mean_over_seeds([0.4, NAN])
    assert value == 0.4 and math.isnan(low) and math.isnan(high)
    assert math.isnan(mean_over_seeds([])[0]) and math.isnan(mean_over_seeds([NAN])[0])


def test_a_constant_gain_within_seeds_is_found_although_seeds_differ_widely():
    right = {seed: 0.15 * seed for seed in range(6)}
    left = {seed: score + 0.1 for seed, score in right.items()}
    (value, low, high), p, seeds = paired_difference(left, right)
    assert (value, low, high) == pytest.approx((0.1, 0.1, 0.1)) and seeds == 6
    assert p == pytest.approx(2 / 2**6)  # of the 64 ways to exchange, two are as far from zero
    apart = mean_over_seeds(list(left.values()))
    assert apart[2] - apart[1] > 0.2  # which unpaired intervals could not have shown


def test_only_seeds_that_both_have_are_paired():
    (value, _, _), _, seeds = paired_difference({0: 1.0, 1: 2.0, 2: NAN}, {0: 0.5, 1: 1.5, 2: 0.0, 3: 9.0})
    assert value == 0.5 and seeds == 2
    nothing, p, seeds = paired_difference({0: 1.0}, {1: 1.0})
    assert all(map(math.isnan, nothing)) and math.isnan(p) and seeds == 0


def test_runs_that_do_not_differ_have_p_one_and_a_single_pair_has_none():
    same = {0: 0.3, 1: 0.6}
    assert paired_difference(same, same) == ((0.0, 0.0, 0.0), 1.0, 2)
    (value, low, _), p, _ = paired_difference({0: 0.5}, {0: 0.25})
    assert value == 0.25 and math.isnan(low) and math.isnan(p)


def test_improvement_counts_ties_half():
    assert improvement([2, 3], [0, 1]) == 1.0
    assert improvement([0, 1], [0, 1]) == 0.5
    assert improvement([1, 1], [0, 1]) == pytest.approx(0.75)
    assert math.isnan(improvement([NAN], [1.0]))


def test_the_inter_quartile_mean_leaves_out_a_quarter_at_each_end():
    assert interquartile_mean([0.0, 0.4, 0.6, 100.0]) == pytest.approx(0.5)
    assert interquartile_mean([0.0, 1.0]) == 0.5


def test_holm_corrects_what_is_known():
    assert holm([0.01, NAN, 0.04, 0.03])[0] == pytest.approx(0.03)
    corrected = holm([0.01, NAN, 0.04, 0.03])
    assert math.isnan(corrected[1]) and corrected[2:] == pytest.approx([0.06, 0.06])
    assert all(map(math.isnan, holm([NAN])))


def test_the_area_is_the_mean_along_the_curve_up_to_the_end():
    assert area([(0, 0.0), (10, 1.0)]) == pytest.approx(0.5)
    assert area([(0, 0.0), (10, 1.0)], end=5) == pytest.approx(0.25)
    assert area([(0, 0.2), (4, 0.2), (40, 1.0)], end=4) == pytest.approx(0.2)
    assert area([(0, 0.0), (10, 1.0)], end=99) == pytest.approx(0.5)
    assert math.isnan(area([(0, 0.5)])) and math.isnan(area([(0, 0.5), (3, NAN)]))


def test_few_seeds_are_said_to_be_few():
    assert "one seed" in cautions(1)[0]
    assert [("few" in said, "0.25" in said) for said in cautions(3)] == [(True, False), (False, True)]
    assert any("0.0625" in said for said in cautions(5)) and not any("few" in said for said in cautions(5))
    assert cautions(10) == []

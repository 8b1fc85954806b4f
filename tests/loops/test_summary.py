"""Intervals against known numbers, and the few lines that a run ends with."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import pytest

from melior.intervals import mean_interval, pass_at_k, wilson
from melior.loops.summary import (
    count_text,
    figures_text,
    interval_text,
    number_text,
    summary_text,
    time_text,
)


def test_wilson_solves_its_own_equation():
    """The bounds are where |p - bound| is z standard errors of the bound."""
    z = 1.959963984540054
    for successes, n in ((1, 10), (5, 10), (77, 256), (0, 5), (5, 5)):
        for bound in wilson(successes, n):
            assert (successes / n - bound) ** 2 == pytest.approx(z * z * bound * (1 - bound) / n, abs=1e-12)


def test_wilson_at_known_points_and_at_the_ends():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, table I, method 3
    assert wilson(0, 20) == pytest.approx((0.0, 0.161125), abs=1e-6)
    low, high = wilson(20, 20)
    assert (low, high) == (pytest.approx(0.838875, abs=1e-6), 1.0) and wilson(0, 20)[0] == 0.0
    assert all(math.isnan(bound) for bound in wilson(0, 0))


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_pass(k):
    tried, right = [5, 5, 6], [2, 0, 6]
    subsets = [list(combinations([1] * c + [0] * (n - c), k)) for n, c in zip(tried, right, strict=True)]
    shares = [sum(any(subset) for subset in each) / len(each) for each in subsets]
    assert pass_at_k(tried, right, k)[0] == pytest.approx(sum(shares) / 3, abs=1e-15)


def test_with_one_completion_a_prompt_the_interval_is_wilsons():
    assert pass_at_k([1] * 10, [1, 0, 0, 1, 0, 1, 0, 0, 0, 0], 1) == pytest.approx((0.3, *wilson(3, 10)), abs=1e-12)
    assert pass_at_k([4] * 10, [4, 0, 0, 4, 0, 4, 0, 0, 0, 0], 1) == pytest.approx((0.3, *wilson(3, 10)), abs=1e-12)


def test_several_completions_narrow_the_interval_at_most_as_if_all_were_prompts():
    value, low, high = pass_at_k([4] * 10, [1, 2] * 5, 1)
    assert (value, low, high) == pytest.approx((0.375, *wilson(15, 40)), abs=1e-12)
    assert pass_at_k([4] * 10, [2] * 10, 1) == pytest.approx((0.5, *wilson(20, 40)), abs=1e-12)
    between = pass_at_k([4] * 10, [0, 1, 4, 2, 1, 0, 3, 0, 1, 2], 1)
    p, values = 14 / 40, [c / 4 for c in (0, 1, 4, 2, 1, 0, 3, 0, 1, 2)]
    effective = p * (1 - p) / (sum((v - p) ** 2 for v in values) / 100)
    assert 10 < effective < 40 and between == pytest.approx((p, *wilson(p * effective, effective)), abs=1e-12)


def test_all_failing_or_passing_is_no_certainty():
    assert pass_at_k([8] * 20, [0] * 20, 1) == pytest.approx((0.0, *wilson(0, 20)))
    assert pass_at_k([8] * 20, [8] * 20, 8) == pytest.approx((1.0, *wilson(20, 20)))


def test_prompts_with_too_few_completions_are_left_out():
    assert pass_at_k([2, 1], [0, 1], 2) == pytest.approx((0.0, *wilson(0, 1)))
    assert all(math.isnan(x) for x in pass_at_k([1], [1], 2)) and all(math.isnan(x) for x in pass_at_k([], [], 1))
    with pytest.raises(ValueError, match="k of at least 1"):
        pass_at_k([1], [1], 0)


def test_the_bootstrap_is_the_same_every_time_and_about_right():
    values = [float(i % 7) for i in range(200)]
    value, low, high = mean_interval(values)
    assert (value, low, high) == mean_interval(values)
    mean = sum(values) / 200
    half = 1.96 * math.sqrt(sum((v - mean) ** 2 for v in values) / 200 / 200)
    assert (
        value == mean and low == pytest.approx(mean - half, abs=0.03) and high == pytest.approx(mean + half, abs=0.03)
    )
    assert mean_interval([*values, math.nan]) == (value, low, high)


def test_the_bootstrap_of_little():
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0, 2.0)
    value, low, high = mean_interval([3.0])
    assert value == 3.0 and math.isnan(low) and math.isnan(high) and math.isnan(mean_interval([])[0])


SUMMARY = {
    "before": {"score": 0.24, "prompts": 256, "pass@1": [0.24, 0.192, 0.295], "mean@8": [0.24, 0.2, 0.28]},
    "after": {"score": 0.77, "prompts": 256, "pass@1": [0.77, 0.7149, 0.8172], "mean@8": [0.77, 0.7, 0.8]},
    "steps": 100,
    "tokens": 812_345,
    "seconds": 61.4,
    "interrupted": False,
}


def test_a_run_ends_with_before_and_after_its_size_and_the_way_on():
    assert summary_text(SUMMARY, Path("runs/x")).splitlines() == [
        "pass@1  0.240 [0.192, 0.295] -> 0.770 [0.715, 0.817]",
        "mean@8  0.240 [0.200, 0.280] -> 0.770 [0.700, 0.800]",
        "100 steps, 812k tokens, 61 s; saved in runs/x",
        "measure it: melior eval runs/x    use it: runs/x/model",
    ]


def test_a_run_that_was_given_objects_is_opened_from_python():
    lines = summary_text(SUMMARY, Path("runs/x"), ["data", "reward"]).splitlines()
    assert lines[-1] == 'measure it: melior.evaluate("runs/x", data=..., reward=...)    use it: runs/x/model'
    stopped = SUMMARY | {"after": None, "interrupted": True}
    last = summary_text(stopped, Path("runs/x"), ["data"]).splitlines()[-1]
    assert last == 'go on: melior.train(resume="runs/x", data=...)'
    unmeasured = SUMMARY | {"before": {}, "after": None, "steps": 1}
    assert summary_text(unmeasured, Path("runs/x")).splitlines() == [
        "1 step, 812k tokens, 61 s; saved in runs/x",
        "measure it: melior eval runs/x --data …    use it: runs/x/model",
    ]


def test_an_interrupted_run_says_how_to_go_on_and_an_evaluation_has_no_after():
    stopped = SUMMARY | {"after": None, "steps": 12, "interrupted": True}
    assert summary_text(stopped, Path("runs/x")).splitlines()[2:] == [
        "interrupted after 12 steps, 812k tokens, 61 s; saved in runs/x",
        "go on: melior train --resume runs/x",
    ]
    only = SUMMARY | {"after": SUMMARY["before"], "steps": 0, "tokens": 0.0}
    assert summary_text(only, Path("runs/x")).splitlines()[0] == "pass@1  0.240 [0.192, 0.295]"


def test_short_forms():
    assert [count_text(v) for v in (0, 950, 8120.0, 99_960, 812_345, 999_700, 1.3e6)] == [
        *("0", "950", "8.1k", "100k", "812k", "1.0M", "1.3M"),
    ]
    assert [time_text(v) for v in (0.04, 4.21, 61.4, 99.4, 99.6, 725, 11230)] == [
        *("0.0 s", "4.2 s", "61 s", "99 s", "1:40", "12:05", "3:07:10"),
    ]
    assert [number_text(v) for v in (0.0, 3, 0.12345, -12.34, 1e-5, 2e7, math.nan, None, math.inf)] == [
        *("0.000", "3", "0.123", "-12.3", "1.00e-05", "2.00e+07", "-", "-", "inf"),
    ]
    assert interval_text([0.5, None, None]) == "0.500" and interval_text([1.0, 0.5, math.nan]) == "1.000"
    assert figures_text({"score": 0.5, "pass@1": [0.5, 0.25, 0.75], "task": "lock"}).splitlines() == [
        "score   0.500",
        "pass@1  0.500 [0.250, 0.750]",
        "task    lock",
    ]

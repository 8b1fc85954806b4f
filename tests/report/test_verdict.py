"""The line on top says no more than the intervals do."""

from __future__ import annotations

import pytest

from melior.report.verdict import verdict

LOW, MIDDLE, HIGH = [0.2, 0.1, 0.3], [0.28, 0.2, 0.4], [0.9, 0.8, 0.95]
MOVED = [{"step": 1, "skipped": 0.0}]


@pytest.mark.parametrize(
    ("before", "after", "word", "kind"),
    [
        (LOW, HIGH, "Better", "good"),
        (HIGH, LOW, "Worse", "bad"),
        (LOW, MIDDLE, "Not settled", "open"),
        (MIDDLE, LOW, "Not settled", "open"),
        (LOW, LOW, "No change", "open"),
    ],
)
def test_better_and_worse_need_intervals_that_lie_apart(before, after, word, kind):
    found = verdict({"before": {"score": 0, "pass@1": before}, "after": {"score": 0, "pass@1": after}}, MOVED)
    assert (found.word, found.kind) == (word, kind)
    assert "pass@1" in found.text


def test_a_run_that_is_not_at_its_end_is_not_judged():
    assert verdict({}, MOVED).word == "Not finished"
    assert verdict({"before": {"pass@1": LOW}, "after": None, "steps": 3, "interrupted": True}, MOVED).text == (
        "Stopped after 3 steps, before the final evaluation."
    )


def test_steps_that_moved_nothing_come_first():
    summary = {"before": {"pass@1": LOW}, "after": {"pass@1": LOW}}
    assert verdict(summary, [{"step": 1, "skipped": 1.0}, {"step": 2, "skipped": 1.0}]).word == "Nothing was learnt"
    assert verdict(summary, [{"step": 1, "skipped": 1.0}, {"step": 2, "skipped": 0.0}]).word == "No change"


def test_without_an_interval_nothing_is_claimed():
    summary = {"before": {"score": 0.1, "return": [1.0, None, None]}, "after": {"return": [9.0, None, None]}}
    assert verdict(summary, MOVED).word == "Not measured"

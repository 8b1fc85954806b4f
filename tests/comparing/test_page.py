"""The page of a comparison: whole, self-contained, and no bolder than its intervals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from made_comparisons import made_data, made_outcomes, write_comparison
from melior.cli import run as command
from melior.comparing import page as pages
from melior.comparing.curves import charts, mean_series
from melior.comparing.matrix import improvement_interval, matrix
from melior.comparing.page import page_of_comparison, write_page

MANY = ("grpo", "reinforce", "rloo", "remax", "dr-grpo", "dapo", "gspo", "<b>evil</b>")


def made(folder: Path, labels: tuple[str, ...] = MANY, **more) -> Path:
    return write_comparison(folder, made_data(made_outcomes(labels, folder), **more))


def test_it_holds_everything_and_loads_nothing(tmp_path):
    tuned = {"grpo": {"tried": [{"choice": ["settings.lr=0.1"], "mean": 0.4}], "chosen": ["settings.lr=0.1"]}}
    text = write_page(made(tmp_path, tuning=tuned)).read_text()
    assert "default-src 'none'" in text and "src=" not in text and "url(" not in text and len(text) < 1_000_000
    assert "<b>evil" not in text and "&lt;b&gt;evil" in text
    for said in (
        "Every pair",
        "Held equal",
        "n: grpo 8",
        "What it cost",
        "settings.lr=0.1",
        "melior compare grpo dapo",
    ):
        assert said in text
    assert "cannot go below p = 0.0625" in text and "better than grpo: " in text


def test_the_command_writes_it(tmp_path, capsys):
    assert command(["report", str(made(tmp_path, ("grpo", "rloo")))]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "comparison.html")


def test_unfinished_comparisons_have_a_page(tmp_path):
    outcomes = made_outcomes(("grpo", "rloo"), tmp_path, seeds=1)
    assert "too few runs finished" in write_page(write_comparison(tmp_path, made_data(outcomes))).read_text()


def test_a_page_that_cannot_be_made_fails_no_comparison(tmp_path, monkeypatch):
    def broken(out: Path) -> Path:
        raise RuntimeError("no page")

    monkeypatch.setattr(pages, "write_page", broken)
    said: list[str] = []
    assert page_of_comparison(tmp_path, said.append) is None and "no page" in said[0]


def test_improvement_counts_ties_half_and_its_interval_holds_it():
    assert improvement_interval([1, 2, 3], [1, 2, 3])[0] == 0.5
    value, low, high = improvement_interval([1, 3, 5], [2, 2, 4])
    assert value == pytest.approx(5 / 9) and low < value < high
    assert improvement_interval([2, 3], [0, 1]) == (1.0, 1.0, 1.0)
    assert math.isnan(improvement_interval([1], [0])[1]) and math.isnan(improvement_interval([], [0])[0])


def test_the_matrix_mirrors_itself():
    (_, first), (_, second) = matrix({"a": [1, 3, 5], "b": [2, 2, 4]})
    assert first[0] is None and second[1] is None
    assert first[1].better[0] + second[0].better[0] == 1 and first[1].better[1] + second[0].better[2] == 1
    assert first[1].level == -second[0].level


def test_more_methods_than_colors_are_drawn_beside_the_first_on_one_scale():
    runs = {name: [[(0, 0.0), (4, 0.1 * k)], [(0, 0.0), (4, 0.1 * k + 0.1)]] for k, name in enumerate("abcdefgh")}
    found = charts("Score", "", "score", "tokens", runs)
    assert len(found) == 7 and len({chart.y_ticks for chart in found}) == 1
    assert found[0].header == ("tokens", "a", "b")
    assert len(charts("Score", "", "score", "step", {"a": runs["a"], "b": runs["b"]})) == 1


def test_curves_measured_at_different_places_meet_on_lines_between():
    series = mean_series("a", [[(0, 0.0), (10, 1.0)], [(0, 0.0), (20, 2.0)]])
    assert series.steps[-1] == 10 and series.values[-1] == pytest.approx(1.0)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed, so pages are not looked at")
def test_it_is_readable_on_desk_and_phone_light_and_dark(tmp_path):
    page = write_page(made(tmp_path / "a"))
    audit = (Path(__file__).parents[1] / "report" / "audit.js").read_text()
    browser = Browser(tmp_path / "profile")
    try:
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                browser.open(page, width, scheme=scheme)
                browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
                assert browser.evaluate(audit) == []
                assert browser.requests == [] and browser.complaints == []
    finally:
        browser.close()

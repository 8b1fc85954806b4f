"""Names of other trainers are ours, and the page says the same as the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from melior.inspect.logs import names

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reading-other-logs.md").read_text()
METRICS = (DOCS / "metrics.md").read_text()


def rows(heading):
    """The cells of the table under a heading of the page, code marks removed."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def shown(figure):
    theirs = f"`{figure.theirs}`" + (f" + `{figure.plus}`" if figure.plus else "")
    return [theirs, f"`{figure.ours}`", figure.note]


@pytest.mark.parametrize(("heading", "table"), [("TRL", names.TRL), ("verl", names.VERL)])
def test_the_page_lists_every_figure_and_no_other(heading, table):
    assert rows(heading) == [shown(figure) for figure in table]


def test_the_page_explains_the_names_that_only_others_have():
    assert rows("Further names") == [[f"`{name}`", text] for name, text in names.FURTHER.items()]


@pytest.mark.parametrize("theirs", [*names.TRL_SETTINGS.items(), *names.VERL_SETTINGS.items()])
def test_the_page_lists_every_setting(theirs):
    assert f"`{theirs[0]}` → `{theirs[1]}`" in PAGE


@pytest.mark.parametrize("figure", [*names.TRL, *names.VERL], ids=lambda figure: figure.theirs)
def test_every_name_of_ours_is_explained_somewhere(figure):
    general = {"reward/score": "reward/NAME"}.get(figure.ours, figure.ours.removeprefix("eval/"))
    general = re.sub(r"mean@N", "mean@n", re.sub(r"pass@(K|1)", "pass@k", general))
    assert f"`{general}`" in METRICS or figure.ours in names.FURTHER


@pytest.mark.parametrize("name", sorted(names.OURS))
def test_what_passes_as_melior_s_own_is_a_metric_of_melior(name):
    assert f"`{name}`" in METRICS


def test_two_names_of_one_figure_are_no_quarrel():
    known, unknown = names.verl({"perf/time_per_step": 2.0, "timing_s/step": 1.0})
    assert known == {"step_seconds": 1.0} and unknown == set()


def test_what_is_no_number_is_neither_known_nor_missed():
    assert names.trl({"loss": "high", "mine": None, "reward": 1}) == ({"reward": 1.0}, set())


def test_names_that_begin_alike_are_one_entry():
    many = [f"train/x/{n}" for n in range(4)]
    assert names.gathered([*many, "b", "train/y"]) == ("b", "train/x/... (4 figures)", "train/y")

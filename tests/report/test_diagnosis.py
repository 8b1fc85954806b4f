"""The doctor's section of a report."""

from __future__ import annotations

import re

import pytest

from melior.report.diagnosis import section
from melior.report.page import write_report
from runs import lock_run

SICK = "def nothing(completions, **columns):\n    return [0.5] * len(completions)\n"


@pytest.fixture(scope="module")
def sick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis")
    (folder / "dead.py").write_text(SICK)
    return lock_run(folder / "sick", "grpo", steps=8, reward=f"{folder / 'dead.py'}:nothing", report=False).path


def test_the_page_says_what_is_wrong(sick):
    page = write_report(sick).read_text()
    (found,) = re.findall(r'<section id="diagnosis".*?</section>', page, re.S)
    assert "<strong>Ill.</strong>" in found and "Dead reward" in found
    assert "<code>settings.reward</code>" in found and "`" not in found
    assert "steps 1 to 8" in found
    assert '<a href="#diagnosis">' in page


def test_advice_has_its_names_apart(sick):
    told = section(sick)
    assert told is not None and told.kind == "bad" and told.text.startswith("One finding")
    names = [text for advice in told.told[0].advice for text, named in advice if named]
    assert names[0] == "melior check" and "settings.answer_column" in names


def test_a_short_run_cannot_be_told(tmp_path):
    told = section(lock_run(tmp_path / "short", report=False).path)
    assert told is not None and (told.word, told.kind) == ("Cannot tell", "open")


def test_what_no_reader_knows_has_no_section(tmp_path):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    assert section(tmp_path) is None

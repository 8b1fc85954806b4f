"""docs/settings.md says what the settings say, and leaves none out."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from melior.records.settings_page import PARTS, meanings, page
from melior.settings import RunSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_that_of_the_settings():
    assert PAGE.read_text() == page(), "run: python -m melior.records.settings_page > docs/settings.md"


@pytest.mark.parametrize("kind", [kind for kind, _, _ in PARTS])
def test_every_setting_is_explained_once(kind):
    explained = [name for names, _ in meanings(kind) for name in names]
    own = {f.name for f in fields(kind)} - ({f.name for f in fields(RunSettings)} if kind is not RunSettings else set())
    assert len(explained) == len(set(explained)) and set(explained) == own


def test_defaults_that_differ_in_an_environment_stand_there():
    control = page().partition("## Runs in environments")[2]
    assert re.search(r"\| `lr` \| `0\.0003` \| as above \|", control)
    assert "| `top_p`, `top_k` | `1.0`, `0` |" in page()

"""Templates, in which whatever is filled in stays text."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.loops.summary import interval_text
from melior.report.charts import plain_number
from melior.report.completions import printable

MISSING = "no report was written: jinja2 is not installed (pip install 'melior[report]')"
FOLDER = Path(__file__).parent / "templates"


def can_render() -> bool:
    """Whether what pages are made with is installed."""
    return importlib.util.find_spec("jinja2") is not None


@functools.cache
def template(name: str) -> Any:
    """A template of this package, compiled once, which takes longer than to fill it in.

    Raises:
        UserError: jinja2 is not installed.
    """
    if not can_render():
        raise UserError(MISSING)
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,  # completions are anything that a model may write
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"printable": printable, "number": plain_number, "figure": interval_text}
    return templates.get_template(name)

"""The report at the end of a run, which must never be what a run fails of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from melior.report.page import write_report
from melior.report.rendering import MISSING, can_render


def report_of_run(run: Path, say: Callable[[str], None]) -> Path | None:
    """Write the report of a run that ended; None, and a sentence to `say`, where there is none to be had."""
    if not can_render():
        say(MISSING)
        return None
    try:
        return write_report(run)
    except Exception as error:  # whatever a run left behind, what it trained is safe and more than its page
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"the report could not be written ({reason}); the run itself is complete: melior report {run}")
        return None

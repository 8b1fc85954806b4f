"""`melior report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from melior.errors import UserError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report")(report)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or a comparison's; may be going on")],
    out: Annotated[Path | None, typer.Option(help="The file, of one run; RUN/report.html when omitted")] = None,
    picture: Annotated[Path | None, typer.Option(help="An .svg of the runs' held-out curves, and no pages")] = None,
) -> None:
    """Write a run's report: one page with scores, curves, completions, method and settings.

    Of a comparison's folder it is the page of the comparison.
    """
    if picture is not None:
        from melior.report.picture import write_picture

        if out is not None:
            raise UserError("--picture names its own file; leave out --out")
        typer.echo(write_picture(runs, picture))
        return
    from melior.report.page import write_report

    if out is not None and len(runs) > 1:
        raise UserError(f"--out names one file, and there are {len(runs)} runs; leave it out")
    for run in runs:
        typer.echo(_comparison(run, out) if (run / "comparison.json").is_file() else write_report(run, out))


def _comparison(folder: Path, out: Path | None) -> Path:
    from melior.comparing.page import write_page

    return write_page(folder, out)

"""`melior doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melior.errors import UserError

if TYPE_CHECKING:
    from melior.inspect.doctor import Check, Diagnosis

Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor")(doctor)


def doctor(
    run: Annotated[Path | None, typer.Argument(help="Run folder, or the logs of TRL, verl or wandb")] = None,
    as_json: Annotated[bool, Option("--json", help="JSON; with --watch one object a line")] = False,
    watch: Annotated[bool, Option("--watch", help="Follow a run until it ends, or Ctrl-C")] = False,
    every: Annotated[float, Option(min=0.1, help="Seconds between looks with --watch")] = 5.0,
    set_: Annotated[list[str] | None, Option("--set", help="FINDING.THRESHOLD=VALUE")] = None,
    definitions: Annotated[bool, Option("--definitions", help="What each finding means; no run needed")] = False,
) -> None:
    """Say what is wrong with a run, by which evidence, and what to try.

    Exit code: 0 healthy, 1 ill, 4 cannot tell; 2 a mistake in the request, 3 a damaged log.
    """
    from melior.inspect.doctor import checks_with, examine
    from melior.inspect.doctor.catalogue import definitions as page
    from melior.inspect.logs import read

    checks = checks_with(set_ or ())
    if definitions:
        typer.echo(page(checks).rstrip())
        return
    if run is None:
        raise UserError("which run? Write `melior doctor RUN`; `melior doctor --definitions` tells what is looked for")
    if watch:
        found = _watched(run, checks, every, as_json)
    else:
        found = examine(read(run), checks)
        typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else found.text())
    raise typer.Exit(found.exit_code)


def _watched(run: Path, checks: tuple[Check, ...], every: float, as_json: bool) -> Diagnosis:
    from melior.inspect.doctor.watching import changes, watch

    def tell(now: Diagnosis, before: Diagnosis | None) -> None:
        # Flushed, since whoever reads a pipe is to see it when it is found.
        print(json.dumps(now.as_dict()) if as_json else f"{changes(now, before)}\n", flush=True)

    found = watch(run, tell, checks, every)
    if not as_json:
        typer.echo(found.headline())
    return found

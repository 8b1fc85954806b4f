"""`melior experiment`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melior.errors import RunError, UserError
from melior.lazy_torch import use_real

if TYPE_CHECKING:
    from melior.comparing.experiments import Named, Ran

Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("experiment")(experiment)


def experiment(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME…", help="Which; see --list")] = None,
    all_: Annotated[bool, Option("--all", help="All of them, the cheapest first")] = False,
    list_: Annotated[bool, Option("--list", help="Their cost, what has been run, their questions")] = False,
    folder: Annotated[Path, Option(help="Where they are written down")] = Path("benchmarks/experiments"),
    runs: Annotated[Path, Option(help="Where their runs go")] = Path("runs/experiments"),
    results: Annotated[Path, Option(help="The page that gets a row for each")] = Path("docs/results.md"),
    jobs: Annotated[int, Option(help="Runs side by side, one thread each")] = 1,
    quiet: Annotated[bool, Option("--quiet", help="Print nothing")] = False,
) -> None:
    """Run an experiment that is written down with what it expects, and write what came of it into the results.

    Runs that have finished are not repeated, so the same command goes on after an interruption.
    Exit code: 0 done, whatever the verdict; 3 when runs crashed; 130 interrupted.
    """
    if list_ + all_ + bool(names) != 1:
        raise UserError("which experiment? Give names, --all or --list")
    use_real()
    from melior.comparing.experiments import chosen, find_experiments

    found = find_experiments(folder, runs)
    if list_:
        typer.echo(listing(found))
        return
    wanted = found if all_ else chosen(found, names or [])
    if not quiet and len(wanted) > 1:
        minutes = sum(each.experiment.minutes for each in wanted)
        typer.echo(f"{len(wanted)} experiments, about {minutes:.0f} CPU minutes in all", err=True)
    aside = [] if folder == Path("benchmarks/experiments") else ["--folder", str(folder)]
    failed = _run_each(wanted, results, jobs, quiet, aside)
    if failed:
        raise RunError(f"runs failed in {', '.join(failed)}; the same command goes on")


def listing(found: Sequence[Named]) -> str:
    """A line for each: name, CPU minutes, runs done, question."""
    rows = [("experiment", "CPU min", "runs", "question")]
    for each in found:
        done, planned = each.runs
        rows.append((each.name, f"{each.experiment.minutes:g}", f"{done}/{planned}", each.experiment.question))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
    return "\n".join([*lines, f"in all {sum(each.experiment.minutes for each in found):g} CPU minutes"])


# ---- inside


def _run_each(wanted: Sequence[Named], results: Path, jobs: int, quiet: bool, aside: Sequence[str]) -> list[str]:
    """One after the other; the names of those in which runs failed."""
    from melior.comparing.experiments import run_experiment

    failed = []
    for each in wanted:
        command = shlex.join(["melior", "experiment", each.name, *aside])
        if not quiet:
            typer.echo(f"{each.name}: {each.experiment.question} (about {each.experiment.minutes:g} CPU min)", err=True)
        try:
            ran = run_experiment(each, jobs=jobs, quiet=quiet, results=results, command=command)
        except RunError as error:
            typer.echo(f"{each.name}: {error}", err=True)
            failed.append(each.name)
            continue
        if not quiet:
            typer.echo(_told(ran, results))
        if any(cell["status"] == "crashed" for cell in ran.compared.crashed):
            failed.append(each.name)
    return failed


def _told(ran: Ran, results: Path) -> str:
    return f"{ran.compared}\n\n{ran.text()}\nrow in {results}; runs in {ran.compared.path}"

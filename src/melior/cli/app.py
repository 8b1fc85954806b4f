"""The typer application and the list of its commands."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

# One module a command group, in the order of the help, and the commands that it adds. Each has `register(app)` and
# imports heavy things in its bodies.
COMMANDS = {
    "melior.cli.train": ("train", "check"),
    "melior.cli.compare": ("compare",),
    "melior.cli.experiment": ("experiment",),
    "melior.cli.evaluate": ("eval",),
    "melior.cli.report": ("report",),
    "melior.cli.rollouts": ("rollouts",),
    "melior.cli.doctor": ("doctor",),
    "melior.cli.export": ("export",),
    "melior.cli.methods": ("methods", "show"),
    "melior.cli.diff": ("diff",),
}


def build(first: str = "") -> typer.Typer:
    """The command: only what the word `first` asks for where that is one of its commands, else all of it."""
    app = typer.Typer(
        name="melior",
        help="Policy optimization: every published method as one readable record of parts.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    asked = [module for module, names in COMMANDS.items() if first in names]
    for module in asked or COMMANDS:
        import_module(module).register(app)
    return app


def _top(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=lambda on: _version(on), is_eager=True),
    ] = False,
) -> None:
    """Policy optimization: every published method as one readable record of parts."""


def _version(wanted: bool) -> bool:
    if wanted:
        from melior import __version__

        print(f"melior {__version__}")
        raise typer.Exit()
    return wanted

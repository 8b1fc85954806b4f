"""The typer application and the list of its commands."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

# One module a command group, in the order of the help. Each has `register(app)` and imports heavy things in its bodies.
COMMANDS = (
    "melior.cli.train",
    "melior.cli.evaluate",
    "melior.cli.report",
    "melior.cli.rollouts",
    "melior.cli.doctor",
    "melior.cli.export",
    "melior.cli.methods",
    "melior.cli.diff",
)


def build() -> typer.Typer:
    """The whole command."""
    app = typer.Typer(
        name="melior",
        help="Policy optimization: every published method as one readable record of parts.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for module in COMMANDS:
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

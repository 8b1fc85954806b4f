"""`melior train` and `melior check`: the same options, one of them looks only."""

from __future__ import annotations

import traceback
from typing import Any

import typer

from melior.cli.options import with_options
from melior.errors import MeliorError
from melior.lazy_torch import use_real


@with_options()
def train(given: dict[str, Any]) -> None:
    """Train a policy. With no option: the bundled model learns arithmetic by GRPO.

    Every other field of the method and of the settings: --set PATH=VALUE.
    """
    use_real()
    from melior.api import train as start

    try:
        summary = start(**given).summary
    except (MeliorError, BrokenPipeError):
        raise
    except Exception as error:  # of a part or a callback of the user's, who needs the traceback
        traceback.print_exc()
        raise typer.Exit(MeliorError.exit_code) from error
    if summary["interrupted"]:
        raise typer.Exit(130)


@with_options()
def check(given: dict[str, Any]) -> None:
    """Look before you spend: a prompt, a sample, its mask and rewards, the sizes."""
    use_real()
    from melior.api import check as look

    typer.echo(look(**given))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("train")(train)
    app.command("check")(check)

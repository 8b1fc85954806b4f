"""`melior diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from melior.records.differences import Side


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A method, a file's record, or a run folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Show where two methods or two runs differ."""
    from melior.records.differences import diff

    print(diff(_side(a), _side(b)))


def _side(spec: str) -> Side:
    from pathlib import Path

    from melior.records.catalogue import lookup, resolve
    from melior.records.differences import Side

    path = Path(spec)
    if lookup(spec) is None and (path.is_dir() or path.suffix in (".yaml", ".yml")):
        from melior.records.config import read_config

        config = read_config(path)
        return Side(spec, config.record, config.settings)
    return Side(spec, resolve(spec))

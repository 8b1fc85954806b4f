"""`melior methods` and `melior show`."""

from __future__ import annotations

import json
import shutil
from typing import Annotated, Any

import typer

from melior.errors import UserError, near


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command()(methods)
    app.command()(show)


def methods(
    track: Annotated[str, typer.Option(help="Only this track.")] = "",
    search: Annotated[str, typer.Option(help="Only methods that mention these words.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the page docs/methods.md.")] = False,
) -> None:
    """List the methods of the catalogue."""
    from melior.records.catalogue import entries
    from melior.records.describe import matches, page, row, table

    known = entries().values()
    tracks = {each.track for each in known}
    if track and track not in tracks:
        raise UserError(f"there is no track '{track}'{near(track, tracks)}")
    found = [each for each in known if (not track or each.track == track) and matches(each, search)]
    if as_json:
        print(json.dumps([row(each) for each in found], indent=1, ensure_ascii=False))
    elif markdown:
        print(page(found), end="")
    else:
        print(table(found, _width()))


def show(
    method: Annotated[str, typer.Argument(help="A name, mine.py:NAME, package.module:NAME, or a run folder.")],
    as_yaml: Annotated[bool, typer.Option("--yaml", help="The record as YAML, to edit and train.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="What --set can change, with its values.")] = False,
) -> None:
    """Explain a method: problem, move, formula, parts and values."""
    from melior.method import Entry
    from melior.records.catalogue import find

    found = find(method)
    record = found.record if isinstance(found, Entry) else found
    if as_yaml:
        from melior.records.serialize import to_yaml

        print(to_yaml(record), end="")
    elif paths:
        _print_paths(record)
    else:
        from melior.records.describe import describe, describe_record

        width = min(_width(), 110)
        print(describe(found, width) if isinstance(found, Entry) else describe_record(record, width))


def _print_paths(record: Any) -> None:
    from melior.records.brief import brief
    from melior.records.overrides import paths

    for path, value in paths(record).items():
        print(f"{path} = {brief(value)}")


def _width() -> int:
    return shutil.get_terminal_size((120, 40)).columns

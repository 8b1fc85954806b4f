"""`melior export`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from melior.lazy_torch import use_real

Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("export")(export)


def export(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or model folder")],
    merge: Annotated[bool, Option("--merge", help="LoRA merged into a plain transformers folder")] = False,
    gguf: Annotated[bool, Option("--gguf", help="A GGUF file, for llama.cpp")] = False,
    checkpoint: Annotated[str | None, Option(help="A step, or best; the newest when omitted")] = None,
    out: Annotated[Path | None, Option(help="RUN/export-merged or RUN/model.gguf when omitted")] = None,
    dtype: Annotated[str, Option(help="Of the GGUF file: f32, f16 or bf16")] = "f16",
    force: Annotated[bool, Option("--force", help="Replace what is there")] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON object a line")] = False,
) -> None:
    """Write a trained language model for other programs; what was written is loaded again and compared."""
    use_real()
    from melior.exporting import export as write

    found = write(model, merge=merge, gguf=gguf, checkpoint=checkpoint, out=out, dtype=dtype, force=force)
    for each in found:
        typer.echo(json.dumps(asdict(each), default=str) if as_json else each.sentence())

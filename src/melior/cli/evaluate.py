"""`melior eval`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from melior.cli.train import whole_numbers
from melior.lazy_torch import use_real

Option = typer.Option


def evaluate(
    model: Annotated[str, typer.Argument(help="Run folder, model folder, hub id, GGUF file, or bundled")],
    k: Annotated[str | None, Option(help="The k of pass@k, such as 1,8")] = None,
    task: Annotated[str | None, Option(help="Bundled task")] = None,
    data: Annotated[str | None, Option(help="JSONL, Parquet, or datasets id")] = None,
    prompt_column: Annotated[str | None, Option(help="Column that holds the prompt")] = None,
    prompt_template: Annotated[str | None, Option(help="Such as 'Q: {question} A:'")] = None,
    answer_column: Annotated[str | None, Option(help="Column built-in rewards compare with")] = None,
    reward: Annotated[list[str] | None, Option(help="FILE.py:NAME, module:NAME, numeric, math, …")] = None,
    reward_workers: Annotated[int | None, Option(help="Processes for rewards; 0 in process")] = None,
    prompts: Annotated[int | None, Option(help="Prompts at most")] = None,
    max_tokens: Annotated[int | None, Option(help="Longest completion")] = None,
    temperature: Annotated[float | None, Option(help="Of the sampler")] = None,
    top_p: Annotated[float | None, Option(help="Least probability mass sampled from")] = None,
    top_k: Annotated[int | None, Option(help="Likeliest tokens sampled from; 0 is off")] = None,
    system: Annotated[str | None, Option(help="System message (chat models)")] = None,
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float64")] = None,
    device: Annotated[str | None, Option(help="auto, cpu, cuda, mps")] = None,
    seed: Annotated[int | None, Option(help="Of all randomness")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON")] = False,
) -> None:
    """pass@k and mean@k of a model or a finished run on held-out rows, with 95 % intervals."""
    given: dict[str, Any] = dict(locals())
    del given["as_json"]
    settings = {
        key: value for key, value in given.items() if value is not None and key not in ("model", "k", "prompts")
    }
    if k is not None:
        settings["eval_k"] = whole_numbers(k, "k")
    if prompts is not None:
        settings["eval_prompts"] = prompts
    use_real()
    from melior.api import evaluate as measure
    from melior.loops.summary import figures_text

    figures = measure(model, **settings)
    typer.echo(json.dumps(figures) if as_json else figures_text(figures))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("eval")(evaluate)

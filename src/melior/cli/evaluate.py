"""`melior eval`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from melior.cli.options import with_options
from melior.lazy_torch import use_real

Option = typer.Option
# Options that mean the same as in training.
SHARED = (
    "task", "env", "data", "eval_data", "prompt_column", "prompt_template", "answer_column", "reward", "reward_weight",
    "reward_workers", "max_tokens", "temperature", "stop", "system", "prefill", "chat", "template_arg", "dtype",
    "device", "sampler", "seed", "set_",
)  # fmt: skip


def arguments(
    model: Annotated[str, typer.Argument(help="Run folder, model folder, hub id, GGUF file, or bundled")],
    eval_k: Annotated[str | None, Option("--k", help="The k of pass@k, such as 1,8")] = None,
    eval_prompts: Annotated[int | None, Option("--prompts", help="Prompts at most")] = None,
    top_p: Annotated[float | None, Option(help="Least probability mass sampled from")] = None,
    top_k: Annotated[int | None, Option(help="Likeliest tokens sampled from; 1 is greedy, 0 is off")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON")] = False,
) -> dict[str, Any]:
    """What only `melior eval` has, and what is called otherwise there."""
    return dict(locals())


@with_options(arguments, SHARED)
def evaluate(given: dict[str, Any]) -> None:
    """pass@k and mean@k of a model or a finished run on held-out rows, with 95 % intervals."""
    use_real()
    from melior.api import evaluate as measure
    from melior.loops.summary import figures_text

    as_json = given.pop("as_json")
    figures = measure(**given)
    typer.echo(json.dumps(figures) if as_json else figures_text(figures))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("eval")(evaluate)

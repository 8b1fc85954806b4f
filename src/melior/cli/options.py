"""The options of `melior train`, which `melior check` has too and `melior eval` some of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from melior.errors import UserError

Option = typer.Option


def arguments(
    method: Annotated[str | None, typer.Argument(help="Name, FILE.py:NAME, module:NAME; grpo when omitted")] = None,
    steps: Annotated[int | None, Option(help="Batches of rollouts; 0 evaluates only")] = None,
    seed: Annotated[int | None, Option(help="Of all randomness")] = None,
    model: Annotated[str | None, Option(help="Folder, hub id, GGUF file, bundled, table")] = None,
    task: Annotated[str | None, Option(help="A task: arithmetic, reasoning-gym:NAME, …")] = None,
    env: Annotated[str | None, Option(help="Gymnasium id or FILE.py:FUNCTION (control)")] = None,
    data: Annotated[str | None, Option(help="JSONL, Parquet, or datasets id")] = None,
    prompt_column: Annotated[str | None, Option(help="Column that holds the prompt")] = None,
    prompt_template: Annotated[str | None, Option(help="Such as 'Q: {question} A:'")] = None,
    answer_column: Annotated[str | None, Option(help="Column built-in rewards compare with")] = None,
    reward: Annotated[list[str] | None, Option(help="FILE.py:NAME, module:NAME, numeric, math, …")] = None,
    reward_weight: Annotated[list[float] | None, Option(help="One for each --reward")] = None,
    reward_workers: Annotated[int | None, Option(help="Processes for rewards; 0 in process")] = None,
    eval_data: Annotated[str | None, Option(help="Held-out rows")] = None,
    eval_fraction: Annotated[float | None, Option(help="Share of --data held out")] = None,
    eval_every: Annotated[int | None, Option(help="Steps between evaluations")] = None,
    eval_prompts: Annotated[int | None, Option(help="Prompts of an evaluation; 0 none")] = None,
    eval_k: Annotated[str | None, Option(help="The k of pass@k, such as 1,8")] = None,
    prompts: Annotated[int | None, Option(help="Prompts in a batch")] = None,
    n: Annotated[int | None, Option("-n", "--n", help="Completions of each prompt")] = None,
    max_tokens: Annotated[int | None, Option(help="Longest completion")] = None,
    temperature: Annotated[float | None, Option(help="Of sampler, trainer and reference")] = None,
    # Refused in words by the library, unless nothing is trained; an unknown option would say less.
    top_p: Annotated[float | None, Option(hidden=True)] = None,
    top_k: Annotated[int | None, Option(hidden=True)] = None,
    stop: Annotated[list[str] | None, Option(help="Text that ends a completion")] = None,
    truncated: Annotated[str | None, Option(help="Cut-off completions: keep or mask")] = None,
    system: Annotated[str | None, Option(help="System message (chat models)")] = None,
    prefill: Annotated[str | None, Option(help="Text that completions start from")] = None,
    chat: Annotated[str | None, Option(help="Chat template: auto, always, never")] = None,
    template_arg: Annotated[list[str] | None, Option(help="KEY=VALUE for the chat template")] = None,
    lr: Annotated[float | None, Option(help="Learning rate")] = None,
    schedule: Annotated[str | None, Option(help="constant, linear or cosine")] = None,
    warmup: Annotated[int | None, Option(help="Steps of rising learning rate")] = None,
    optimizer: Annotated[str | None, Option(help="adamw or sgd")] = None,
    clip_grad: Annotated[float | None, Option(help="Largest gradient norm; 0 is off")] = None,
    sampler: Annotated[str | None, Option(help="local, vllm or a server's URL")] = None,
    lora: Annotated[int | None, Option(help="Rank of LoRA adapters; 0 is off")] = None,
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float64")] = None,
    device: Annotated[str | None, Option(help="auto, cpu, cuda, mps")] = None,
    rows_per_micro: Annotated[int | None, Option(help="Rows at once; 0 by memory")] = None,
    gradient_checkpointing: Annotated[bool | None, Option("--gradient-checkpointing", help="Time for memory")] = None,
    save_every: Annotated[int | None, Option(help="Steps between checkpoints")] = None,
    keep: Annotated[int | None, Option(help="Checkpoints kept")] = None,
    keep_best: Annotated[bool | None, Option("--keep-best", help="Keep the best one too")] = None,
    keep_rollouts: Annotated[int | None, Option(help="Steps of rollouts kept; 0 all, -1 none")] = None,
    log_to: Annotated[str | None, Option(help="tensorboard, wandb, trackio; by commas")] = None,
    no_report: Annotated[bool, Option("--no-report", help="Write no report.html")] = False,
    set_: Annotated[list[str] | None, Option("--set", help="PATH=VALUE: any field of method or settings")] = None,
    paper_settings: Annotated[bool, Option("--paper-settings", help="Adopt the paper's settings")] = False,
    tuned: Annotated[bool, Option("--tuned", help="Adopt settings published for --env")] = False,
    config: Annotated[Path | None, Option(help="Start from an earlier run's config.yaml")] = None,
    out: Annotated[Path | None, Option(help="Run folder; runs/NAME-TIME when omitted")] = None,
    name: Annotated[str, Option(help="Beginning of the run folder's name")] = "",
    resume: Annotated[Path | None, Option(help="Run folder to go on with")] = None,
    quiet: Annotated[bool, Option("--quiet", help="Print nothing")] = False,
) -> dict[str, Any]:
    """The options as they were given, by name."""
    return dict(locals())


def request(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `melior.train` that these options stand for."""
    renamed = {"reward_weight": "reward_weights", "template_arg": "template_args", "set_": "overrides"}
    given = {renamed.get(key, key): value for key, value in options.items() if value is not None and value != []}
    for key in ("reward_weights", "stop"):
        if key in given:
            given[key] = tuple(given[key])
    if given.pop("no_report", False):
        given["report"] = False
    if "eval_k" in given:
        given["eval_k"] = whole_numbers(given["eval_k"], "the k of pass@k")
    if "template_args" in given:
        given["template_args"] = dict(_pair(item) for item in given["template_args"])
    return given


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{name} must be whole numbers separated by commas, got {text!r}") from None


def _pair(item: str) -> tuple[str, Any]:
    from melior.records.yaml_text import load_yaml

    key, equals, value = item.partition("=")
    if not equals:
        raise UserError(f"template-arg must be KEY=VALUE, got {item!r}")
    return key, load_yaml(value)


def with_options(
    own: Callable[..., dict[str, Any]] | None = None, shared: Sequence[str] = ()
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Gives a command the options above: all of them, or those of `own` and of the above those named in `shared`."""
    options = _parameters(arguments)
    if own is not None:
        options = {**_parameters(own), **{name: options[name] for name in shared}}

    def decorate(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            command(request(given))

        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: option.annotation for name, option in options.items()}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    return {
        name: option.replace(annotation=hints[name]) for name, option in inspect.signature(function).parameters.items()
    }

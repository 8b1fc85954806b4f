"""`melior compare`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from melior.cli.options import whole_numbers, with_options
from melior.errors import UserError
from melior.lazy_torch import use_real

Option = typer.Option
# Options that mean the same as in training.
SHARED = (
    "model", "task", "env", "data", "prompt_column", "prompt_template", "answer_column", "reward", "reward_weight",
    "reward_workers", "eval_data", "eval_fraction", "eval_every", "eval_prompts", "eval_k", "prompts", "n",
    "max_tokens", "temperature", "stop", "truncated", "system", "prefill", "chat", "template_arg", "lr", "schedule",
    "warmup", "optimizer", "clip_grad", "lora", "dtype", "device", "rows_per_micro", "save_every", "keep_rollouts",
    "set_", "paper_settings", "quiet",
)  # fmt: skip
SEVERAL = ("--cross", "--of")


def arguments(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD…", help="Names, FILE.py:NAME, or folders of finished runs")
    ] = None,
    seeds: Annotated[str, Option(help="How many, or which: 7,8,9")] = "5",
    steps: Annotated[int | None, Option(help="Batches of rollouts in every run")] = None,
    budget: Annotated[str | None, Option(help="tokens=NUMBER or seconds=NUMBER instead")] = None,
    grid: Annotated[list[str] | None, Option(help="PATH=A,B: each method at each; several multiply")] = None,
    cross: Annotated[list[str] | None, Option(help="Parts to exchange: --cross advantage objective")] = None,
    of: Annotated[list[str] | None, Option(help="among these methods: --of grpo rloo")] = None,
    tune: Annotated[list[str] | None, Option(help="PATH=A,B: each method takes its best")] = None,
    tune_seeds: Annotated[int, Option(help="Seeds of that, apart from --seeds")] = 2,
    equal_step_norm: Annotated[bool, Option("--equal-step-norm", help="Steps as long as the first method's")] = False,
    out: Annotated[Path | None, Option(help="Folder; comparisons/TIME when omitted")] = None,
    jobs: Annotated[int, Option(help="Runs side by side, one thread each")] = 1,
    resume: Annotated[Path | None, Option(help="Folder to go on with; the same command does too")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON in place of the table")] = False,
) -> dict[str, Any]:
    """What only `melior compare` has, and what is called otherwise there."""
    return dict(locals())


class WithSeveral(TyperCommand):
    """A command whose `--cross` and `--of` take all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Writes the option before each of its words, as click knows it."""
        return super().parse_args(ctx, spread(args))


def spread(words: Sequence[str]) -> list[str]:
    """`--of a b` -> `--of a --of b`; commas separate likewise."""
    found: list[str] = []
    option = ""
    for word in words:
        if word in SEVERAL:
            option = word
        elif word.startswith("-"):
            option = ""
            found.append(word)
        elif option:
            found += [piece for name in filter(None, word.split(",")) for piece in (option, name)]
        else:
            found.append(word)
    return found


@with_options(arguments, SHARED)
def compare(given: dict[str, Any]) -> None:
    """Which method is better, by how much: equal model, prompts, order, noise and budget, over seeds.

    The first-named is the one the others are measured against. Options of training hold for every run.

    Example: melior compare grpo --task countdown --grid aggregate=SequenceMean,TokenMean

    Exit code: 0 done, 3 when a run crashed (the others are still compared), 130 interrupted.
    """
    use_real()
    from melior.comparing import asked_again, compare_settings, default_out, run_comparison

    as_json, quiet, jobs = given.pop("as_json"), given.pop("quiet"), given.pop("jobs")
    resume, out = given.pop("resume", None), given.pop("out", None)
    if resume is not None:
        asked, command = asked_again(resume)
        found = run_comparison(asked, resume, {}, jobs, quiet, command)
    else:
        out = out or default_out()
        asked = compare_settings(**_request(given))
        if not quiet:
            typer.echo(f"comparison in {out}", err=True)
        found = run_comparison(asked, out, {}, jobs, quiet, _command(out))
    if as_json:
        typer.echo(json.dumps(found.data, indent=1))
    elif not quiet:
        typer.echo(f"{found}\nwritten to {found.path}; each run is in {found.path / 'cells'}")
    if any(cell["status"] == "crashed" for cell in found.crashed):
        raise typer.Exit(3)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare", cls=WithSeveral)(compare)


# ---- inside


def _request(given: dict[str, Any]) -> dict[str, Any]:
    text = given.pop("seeds")
    given["seeds"] = whole_numbers(text, "seeds") if "," in text else _count(text)
    if "budget" in given:
        given["budget"] = _budget(given["budget"])
    for name in ("grid", "tune"):
        given[name] = dict(_axis(item, name) for item in given.pop(name, ()))
    return given


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"seeds must be a number, such as 5, or a list, such as 7,8,9, got {text!r}")
    return int(text)


def _budget(text: str) -> tuple[str, float]:
    kind, _, amount = text.partition("=")
    sizes = {"k": 1e3, "M": 1e6, "G": 1e9}
    size = sizes.get(amount[-1:], 1.0)
    try:
        return kind, float(amount.rstrip("kMG") if size > 1 else amount) * size
    except ValueError:
        raise UserError(f"budget must be tokens=NUMBER or seconds=NUMBER, got {text!r}") from None


def _axis(item: str, option: str) -> tuple[str, tuple[str, ...]]:
    """(path, values) of PATH=A,B; commas inside brackets belong to a value."""
    path, equals, text = item.partition("=")
    if not equals or not path or not text:
        raise UserError(f"--{option} must be PATH=VALUE,VALUE, got {item!r}")
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if "" in values or len(set(values)) < len(values):
        raise UserError(f"--{option} {path} needs different values between its commas, got {text!r}")
    return path, tuple(values)


def _command(out: Path) -> str:
    """The command that was typed, with the folder that was chosen."""
    if sys.argv[1:2] != ["compare"]:
        return shlex.join(["melior", "compare", "--resume", str(out)])
    named = any(word == "--out" or word.startswith("--out=") for word in sys.argv)
    return shlex.join(["melior", *sys.argv[1:], *([] if named else ["--out", str(out)])])

"""`melior rollouts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from melior.errors import UserError

if TYPE_CHECKING:
    from melior.report.completions import Completion, Rollouts

Option = typer.Option


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("rollouts")(rollouts)


def rollouts(
    run: Annotated[Path, typer.Argument(help="Run folder")],
    step: Annotated[int | None, Option(help="Which step; the last one kept when omitted")] = None,
    best: Annotated[int | None, Option(min=0, help="So many of highest reward")] = None,
    worst: Annotated[int | None, Option(min=0, help="So many of lowest reward")] = None,
    tokens: Annotated[bool, Option("--tokens", help="Every token with its figures")] = False,
    learner: Annotated[str, Option(help="Whose, where a run has several")] = "policy",
    as_json: Annotated[bool, Option("--json", help="One JSON object a line")] = False,
) -> None:
    """Read a step's best and worst completions; three of each when neither is asked for."""
    from melior.report.completions import read_completions
    from melior.storage.folder import RunFolder
    from melior.storage.rollouts import rollout_learners, rollout_steps

    path = RunFolder.view(run).path
    whose = rollout_learners(path)
    if best is None and worst is None:
        best = worst = 3
    if step is None:
        kept = rollout_steps(path, learner)
        if not kept:
            there = f"; there are those of {', '.join(whose)}" if whose else ""
            raise UserError(f"{path / 'rollouts'} has no rollouts of '{learner}'{there}")
        step = kept[-1]
    found = read_completions(path, step, learner)
    chosen = [("best", i, each) for i, each in enumerate(found.best(best or 0), 1)]
    chosen += [("worst", i, each) for i, each in enumerate(found.worst(worst or 0), 1)]
    if as_json:
        for kind, place, each in chosen:
            typer.echo(json.dumps({"step": step, "learner": learner, **_row(kind, place, each, tokens)}))
        return
    typer.echo(_head(found))
    if len(whose) > 1:
        typer.echo(f"(of --learner {learner}; there are also {', '.join(name for name in whose if name != learner)})")
    for kind, place, each in chosen:
        typer.echo(f"\n{_told(kind, place, each)}")
        if tokens:
            typer.echo(_token_table(each))


def _head(found: Rollouts) -> str:
    from melior.loops.summary import number_text

    size = f"{len(found.rows)} completions of {found.groups} prompts"
    return f"step {found.step}{found.of_whom}: {size}, mean reward {number_text(found.mean_reward)}"


def _told(kind: str, place: int, each: Completion) -> str:
    from melior.loops.summary import number_text

    facts = [f"reward {number_text(each.reward)}"]
    if each.advantage is not None:
        facts.append(f"advantage {each.advantage:+.3f}")
    facts += [f"{name} {number_text(value)}" for name, value in each.components.items()]
    facts.append(f"{each.length} tokens{', cut off' if each.truncated else ''}")
    lines = [f"{kind} {place}  {'  '.join(facts)}", *_block("prompt", each.prompt), *_block("completion", each.text)]
    return "\n".join([*lines, *(_block("answer", each.answer) if each.answer else [])])


def _block(name: str, text: str) -> list[str]:
    """The text as data: nothing in it acts on the terminal, and its lines stay apart from ours."""
    from melior.report.completions import printable

    first, *more = printable(text).expandtabs(4).split("\n")
    return [f"  {name:<11}{first}".rstrip(), *(f"  {'':<11}{line}".rstrip() for line in more)]


def _token_table(each: Completion) -> str:
    from melior.loops.summary import number_text
    from melior.report.completions import printable

    if not each.pieces:
        return "  tokens     not told apart: the run has no tokenizer that can be read"
    names = list(dict.fromkeys(name for piece in each.pieces for name in piece.values))
    rows = [["token", *names]]
    for piece in each.pieces:
        text = json.dumps(printable(piece.text), ensure_ascii=False)
        rows.append([text, *(number_text(piece.values.get(name)) for name in names)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(names) + 1)]
    return "\n".join(
        "  " + "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def _row(kind: str, place: int, each: Completion, tokens: bool) -> dict[str, Any]:
    names = ("prompt", "text", "answer", "reward", "advantage", "length", "truncated", "group", "components")
    row = {"kind": kind, "place": place, **{name: getattr(each, name) for name in names}}
    if tokens:
        row["tokens"] = [{"text": piece.text, "trained": piece.trained, **piece.values} for piece in each.pieces]
    return row

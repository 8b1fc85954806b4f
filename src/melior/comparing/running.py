"""A whole comparison: tune, run, read, judge, write down; the same call goes on where it was interrupted."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from melior.comparing.cells import Ended, run_cells, state_of
from melior.comparing.contenders import Contender
from melior.comparing.outcomes import Outcome, outcome_of
from melior.comparing.plan import Cell, Comparison, Plan, make_plan
from melior.comparing.result import as_dicts, common_end, held_equal, pairs_of, table_of
from melior.comparing.statistics import cautions, need_packages
from melior.comparing.table import table_text
from melior.errors import RunError, UserError
from melior.loops.summary import number_text, time_text
from melior.records.serialize import fingerprint
from melior.settings import LanguageSettings
from melior.storage.folder import RunFolder
from melior.storage.writing import json_text, write_atomic
from melior.updates.step_norm import StepNorm

FILE = "comparison.json"


@dataclass(frozen=True)
class Compared:
    """What a comparison found.

    Attributes:
        path: its folder, with `comparison.json` and, in `cells/`, a run folder for every run.
        data: what that file holds.
    """

    path: Path
    data: Mapping[str, Any]

    @property
    def table(self) -> list[dict[str, Any]]:
        """The rows, the first-named method first; see `melior.comparing.result.Row`."""
        return self.data["table"]

    @property
    def crashed(self) -> list[dict[str, Any]]:
        """The runs that did not finish, with their errors."""
        return [cell for cell in self.data["cells"] if cell["status"] != "finished"]

    def row(self, label: str) -> dict[str, Any]:
        """The row of a contender."""
        return next(row for row in self.table if row["label"] == label)

    def __str__(self) -> str:
        return table_text(dict(self.data))


def run_comparison(
    comparison: Comparison,
    out: Path,
    objects: Mapping[str, Any] | None = None,
    jobs: int = 1,
    quiet: bool = False,
    command: str = "",
) -> Compared:
    """Runs what is not finished of a comparison and judges all of it.

    Args:
        comparison: what was asked for.
        out: its folder; may hold an earlier part of the same comparison.
        objects: what `melior.train` takes as objects.
        jobs: runs side by side, each with one thread.
        quiet: show no progress.
        command: the command that does this again, for those who read it later.

    Raises:
        UserError: a mistake in the request, before anything ran.
        RunError: not a single run finished.
        KeyboardInterrupt: after Ctrl-C; the runs are saved, and the same call goes on.
    """
    need_packages()
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}")
    plan = make_plan(comparison, out)
    cells = [cell for contender in plan.contenders for cell in _all_cells(plan, contender)]
    if not comparison.equal_step_norm and not comparison.tune:  # else records and settings depend on earlier runs
        for cell in cells:
            state_of(cell)  # refuses a folder of other runs before anything is run
    session = _Session(plan, objects or {}, jobs, _Progress(len(cells), jobs, quiet), command)
    try:
        session.run()
    finally:
        data = session.write()
    if not any(row["runs"] for row in data["table"]):
        errors = [cell["error"] for cell in data["cells"] if cell["error"]]
        raise RunError(f"no run of the comparison finished: {errors[0] if errors else 'nothing was run'}")
    from melior.comparing.page import page_of_comparison  # which reads comparisons by this module

    page_of_comparison(out, lambda text: print(f"melior: {text}", file=sys.stderr))
    return Compared(out, data)


def read_comparison(out: Path) -> Compared:
    """What a folder's `comparison.json` holds.

    Raises:
        UserError: it is no folder of a comparison.
    """
    file = out / FILE
    if not file.is_file():
        raise UserError(f"{out} holds no comparison (no {FILE})")
    try:
        return Compared(out, json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RunError(f"{file} is damaged: {error}") from error


def asked_again(out: Path) -> tuple[Comparison, str]:
    """The comparison that a folder was begun with, and its command.

    Raises:
        UserError: it was given objects, which no file can hold.
    """
    data = read_comparison(out).data
    request = data["request"]
    if not data["resumable"]:
        raise UserError(f"{out} was begun from Python with objects; call melior.compare with the same arguments again")
    axes = {name: {path: tuple(values) for path, values in request[name].items()} for name in ("grid", "tune")}
    lists = {name: tuple(request[name]) for name in ("methods", "overrides", "seeds", "cross", "of")}
    budget = request["budget"] and (request["budget"][0], float(request["budget"][1]))
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in request["settings"].items()}
    plain = {name: request[name] for name in ("steps", "tune_seeds", "equal_step_norm", "paper_settings")}
    return Comparison(**{**plain, **lists, **axes, "settings": settings, "budget": budget}), data["command"]


# ---- inside


class _Progress:
    """A line for every run that ends: which of how many, how it ended, how long the rest will take."""

    def __init__(self, total: int, jobs: int, quiet: bool) -> None:
        self.total, self.jobs, self.quiet, self.done = total, jobs, quiet, 0
        self._took: list[float] = []

    def __call__(self, ended: Ended) -> None:
        self.done += 1
        if ended.seconds and ended.status == "finished":
            self._took.append(ended.seconds)
        if self.quiet:
            return
        told = ended.error or ended.status
        if ended.status == "finished":
            curve = outcome_of(ended.cell.label, ended.cell.folder, ended.cell.seed).curve
            told = f"{number_text(curve[0].score)} -> {number_text(curve[-1].score)}" if curve else "finished"
            told += f", {time_text(ended.seconds)}" if ended.seconds else " (was there)"
        left = statistics.mean(self._took) * (self.total - self.done) / self.jobs if self._took else math.nan
        rest = f"; about {time_text(left)} left" if self.done < self.total and not math.isnan(left) else ""
        print(f"cell {self.done} of {self.total}  {ended.cell.name}: {told}{rest}", file=sys.stderr, flush=True)


class _Session:
    """One call: the runs in their order, and what became of them."""

    def __init__(
        self, plan: Plan, objects: Mapping[str, Any], jobs: int, progress: Callable[[Ended], None], command: str
    ) -> None:
        self.plan, self.objects, self.jobs, self.progress, self.command = plan, objects, jobs, progress, command
        self.ended: dict[Path, Ended] = {}
        self.chosen: dict[str, tuple[str, ...]] = {}
        self.tried: dict[str, list[dict[str, Any]]] = {}
        self.untuned: dict[str, str] = {}
        self.cells: dict[str, list[Cell]] = {}

    def run(self) -> None:
        """Tuning first, then the runs themselves, seed by seed."""
        fresh = [contender for contender in self.plan.contenders if not contender.runs]
        self.write()
        self._tune(fresh)
        tuned = [contender for contender in fresh if contender.label not in self.untuned]
        self.cells = {c.label: self.plan.cells(c, self.chosen.get(c.label, ())) for c in tuned}
        if self.plan.comparison.equal_step_norm and tuned:
            first, *others = (self.cells[contender.label] for contender in tuned)
            self._run(first)
            for cells in others:
                cells[:] = self._at_norms(cells, first)
        self._run([cell for row in zip(*self.cells.values(), strict=True) for cell in row])

    def write(self) -> dict[str, Any]:
        """Writes `comparison.json` as of now; what it holds."""
        data = self._data()
        self.plan.out.mkdir(parents=True, exist_ok=True)
        text = json_text(data, indent=1) + "\n"
        write_atomic(self.plan.out / FILE, text)
        return json.loads(text)

    def _run(self, cells: Sequence[Cell]) -> None:
        waiting = [cell for cell in cells if cell.folder not in self.ended]

        def note(ended: Ended) -> None:
            self.ended[ended.cell.folder] = ended
            self.progress(ended)

        run_cells(waiting, self.objects, self.jobs, self.plan.out / "logs", note)

    def _tune(self, contenders: Sequence[Contender]) -> None:
        tuning = {contender.label: self.plan.tuning(contender) for contender in contenders}
        self._run([cell for choices in tuning.values() for cells in choices.values() for cell in cells])
        for label, choices in tuning.items():
            means: dict[tuple[str, ...], float] = {}
            for choice, cells in choices.items():
                finals = [self._outcome(cell).final for cell in cells]
                means[choice] = statistics.mean(finals)  # NaN where one crashed: such a value is not taken
            self.tried[label] = [{"choice": list(choice), "mean": mean} for choice, mean in means.items()]
            known = {choice: mean for choice, mean in means.items() if not math.isnan(mean)}
            if known:
                self.chosen[label] = max(known, key=lambda choice: known[choice])  # the first declared of equals
            elif choices:
                errors = [self._outcome(cell).error for cells in choices.values() for cell in cells]
                self.untuned[label] = f"no value of its tuning could be run: {next(filter(None, errors), 'no score')}"

    def _at_norms(self, cells: Sequence[Cell], first: Sequence[Cell]) -> list[Cell]:
        """The cells with the lengths of the first-named's steps of the same seed; without them they cannot be run."""
        norms = {
            cell.seed: self._outcome(cell).lengths for cell in first if self.ended[cell.folder].status == "finished"
        }
        found = []
        for cell in cells:
            if cell.seed not in norms:
                error = f"{first[0].label} of seed {cell.seed} did not finish, so its step lengths are not known"
                self.ended[cell.folder] = Ended(cell, "missing", error)
                found.append(cell)
                continue
            update = StepNorm(cell.record.update.update, norms[cell.seed])
            found.append(replace(cell, record=cell.record.but(cell.record.name, update=update)))
        return found

    def _outcome(self, cell: Cell) -> Outcome:
        ended = self.ended.get(cell.folder)
        if ended is None:
            return Outcome(cell.label, cell.seed, cell.folder, "missing")
        return outcome_of(cell.label, cell.folder, cell.seed, ended.status, ended.error)

    def _outcomes(self) -> dict[str, list[Outcome]]:
        """Contender -> its runs, in the order of the table."""
        found: dict[str, list[Outcome]] = {}
        for contender in self.plan.contenders:
            label = contender.label
            if contender.runs:
                found[label] = [_elsewhere(label, run) for run in contender.runs]
            elif label in self.cells:
                found[label] = [self._outcome(cell) for cell in self.cells[label]]
            else:
                seeds, error = self.plan.comparison.seeds, self.untuned.get(label, "")
                found[label] = [Outcome(label, seed, self.plan.out, "missing", error) for seed in seeds]
        return found

    def _data(self) -> dict[str, Any]:
        outcomes, comparison = self._outcomes(), self.plan.comparison
        axis = comparison.budget[0] if comparison.budget else "step"
        end = comparison.budget[1] if comparison.budget else common_end(outcomes, axis)
        held, differs = held_equal(outcomes)
        seeds = min(len({run.seed for run in runs if run.status == "finished"}) for runs in outcomes.values())
        named = (*comparison.methods, *comparison.of)
        request = asdict(replace(comparison, methods=(), of=(), settings=dict(comparison.settings)))
        return {
            "melior": _version(),
            "written": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": self.command,
            "request": {**request, "methods": list(map(str, comparison.methods)), "of": list(map(str, comparison.of))},
            "resumable": not self.objects and all(isinstance(m, str | Path) for m in named),
            "axis": axis,
            "end": end,
            "sampled": "tokens" if self._of_text() else "env steps",
            "contenders": [self._contender(contender) for contender in self.plan.contenders],
            "held_equal": [*self._by_construction(), *held],
            "not_equal": differs,
            "notes": list(self.plan.notes),
            "cautions": cautions(seeds, len(outcomes) - 1) if seeds else [],
            "tuning": {label: {"tried": tried, "chosen": list(self.chosen.get(label, ()))}
                       for label, tried in self.tried.items() if tried},
            "table": as_dicts(table_of(outcomes, axis, end, self.chosen)),
            "pairs": as_dicts(pairs_of(outcomes)),
            "cells": [run.as_dict() for runs in outcomes.values() for run in runs],
        }  # fmt: skip

    def _contender(self, contender: Contender) -> dict[str, Any]:
        cells = self.cells.get(contender.label)
        return {
            "label": contender.label,
            "source": contender.source,
            "overrides": list(contender.overrides),
            "finished_elsewhere": [str(run) for run in contender.runs],
            "fingerprint": fingerprint(cells[0].record) if cells else None,
        }

    def _of_text(self) -> bool:
        cells = [cell for row in self.cells.values() for cell in row]
        return not cells or isinstance(cells[0].settings, LanguageSettings)

    def _by_construction(self) -> list[str]:
        """What the runs that this comparison makes share whatever the method does."""
        comparison = self.plan.comparison
        if all(contender.runs for contender in self.plan.contenders):
            return []
        budget = (
            f"{comparison.budget[1]:g} {comparison.budget[0]}, the step that reaches it included"
            if comparison.budget
            else f"{' or '.join(sorted({str(c.settings.steps) for row in self.cells.values() for c in row}))} steps"
        )
        of_text = "weights, order of prompts, sampling noise of every prompt, completion and position, held-out prompts"
        drawn = of_text if self._of_text() else "networks, environments' seeds, evaluation episodes"
        said = [f"within a seed: {drawn}", f"the budget: {budget}", "the machine: one thread a run"]
        if comparison.tune:
            values = math.prod(len(values) for values in comparison.tune.values())
            said.append(f"the tuning: {values} values x {comparison.tune_seeds} seeds of its own for every method")
        if comparison.equal_step_norm:
            said.append(f"the length of every step: that of {self.plan.contenders[0].label} at the same seed and step")
        return said


def _all_cells(plan: Plan, contender: Contender) -> list[Cell]:
    tuning = [cell for cells in plan.tuning(contender).values() for cell in cells]
    return [*tuning, *plan.cells(contender)]


def _elsewhere(label: str, run: Path) -> Outcome:
    """A run that was made elsewhere counts as finished, unless its own summary says that it was interrupted."""
    found = outcome_of(label, run)
    if not found.curve:
        raise UserError(f"{run} holds no held-out score, so there is nothing to compare")
    summary = RunFolder(run).read_summary() if run.is_dir() else None
    return replace(found, status="interrupted") if summary and summary.get("interrupted") else found


def _version() -> str:
    from melior import __version__

    return __version__


def default_out(now: float | None = None) -> Path:
    """comparisons/20261130-205500 for a comparison that was given no folder."""
    return Path("comparisons") / time.strftime("%Y%m%d-%H%M%S", time.localtime(now))

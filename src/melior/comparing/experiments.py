"""Experiments: comparisons that somebody wrote down with what they expect, and their rows in a page of results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from melior.comparing import Compared, compare_settings, run_comparison
from melior.comparing.expectations import Better, Expectation, Judged, Reaches, Within, overall
from melior.comparing.plan import Comparison
from melior.comparing.running import FILE, read_comparison
from melior.errors import RunError, UserError, near
from melior.importing import load_object
from melior.loops.summary import time_text
from melior.storage.writing import write_atomic

__all__ = ["Better", "Expectation", "Experiment", "Reaches", "Within", "find_experiments", "run_experiment"]

FOLDER, RUNS, RESULTS = Path("benchmarks/experiments"), Path("runs/experiments"), Path("docs/results.md")
BEGIN, END = "<!-- experiments -->", "<!-- end of experiments -->"
HEAD = (
    "| experiment | date | version | expected: found, paired by seed [95 %] | verdict | training time | command |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Experiment:
    """One question, as a comparison and what is expected of it.

    A file of `benchmarks/experiments/` holds one, named `EXPERIMENT`; the file's name is the experiment's.

    Attributes:
        question: what the runs shall answer.
        methods: who is compared; the first is the one that the others are measured against.
        expects: what is predicted, written before anything is run.
        settings: as for `melior.compare`: model, task, steps, budget, lr, ...
        seeds: of every method.
        minutes: CPU minutes of all runs together, about.
    """

    question: str
    methods: tuple[str, ...]
    expects: tuple[Expectation, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    minutes: float = 0.0

    def comparison(self) -> Comparison:
        """The comparison that it is.

        Raises:
            UserError: an expectation speaks of a method that is not compared.
        """
        for each in self.expects:
            for method in each.methods:
                if method not in self.methods:
                    known = near(method, self.methods)
                    raise UserError(f"'{each.says()}' is expected of '{method}', which is not compared{known}")
        return compare_settings(self.methods, seeds=self.seeds, **self.settings)


@dataclass(frozen=True)
class Named:
    """An experiment, what it is called, and the folder of its runs."""

    name: str
    experiment: Experiment
    out: Path

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs have finished, and how many there are."""
        done = 0
        if (self.out / FILE).is_file():
            done = sum(cell["status"] == "finished" for cell in read_comparison(self.out).data["cells"])
        return done, len(self.experiment.methods) * len(self.experiment.seeds)


@dataclass(frozen=True)
class Ran:
    """An experiment that was run: the comparison, what it says of each expectation, and the verdict over all."""

    named: Named
    compared: Compared
    judged: tuple[Judged, ...]

    @property
    def verdict(self) -> str:
        """In one word; a run that crashed leaves it open."""
        return overall([each.verdict for each in self.judged])

    def text(self) -> str:
        """A line for each expectation."""
        lines = [f"{each.expected}: {each.found}: {each.verdict}" for each in self.judged]
        return "\n".join([*lines, f"{self.named.name}: {self.verdict}"])


def find_experiments(folder: Path = FOLDER, runs: Path = RUNS) -> list[Named]:
    """The experiments of a folder, the cheapest first.

    Raises:
        UserError: no such folder, or a file in it that holds no experiment.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; experiments are found from the repository's, or with --folder")
    files = sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))
    found = [Named(file.stem, _from_file(file), runs / file.stem) for file in files]
    if not found:
        raise UserError(f"{folder} holds no experiments (files NAME.py with EXPERIMENT = Experiment(...))")
    return sorted(found, key=lambda each: (each.experiment.minutes, each.name))


def chosen(found: Sequence[Named], names: Sequence[str]) -> list[Named]:
    """Those of these names, the cheapest first. UserError for a name that is not there."""
    known = {each.name: each for each in found}
    for name in names:
        if name not in known:
            raise UserError(f"there is no experiment '{name}'{near(name, known)}")
    return [each for each in found if each.name in names]


def run_experiment(
    named: Named,
    *,
    jobs: int = 1,
    quiet: bool = False,
    results: Path | None = RESULTS,
    command: str = "",
    compare: Callable[..., Compared] = run_comparison,
) -> Ran:
    """Runs what is not finished of an experiment, judges it, and writes its row.

    Args:
        named: the experiment.
        jobs: runs side by side.
        quiet: show no progress.
        results: the page that its row is written into; None writes none.
        command: what its row says that it came from.
        compare: what runs the comparison.

    Raises:
        UserError: a mistake in the experiment, before anything ran.
        RunError: not a single run finished.
    """
    command = command or shlex.join(["melior", "experiment", named.name])
    asked = named.experiment.comparison()
    compared = compare(asked, named.out, {}, jobs, quiet, command)
    ran = Ran(named, compared, tuple(each.judge(compared.data) for each in named.experiment.expects))
    if results is not None:
        write_row(results, named.name, row_of(ran, command))
    return ran


def row_of(ran: Ran, command: str) -> str:
    """An experiment's row of the table of results."""
    data, finished = ran.compared.data, [c for c in ran.compared.data["cells"] if c["status"] == "finished"]
    crashed = [cell for cell in data["cells"] if cell["status"] == "crashed"]
    judged = [f"{each.expected}: {each.found}, {each.verdict}" for each in ran.judged]
    if crashed:
        judged.append(
            f"{len(crashed)} of {len(data['cells'])} runs crashed: {crashed[0]['label']}, {crashed[0]['error']}"
        )
    if data["cautions"]:
        judged += [f"beware: {caution}" for caution in data["cautions"]]
    seconds = sum(cell["seconds"] or 0.0 for cell in finished)
    methods = f"{len(ran.named.experiment.methods)} methods × {len(ran.named.experiment.seeds)} seeds"
    cells = (
        f"**{ran.named.name}**: {ran.named.experiment.question} ({methods})",
        measured_on(ran.compared).isoformat(),
        str(data["melior"]),
        "<br>".join(judged),
        ran.verdict,
        time_text(seconds),
        f"`{command}`",
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def measured_on(compared: Compared) -> date:
    """The day on which the newest of the runs ended."""
    ends = [Path(cell["folder"]) / "summary.json" for cell in compared.data["cells"] if cell["status"] == "finished"]
    times = [file.stat().st_mtime for file in ends if file.is_file()]
    return date.fromtimestamp(max(times)) if times else date.today()


def write_row(page: Path, name: str, row: str) -> None:
    """Puts a row between the markers of a page, in place of the experiment's earlier one; rows stand by name.

    A page without the markers gets them, and a heading, at its end.

    Raises:
        RunError: the page has one of the markers without the other.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    if BEGIN not in text and END not in text:
        text = f"{text.rstrip()}\n\n## Experiments\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise RunError(f"{page} must hold {BEGIN} and, after it, {END}")
    rows = {_name_of(line): line for line in inside.splitlines() if line.startswith("| **")}
    rows[name] = row
    ordered = [rows[each] for each in sorted(rows)]
    write_atomic(page, "\n".join([f"{before}{BEGIN}", "", *HEAD, *ordered, "", f"{END}{after}"]))


# ---- inside


def _from_file(file: Path) -> Experiment:
    found = load_object(f"{file}:EXPERIMENT")
    if not isinstance(found, Experiment):
        raise UserError(f"{file}: EXPERIMENT is no Experiment but a {type(found).__name__}")
    return found


def _name_of(row: str) -> str:
    return row.removeprefix("| **").partition("**")[0]


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")

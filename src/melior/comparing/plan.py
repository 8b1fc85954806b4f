"""What is compared, as data: the request, the contenders that it means, and the cells that they need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from melior.comparing.contenders import Contender, contenders_of
from melior.errors import UserError
from melior.frames import SolverSettings
from melior.method import Method
from melior.request import Request, resolve_request
from melior.settings import LanguageSettings, RunSettings
from melior.updates.step_norm import StepNorm

EVALUATIONS = 5  # of a run besides the first, unless eval_every is given
UNBOUNDED = 1_000_000  # steps of a run that a budget of tokens or seconds ends
APART = 1000  # seeds of tuning begin so far above those of the comparison
BUDGETS = ("tokens", "seconds")


@dataclass(frozen=True)
class Comparison:
    """What was asked for.

    Attributes:
        methods: names of the catalogue, "FILE.py:NAME", records, and folders or logs of finished runs, in the order of
            the table; the first is the one that the others are measured against.
        settings: as for `melior.train`, the same for all.
        overrides: exact changes for all, such as "settings.pass_at=0.5".
        seeds: of the comparison.
        steps: batches of rollouts; None takes the task's or the default's.
        budget: ("tokens" or "seconds", amount) instead of steps.
        grid: path -> values as text; every method is run at every combination.
        cross, of: fields whose parts are exchanged among the methods `of`.
        tune: path -> values as text; every contender takes its best, on seeds of their own.
        tune_seeds: how many.
        equal_step_norm: scale every step to the length of the first contender's at the same seed and step.
        paper_settings: adopt each paper's own settings.
    """

    methods: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int | None = None
    budget: tuple[str, float] | None = None
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cross: tuple[str, ...] = ()
    of: tuple[Any, ...] = ()
    tune: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tune_seeds: int = 2
    equal_step_norm: bool = False
    paper_settings: bool = False


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        label: the contender's.
        record, settings: what is run; the seed is among the settings.
        folder: its run folder.
        choice: the value tried, for a run of the tuning.
    """

    label: str
    record: Any
    settings: RunSettings
    folder: Path
    choice: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.settings.seed

    @property
    def name(self) -> str:
        """How it is called where one line tells of it."""
        return " ".join([self.label, *self.choice, f"seed {self.seed}"])


@dataclass(frozen=True)
class Plan:
    """The contenders of a comparison, resolved.

    Attributes:
        comparison: what was asked for.
        out: the comparison's folder.
        contenders: in the order of the table.
        notes: what was decided on the user's behalf.
    """

    comparison: Comparison
    out: Path
    contenders: tuple[Contender, ...]
    notes: tuple[str, ...]

    def request(self, contender: Contender, seed: int, choice: Sequence[str] = ()) -> Request:
        """The record and settings of one run of a contender."""
        return _resolved(self.comparison, contender, seed, choice)

    def cells(self, contender: Contender, choice: Sequence[str] = ()) -> list[Cell]:
        """The runs that a contender is judged by; none for one that has finished elsewhere."""
        if contender.runs:
            return []
        folder = self.out / "cells" / slug(contender.label)
        return [self._cell(contender, seed, choice, folder) for seed in self.comparison.seeds]

    def tuning(self, contender: Contender) -> dict[tuple[str, ...], list[Cell]]:
        """The runs by which a contender's value is chosen, by that value, in the declared order."""
        if contender.runs or not self.comparison.tune:
            return {}
        first = max(self.comparison.seeds) + APART
        found = {}
        for choice in combinations(self.comparison.tune):
            folder = self.out / "tuning" / slug(contender.label) / slug(" ".join(choice))
            found[choice] = [
                replace(self._cell(contender, seed, choice, folder), choice=choice)
                for seed in range(first, first + self.comparison.tune_seeds)
            ]
        return found

    def _cell(self, contender: Contender, seed: int, choice: Sequence[str], folder: Path) -> Cell:
        request = self.request(contender, seed, choice)
        record = request.record
        if self.comparison.equal_step_norm and isinstance(record, Method):
            record = record.but(record.name, update=StepNorm(record.update))
        return Cell(contender.label, record, request.settings, folder / f"seed-{seed}")


def make_plan(comparison: Comparison, out: Path) -> Plan:
    """The plan of a comparison, checked as far as can be without running anything.

    Raises:
        UserError: an unknown method, field, setting or part, a value out of bounds, or a request that contradicts
            itself.
    """
    _check(comparison)
    contenders = contenders_of(comparison.methods, combinations(comparison.grid), comparison.cross, comparison.of)
    if len(contenders) < 2:
        raise UserError("a comparison needs at least two: name another method, or give --grid PATH=VALUE,VALUE")
    plan = Plan(comparison, out, tuple(contenders), ())
    notes: dict[str, None] = {}
    for contender in contenders:
        if contender.runs:
            continue
        for choice in combinations(comparison.tune):
            request = plan.request(contender, comparison.seeds[0], choice)
            notes |= dict.fromkeys(request.notes)
        _check_request(comparison, contender, request)
    folders = [slug(contender.label) for contender in contenders]
    if len(set(folders)) < len(folders):
        raise UserError(f"two contenders would share a folder: {', '.join(folders)}; name your records differently")
    return replace(plan, notes=tuple(notes))


def combinations(axes: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Every combination of the values, as overrides "path=value"; one empty combination when there are no axes."""
    found: list[tuple[str, ...]] = [()]
    for path, values in axes.items():
        found = [(*left, f"{path}={value}") for left in found for value in values]
    return found


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", label).strip("-.") or "method"


# ---- inside


def _check(comparison: Comparison) -> None:
    if not comparison.seeds or len(set(comparison.seeds)) < len(comparison.seeds):
        raise UserError(f"seeds must be different numbers, at least one, got {list(comparison.seeds)}")
    if comparison.steps is not None and comparison.budget is not None:
        raise UserError("give steps or a budget, not both")
    if comparison.tune_seeds < 1:
        raise UserError(f"tune_seeds must be at least 1, got {comparison.tune_seeds}")
    if comparison.budget is not None:
        kind, amount = comparison.budget
        if kind not in BUDGETS or amount <= 0:
            raise UserError(f"a budget is tokens=NUMBER or seconds=NUMBER, more than 0, got {kind}={amount:g}")
        if comparison.equal_step_norm:
            raise UserError("equal_step_norm goes step by step, so it needs steps, not a budget")
    if "seed" in comparison.settings:
        raise UserError("a comparison has seeds, not a seed: --seeds 3 takes 0 to 2, --seeds 7,8 takes these")
    clash = [name for name in ("steps", "report") if name in comparison.settings]
    if clash:
        raise UserError(f"{clash[0]} is not a setting of a comparison's runs; it is given to the comparison itself")


def _check_request(comparison: Comparison, contender: Contender, request: Request) -> None:
    budget = comparison.budget
    if budget is not None and budget[0] == "tokens" and not isinstance(request.settings, LanguageSettings):
        raise UserError(f"'{contender.label}' samples no tokens; give --steps or --budget seconds=NUMBER")
    if budget is not None and getattr(request.settings, "schedule", "constant") != "constant":
        raise UserError("a schedule needs to know its last step, and a budget does not say it; give steps")
    if comparison.equal_step_norm and not isinstance(request.record, Method):
        raise UserError(
            f"'{contender.label}' has no single update whose length could be set; leave equal_step_norm out"
        )


def _resolved(comparison: Comparison, contender: Contender, seed: int, choice: Sequence[str]) -> Request:
    given = _given(comparison) | {"seed": seed}
    overrides = (*comparison.overrides, *contender.overrides, *choice)

    def resolve(spec: Any) -> Request:
        return resolve_request(spec, given, overrides, paper_settings=comparison.paper_settings)

    request = resolve(contender.spec)
    settings = request.settings
    if "eval_every" not in comparison.settings:
        every = 5 if comparison.budget else max(1, -(-settings.steps // EVALUATIONS))
        measured = not isinstance(settings, LanguageSettings) or settings.eval_prompts > 0
        every = 1 if isinstance(settings, SolverSettings) else every  # where it costs nothing
        settings = replace(settings, eval_every=every if measured else 0)
    if "save_every" not in comparison.settings:
        settings = replace(settings, save_every=settings.eval_every)
    if isinstance(settings, LanguageSettings) and "keep_rollouts" not in comparison.settings:
        settings = replace(settings, keep_rollouts=1)
    notes = request.notes
    if isinstance(request.record, Method) and isinstance(settings, LanguageSettings) and request.record.pins.get("n"):
        free = resolve(contender.unpinned()).settings
        settings, note = _as_many_rows(comparison, contender.label, request.record, settings, free)
        notes = (*notes, *note)
    return Request(request.record, settings, notes)


def _as_many_rows(
    comparison: Comparison, label: str, record: Method, settings: LanguageSettings, free: Any
) -> tuple[LanguageSettings, tuple[str, ...]]:
    """A method that pins the size of its groups samples more or fewer of them, so that rows a step stay equal."""
    if settings.n == free.n or comparison.budget is not None or "prompts" in record.pins:
        return settings, ()
    prompts, rest = divmod(free.prompts * free.n, settings.n)
    if rest or not prompts:
        uneven = (
            f"'{label}' pins n = {settings.n}, which does not divide the others' {free.prompts} x {free.n} rows a step"
        )
        return settings, (uneven,)
    note = (
        f"'{label}' pins n = {settings.n}, so it takes {prompts} prompts a step where others take {free.prompts}: "
        f"{prompts * settings.n} rows a step for all"
    )
    return replace(settings, prompts=prompts), (note,)


def _given(comparison: Comparison) -> dict[str, Any]:
    own: dict[str, Any] = {"report": False, "log_to": "", "keep": 1}
    given = own | dict(comparison.settings)
    if comparison.steps is not None:
        given["steps"] = comparison.steps
    if comparison.budget is not None:
        kind, amount = comparison.budget
        given |= {"steps": UNBOUNDED, f"budget_{kind}": float(amount)}
    return given

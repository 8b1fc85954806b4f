"""Fair comparisons: methods on the same model, prompts, order, noise and budget, judged over seeds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from melior.comparing.plan import Comparison
from melior.comparing.running import Compared, asked_again, default_out, read_comparison, run_comparison
from melior.errors import UserError

__all__ = ["Compared", "Comparison", "compare", "read_comparison", "run_comparison"]


def compare(
    methods: Sequence[Any] = (),
    *,
    seeds: int | Sequence[int] = 5,
    steps: int | None = None,
    budget: tuple[str, float] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    cross: Sequence[str] = (),
    of: Sequence[Any] = (),
    tune: Mapping[str, Sequence[Any]] | None = None,
    tune_seeds: int = 2,
    equal_step_norm: bool = False,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    jobs: int = 1,
    quiet: bool = False,
    overrides: Sequence[str] = (),
    paper_settings: bool = False,
    model: Any = None,
    data: Any = None,
    eval_data: Any = None,
    reward: Any = None,
    env: Any = None,
    **settings: Any,
) -> Compared:
    """Run methods under equal conditions, over seeds, and say which is better by how much.

    The same call with the same `out` goes on where it was interrupted; runs that have finished are not repeated.

    Args:
        methods: names of the catalogue, "FILE.py:NAME", records, or folders and logs of finished runs. The first is
            the one that the others are measured against.
        seeds: how many (0, 1, ...), or which.
        steps: batches of rollouts in every run.
        budget: ("tokens", 2e5) or ("seconds", 60) in place of steps.
        grid: path -> values, such as {"objective.clip.high": [0.2, 0.28]}; several paths multiply.
        cross, of: fields such as ("advantage", "objective") to exchange among these methods.
        tune: path -> values; every method takes its own best, by mean final score on seeds of their own.
        tune_seeds: how many of those.
        equal_step_norm: scale every step to the length of the first-named method's at the same seed and step.
        out: the folder; a new one under `comparisons/` by default.
        resume: the folder of a comparison to go on with; nothing else is needed then.
        jobs: runs side by side, in processes of one thread each.
        quiet: show no progress.
        overrides: exact changes for all, such as "settings.pass_at=0.5".
        paper_settings: adopt each paper's own settings.
        model, data, eval_data, reward, env, **settings: as for `melior.train`, the same for all.

    Returns:
        The result; `print` it for the table.

    Raises:
        UserError: a mistake in the request, before anything ran.
        RunError: not a single run finished. Runs that crash beside others that finish are told in the result.
    """
    from melior.api import objects_and_settings

    objects, values = objects_and_settings(model=model, data=data, eval_data=eval_data, reward=reward, env=env)
    if resume is not None:
        if methods or values or settings or overrides or grid or cross or tune:
            raise UserError("a comparison goes on as it was begun: give nothing with resume but jobs and quiet")
        comparison, command = asked_again(Path(resume))
        return run_comparison(comparison, Path(resume), {}, jobs, quiet, command)
    comparison = compare_settings(
        methods, seeds=seeds, steps=steps, budget=budget, grid=grid, cross=cross, of=of, tune=tune,
        tune_seeds=tune_seeds, equal_step_norm=equal_step_norm, overrides=overrides, paper_settings=paper_settings,
        **values, **settings,
    )  # fmt: skip
    folder = Path(out) if out else default_out()
    command = f"melior compare --resume {shlex.quote(str(folder))}"
    return run_comparison(comparison, folder, objects, jobs, quiet, command)


def compare_settings(
    methods: Sequence[Any] = (),
    *,
    seeds: int | Sequence[int] = 5,
    grid: Mapping[str, Sequence[Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    **request: Any,
) -> Comparison:
    """The request that these arguments of `compare` stand for; whatever is no field of it is a setting of the runs."""
    own = {f.name for f in fields(Comparison)}
    rest: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in request.items() if key in own
    }
    return Comparison(
        methods=tuple(methods or ()),
        settings={key: value for key, value in request.items() if key not in own},
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        grid=_as_text(grid or {}),
        tune=_as_text(tune or {}),
        **rest,
    )


def _as_text(axes: Mapping[str, Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    return {path: tuple(value if isinstance(value, str) else str(value) for value in values)
            for path, values in axes.items()}  # fmt: skip

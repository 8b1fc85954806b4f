"""One step of the line, the same for every method and every world."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from melior.loops.first_look import first_look
from melior.optimizers import rate
from melior.parts import Objective
from melior.run import BETWEEN, Run
from melior.trajectories import Trajectories, concatenate


def iterate(run: Run) -> dict[str, float]:
    """Roll out, score, keep, credit, update, remember, sync; then the step is counted. Returns its figures.

    Figures of further learners are prefixed by the learner's name. A batch in which nothing is left to learn is a
    skipped step: counted, logged as "skipped" 1, and without any change.
    """
    metrics: dict[str, float] = {}
    sampled, kept = gather(run)
    for name, batch in kept.items():
        learner = run.learner(name)
        moves = learner.moves
        learner.rate = rate(run.settings, run.step)
        figures = dict(run.world.figures(run, sampled[name]))
        figures |= {"rows": float(len(batch)), "refills": float(run.round)}
        run.batches[name] = batch
        run.dropped[name] = sampled[name].rows(~torch.isin(sampled[name].group, batch.group))
        if bool(batch.mask.any()):
            batch = run.credit(batch, name)
            method = run.method.of(name)
            assert isinstance(method.objective, Objective)  # a lone term became one when the record was made
            with first_look(learner, batch) as look:
                stats = method.update(learner, look.marked, method.objective, run)
            for key, memory in run.memories(name):
                run.touched += 1
                run.state[key] = memory.observe(run.state[key], batch, stats)
            run.sync(name)
            run.batches[name] = look.told()
            figures |= stats
        figures["skipped"] = float(learner.moves == moves)
        prefix = "" if name == "policy" else f"{name}/"
        metrics |= {prefix + key: value for key, value in figures.items()}
    run.step, run.round = run.step + 1, BETWEEN
    return metrics


def gather(run: Run) -> tuple[Mapping[str, Trajectories], Mapping[str, Trajectories]]:
    """Everything sampled and scored, and what of it is learnt from, one batch a learner each.

    Rounds of prompts are sampled until the curriculum has kept enough, or its tries are spent.
    """
    sampled: dict[str, list[Trajectories]] = {}
    kept: dict[str, list[Trajectories]] = {}
    for number in range(run.method.curriculum.refill + 1):
        run.round = number
        for name, batch in run.method.rollout(run, run.method.curriculum.select(run)).items():
            batch = run.score(batch, name)
            sampled.setdefault(name, []).append(batch)
            kept.setdefault(name, []).append(batch.rows(run.method.of(name).curriculum.keep(batch)))
        if run.method.curriculum.refill and _groups(next(iter(kept.values()))) >= run.settings.prompts:
            break
    batches = {name: concatenate(rounds) for name, rounds in kept.items()}
    if run.method.curriculum.refill:
        batches = {name: _first_groups(batch, run.settings.prompts) for name, batch in batches.items()}
    return {name: concatenate(rounds) for name, rounds in sampled.items()}, batches


def _groups(batches: list[Trajectories]) -> int:
    return sum(len(batch.group.unique()) for batch in batches)


def _first_groups(batch: Trajectories, count: int) -> Trajectories:
    """The groups that were sampled first: what a refill brought in excess is dropped."""
    return batch.rows(torch.isin(batch.group, batch.group.unique()[:count]))

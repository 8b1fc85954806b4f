"""From the runs to what is told: the rows of the table, every pair, what was held equal and what was not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from melior.comparing.outcomes import Outcome
from melior.comparing.statistics import (
    UNKNOWN,
    area,
    holm,
    improvement,
    interquartile_mean,
    mean_over_seeds,
    paired_difference,
)
from melior.intervals import Interval

# Settings in which runs may differ and still be compared: where and how they are written down.
APART = {
    "seed", "method", "kind", "report", "log_to", "keep", "keep_best", "keep_rollouts", "save_every", "device",
    "rows_per_micro", "gradient_checkpointing", "reward_workers", "steps", "budget_tokens", "budget_seconds",
}  # fmt: skip
TOKENS_APART, STEPS_APART = 1.05, 1.1  # ratios from which a difference in tokens and in step length is told


@dataclass(frozen=True)
class Pair:
    """One contender against another, by the final score.

    Attributes:
        left, right: labels.
        difference: mean of left - right over the seeds that both have, with its paired 95 % interval.
        p: of the exact sign-flip test; `p_holm` is corrected for all pairs.
        better: probability that a run of the left is better than one of the right.
        seeds: how many seeds both have.
    """

    left: str
    right: str
    difference: Interval
    p: float
    better: float
    seeds: int
    p_holm: float = math.nan


@dataclass(frozen=True)
class Row:
    """One contender's line of the table. Whatever is not known is NaN.

    Attributes:
        label: its name.
        runs, planned: runs that finished, and runs that were to.
        final, area: mean over seeds with 95 % intervals: the last score, and the mean score along the curve.
        iqm: inter-quartile mean of the final scores.
        difference, area_difference: to the first-named, paired by seed; None in the first row.
        p: corrected by Holm for the rows of the table.
        better: probability that a run is better than one of the first-named.
        seconds, tokens, steps, rows, step_norm: means over runs.
        chosen: the value that its tuning chose.
        failures: "seed: error" of runs that crashed.
    """

    label: str
    runs: int
    planned: int
    final: Interval
    area: Interval
    iqm: float
    difference: Interval | None
    area_difference: Interval | None
    p: float
    better: float
    seconds: float
    tokens: float
    steps: float
    rows: float
    step_norm: float
    chosen: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def table_of(
    outcomes: Mapping[str, Sequence[Outcome]], axis: str, end: float, chosen: Mapping[str, tuple[str, ...]]
) -> list[Row]:
    """The rows of the table, in the order of the labels; the first is the one the others are measured against."""
    first = next(iter(outcomes))
    finals = {label: _by_seed(runs) for label, runs in outcomes.items()}
    areas = {label: _areas(runs, axis, end) for label, runs in outcomes.items()}
    rows, tests = [], []
    for label, runs in outcomes.items():
        against = label != first
        difference, p, _ = paired_difference(finals[label], finals[first]) if against else (UNKNOWN, math.nan, 0)
        gain, _, _ = paired_difference(areas[label], areas[first]) if against else (UNKNOWN, math.nan, 0)
        tests.append(p)
        finished = [run for run in runs if run.status == "finished"]
        values = list(finals[label].values())
        rows.append(
            Row(
                label=label,
                runs=len(finished),
                planned=len(runs),
                final=mean_over_seeds(values),
                area=mean_over_seeds(list(areas[label].values())),
                iqm=interquartile_mean(values),
                difference=difference if against else None,
                area_difference=gain if against else None,
                p=math.nan,
                better=improvement(values, list(finals[first].values())) if against else math.nan,
                **{name: _mean([float(getattr(run, name)) for run in finished]) for name in _SPENT},
                chosen=chosen.get(label, ()),
                failures=tuple(f"seed {run.seed}: {run.error}" for run in runs if run.error),
            )
        )
    return [replace(row, p=p) for row, p in zip(rows, holm(tests), strict=True)]


_SPENT = ("seconds", "tokens", "steps", "rows", "step_norm")


def pairs_of(outcomes: Mapping[str, Sequence[Outcome]]) -> list[Pair]:
    """Every two contenders, the earlier on the left, corrected by Holm as one family."""
    finals = {label: _by_seed(runs) for label, runs in outcomes.items()}
    labels, found = list(outcomes), []
    for i, left in enumerate(labels):
        for right in labels[i + 1 :]:
            difference, p, seeds = paired_difference(finals[left], finals[right])
            better = improvement(list(finals[left].values()), list(finals[right].values()))
            found.append(Pair(left, right, difference, p, better, seeds))
    return [replace(pair, p_holm=p) for pair, p in zip(found, holm([pair.p for pair in found]), strict=True)]


def common_end(outcomes: Mapping[str, Sequence[Outcome]], axis: str) -> float:
    """The end of the shortest curve of a finished run: as far as areas can be compared."""
    ends = [run.end(axis) for runs in outcomes.values() for run in runs if run.status == "finished" and run.curve]
    return min(ends, default=math.nan)


def held_equal(outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[list[str], list[str]]:
    """(what all runs had equal, what they had not), one sentence each, from their settings and figures."""
    runs = [run for group in outcomes.values() for run in group if run.settings]
    if not runs:
        return [], _measured_apart(outcomes)
    known = [set(run.settings) for run in runs]
    shared = sorted(set.intersection(*known) - APART)
    equal = [name for name in shared if all(run.settings[name] == runs[0].settings[name] for run in runs)]
    said = [
        f"{name} {runs[0].settings[name]}" for name in _TOLD if name in equal and runs[0].settings[name] not in ("", 0)
    ]
    held = [f"settings: {', '.join(said)}; and {len(equal) - len(said)} further ones"] if equal else []
    differs = [_different(name, outcomes) for name in shared if name not in equal]
    unread = sorted({name for names in known for name in names} - APART - set(shared))
    if unread:
        differs.append(f"not known of every run: {', '.join(unread[:8])}{' …' if len(unread) > 8 else ''}")
    if _seeds_change_nothing(outcomes):
        held.append("the runs of every method themselves: seeds change nothing here, so intervals and p say nothing")
    return held, [*_measured_apart(outcomes), *differs, *_spent_apart(outcomes)]


def as_dicts(rows: Sequence[Row | Pair]) -> list[dict[str, object]]:
    """As they stand in `comparison.json`."""
    return [asdict(row) for row in rows]


# ---- inside

_TOLD = ("model", "task", "data", "env", "problem", "prompts", "n", "max_tokens", "envs", "horizon", "temperature",
         "optimizer", "lr", "schedule", "eval_every", "eval_prompts", "eval_episodes")  # fmt: skip


def _by_seed(runs: Sequence[Outcome]) -> dict[int, float]:
    return {run.seed: run.final for run in runs if not math.isnan(run.final)}


def _areas(runs: Sequence[Outcome], axis: str, end: float) -> dict[int, float]:
    limit = math.inf if math.isnan(end) else end
    return {
        run.seed: area([(point.at(axis), point.score) for point in run.curve], limit)
        for run in runs
        if run.status == "finished"
    }


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _seeds_change_nothing(outcomes: Mapping[str, Sequence[Outcome]]) -> bool:
    """Whether every contender's runs are several, go somewhere, and have one and the same curve."""
    for runs in outcomes.values():
        curves = [tuple(point.score for point in run.curve) for run in runs if run.status == "finished"]
        if len(curves) < 2 or len(set(curves)) > 1 or len(set(curves[0])) < 2:
            return False
    return True


def _different(name: str, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    values = {}
    for label, runs in outcomes.items():
        seen = list(dict.fromkeys(str(run.settings[name]) for run in runs if name in run.settings))
        values[label] = " and ".join(seen)
    return f"{name}: {', '.join(f'{label} {value}' for label, value in values.items() if value)}"


def _measured_apart(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Scores of different figures, as logs of different trainers have."""
    measures = {
        label: " and ".join(dict.fromkeys(run.measure for run in runs if run.measure))
        for label, runs in outcomes.items()
    }
    if len(set(filter(None, measures.values()))) < 2:
        return []
    told = ", ".join(f"{label} {measure}" for label, measure in measures.items() if measure)
    return [f"the held-out figure, so scores may not be of one kind: {told}"]


def _spent_apart(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """What methods took more of than the first: tokens, and length of step."""
    said, first = [], next(iter(outcomes))
    finished = {label: [run for run in runs if run.status == "finished"] for label, runs in outcomes.items()}
    tokens = {label: _mean([run.tokens for run in runs]) for label, runs in finished.items()}
    lengths = {label: _mean([run.step_norm for run in runs]) for label, runs in finished.items()}
    for label in outcomes:
        if label == first:
            continue
        if _apart(tokens[label], tokens[first], TOKENS_APART):
            said.append(f"{label} sampled {tokens[label] / tokens[first]:.2f} times {first}'s tokens; `--budget tokens=…` gives all the same")  # fmt: skip  # noqa: E501
        if _apart(lengths[label], lengths[first], STEPS_APART):
            said.append(f"{label} moved {lengths[label] / lengths[first]:.2f} times as far a step as {first}; `--equal-step-norm` takes that away")  # fmt: skip  # noqa: E501
    return said


def _apart(left: float, right: float, ratio: float) -> bool:
    return left > 0 and right > 0 and not 1 / ratio < left / right < ratio

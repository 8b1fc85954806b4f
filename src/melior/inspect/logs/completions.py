"""Figures that a log lacks, measured on the completions it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from melior.inspect.logs.log import Rollouts, Row

MOST = 32  # steps that are looked at, at most: a long run has gigabytes of completions


def measured(
    rollouts: Rollouts, metrics: Mapping[str, np.ndarray], told: Sequence[str]
) -> list[tuple[int, dict[str, float]]]:
    """(step, figures) of what `metrics` has not, out of `figures_of`.

    At most `MOST` steps, evenly spaced, and none when all of `told` is known, which is what these completions can tell.
    """
    if all(name in metrics for name in told):
        return []
    rows = [(step, figures_of(rollouts.rows(step))) for step in rollouts.spread(MOST)]
    return [(step, {name: value for name, value in row.items() if name not in metrics}) for step, row in rows]


def figures_of(rows: Sequence[Row]) -> dict[str, float]:
    """`reward`, `reward/NAME`, `pass_rate` and `mixed_share` of a step's completions, as far as they tell.

    A completion passes when its outcome is at least 1.
    """
    found: dict[str, float] = {}
    rewards = [row.reward for row in rows if row.reward is not None]
    if rewards:
        found["reward"] = float(np.mean(rewards))
    for name in dict.fromkeys(name for row in rows for name in row.components):
        found[f"reward/{name}"] = float(np.mean([row.components[name] for row in rows if name in row.components]))
    outcomes = [row.outcome for row in rows if row.outcome is not None]
    if outcomes:
        found["pass_rate"] = float(np.mean([outcome >= 1 for outcome in outcomes]))
    groups: dict[int, list[float]] = {}
    for row in rows:
        # Where neither outcome nor reward is known, an advantage other than zero says that siblings differed.
        value = next((v for v in (row.outcome, row.reward, row.advantage) if v is not None), None)
        if row.group is not None and value is not None:
            groups.setdefault(row.group, []).append(value)
    shared = [values for values in groups.values() if len(values) > 1]
    if shared:
        found["mixed_share"] = float(np.mean([max(values) - min(values) > 1e-9 for values in shared]))
    return found

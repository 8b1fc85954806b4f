"""What several rewards were weighted by, found from what a log says of their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from melior.inspect.logs.log import Row


def found_weights(
    names: Sequence[str], batches: Mapping[int, Sequence[Row]], steps: np.ndarray, metrics: Mapping[str, np.ndarray]
) -> list[float] | None:
    """One weight for each reward; None when the log does not tell.

    The weights are those with which the rewards of a step's completions give the logged mean reward. Where the
    completions of a step are only a part of it, the logged means of the rewards are taken instead, which needs every
    reward to apply to every completion.

    Args:
        names: [R] the rewards.
        batches: the completions of some steps.
        steps: [S] the steps of the figures.
        metrics: `reward` and `reward/NAME`, [S] each.
    """
    total = metrics.get("reward")
    if total is None or not names:
        return None
    logged = dict(zip(steps.tolist(), total.tolist(), strict=True))
    sampled = {step: [row for row in rows if row.components] for step, rows in batches.items() if step in logged}
    sampled = {step: rows for step, rows in sampled.items() if rows}
    shares = [[sum(r.components.get(n, 0.0) for r in rows) / len(rows) for n in names] for rows in sampled.values()]
    weights = weights_of(np.array(shares), np.array([logged[step] for step in sampled])) if shares else None
    whole = all(name in row.components for rows in sampled.values() for row in rows for name in names)
    if weights is None and whole:
        weights = weights_of(np.stack([metrics[f"reward/{name}"] for name in names], axis=-1), total)
    return weights


def weights_of(means: np.ndarray, total: np.ndarray) -> list[float] | None:
    """The [R] weights with which [S, R] means sum to [S] totals; None when there are none, or more than one set."""
    there = np.isfinite(means).all(axis=1) & np.isfinite(total)
    means, total = means[there], total[there]
    rewards, exact = means.shape[1], 1e-5 * max(1.0, np.abs(total).max(initial=0.0))
    if len(total) and np.allclose(means.sum(axis=1), total, rtol=0, atol=exact):
        return [1.0] * rewards
    if len(total) <= rewards:
        return None
    solved, _, rank, _ = np.linalg.lstsq(means, total, rcond=1e-6)
    fits = rank == rewards and np.allclose(means @ solved, total, rtol=0, atol=exact)
    return [round(float(weight), 4) for weight in solved] if fits else None

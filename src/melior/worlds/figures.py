"""The figures that a language run logs about its batches and its evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from melior.advantages.groups import group_extremes, group_index
from melior.intervals import mean_interval, pass_at_k
from melior.trajectories import Trajectories


def batch_figures(batch: Trajectories, pass_at: float) -> dict[str, float]:
    """Rewards, pass rate, share of mixed groups, lengths and truncation of a scored batch.

    Means are over rows to which the figure applies; a figure that applies to no row is left out.
    """
    figures: dict[str, float] = {}
    if batch.reward is not None:
        figures |= _moments("reward", batch.reward)
    for name, values in batch.components.items():
        figures |= _mean(f"reward/{name}", values)
    if batch.outcome is not None:
        seen = ~batch.outcome.isnan()
        figures |= _mean("pass_rate", (batch.outcome >= pass_at).double()[seen])
        low, high = group_extremes(batch.outcome, batch.group)
        index, count = group_index(batch.group)
        mixed = torch.zeros(count, dtype=torch.bool).index_put((index,), high > low)
        figures["mixed_share"] = float(mixed.double().mean())
    length = batch.length.double()
    figures |= {"length_mean": float(length.mean()), "length_max": float(length.max())}
    if "truncated" in batch.columns:
        figures |= _mean("truncated_share", batch.columns["truncated"].double())
    return figures


def _mean(name: str, values: torch.Tensor) -> dict[str, float]:
    values = values[~values.isnan()].double()
    return {name: float(values.mean())} if len(values) else {}


def _moments(name: str, values: torch.Tensor) -> dict[str, float]:
    values = values[~values.isnan()].double()
    if not len(values):
        return {}
    return {name: float(values.mean()), f"{name}_std": float(values.std(correction=0))}


def held_out_figures(batch: Trajectories, ks: Sequence[int], pass_at: float) -> Mapping[str, Any]:
    """pass@k and mean@k with 95 % intervals over prompts, mean reward components, lengths; "score" is pass at the
    smallest k.

    Each figure that has an interval is [value, low, high]. Completions to which the outcome does not apply (NaN) count
    neither for nor against; prompts that have no other are left out.
    """
    assert batch.outcome is not None
    applies = ~batch.outcome.isnan()
    outcome, (index, count) = batch.outcome[applies].double(), group_index(batch.group[applies])
    tried, right = (torch.zeros(count, dtype=torch.long) for _ in range(2))
    tried = tried.index_add(0, index, torch.ones_like(index))
    right = right.index_add(0, index, (outcome >= pass_at).long())
    figures: dict[str, Any] = {}
    for k in ks:
        figures[f"pass@{k}"] = list(pass_at_k(tried.tolist(), right.tolist(), k))
    if count and (int(tried.max()) > 1 or not bool(((outcome == 0) | (outcome == pass_at)).all())):
        # Otherwise it repeats pass@1.
        values = torch.zeros(count, dtype=torch.float64).index_add(0, index, outcome)
        figures[f"mean@{int(tried.max())}"] = list(mean_interval((values / tried).tolist()))
    for name, component in batch.components.items():
        figures |= _mean(f"reward/{name}", component)
    figures |= {"length_mean": float(batch.length.double().mean())}
    figures |= _mean("truncated_share", batch.columns["truncated"].double())
    return {"score": figures[f"pass@{min(ks)}"][0], "prompts": count, **figures}

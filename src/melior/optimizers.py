"""Optimizers by name, their state as a tree by parameter name, and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from melior.errors import RunError
from melior.settings import RunSettings


def make_optimizer(parameters: Mapping[str, torch.Tensor], settings: RunSettings) -> torch.optim.Optimizer:
    """The optimizer that the settings name, over these parameters."""
    values = list(parameters.values())
    if settings.optimizer == "sgd":
        return torch.optim.SGD(values, lr=settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(
        values, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
    )


def rate(settings: RunSettings, step: int) -> float:
    """The schedule's factor on the learning rate at a step counted from 0."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    done = min((step - settings.warmup) / max(settings.steps - settings.warmup, 1), 1.0)
    return 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, torch.Tensor]]:
    """Parameter name -> the optimizer's live tensors for it."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items() if p in optimizer.state}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Put such a state back; a name that no parameter bears is an error."""
    unknown = sorted(set(state) - set(parameters))
    if unknown:
        raise RunError(f"the optimizer's state names parameters that the model lacks: {', '.join(unknown[:3])}")
    optimizer.state.clear()
    for name, values in state.items():
        p = parameters[name]
        # AdamW counts its steps on the CPU; the moments lie with their parameter.
        optimizer.state[p] = {key: v.to(p.device) if v.dim() else v for key, v in values.items()}

"""Optimizers by name, schedules, and their state by parameter name."""

from __future__ import annotations

import pytest
import torch

from melior.optimizers import make_optimizer, optimizer_state, rate, restore_optimizer
from melior.settings import RunSettings


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_schedules(schedule, expected):
    settings = RunSettings(steps=6, warmup=2, schedule=schedule)
    assert [rate(settings, step) for step in range(7)] == pytest.approx(expected, abs=1e-6)
    assert rate(settings, 50) == pytest.approx(expected[-1], abs=1e-6)


def test_a_schedule_shorter_than_its_warmup():
    assert [rate(RunSettings(steps=1, warmup=4, schedule="linear"), step) for step in range(4)] == [
        0.25,
        0.5,
        0.75,
        1.0,
    ]


def test_optimizers_by_name():
    p = {"w": torch.ones(2, requires_grad=True)}
    sgd = make_optimizer(p, RunSettings(optimizer="sgd", lr=0.5))
    adamw = make_optimizer(p, RunSettings(lr=0.5, betas=(0.8, 0.9), weight_decay=0.1, eps=1e-3))
    assert isinstance(sgd, torch.optim.SGD) and isinstance(adamw, torch.optim.AdamW)
    group = adamw.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"], group["eps"]) == (0.5, (0.8, 0.9), 0.1, 1e-3)


def test_state_by_parameter_name_moves_between_optimizers():
    paths = []
    for resumed in (False, True):
        w = {"a": torch.ones(2, requires_grad=True), "b": torch.zeros(1, requires_grad=True)}
        optimizer = make_optimizer(w, RunSettings(lr=0.1))
        for step in range(4):
            if resumed and step == 2:
                saved = {
                    name: {k: v.clone() for k, v in s.items()} for name, s in optimizer_state(optimizer, w).items()
                }
                optimizer = make_optimizer(w, RunSettings(lr=0.1))
                restore_optimizer(optimizer, w, saved)
            for p in w.values():
                p.grad = p.detach() * 0.3 + step
            optimizer.step()
        paths.append(torch.cat([p.detach() for p in w.values()]))
    assert torch.equal(*paths)

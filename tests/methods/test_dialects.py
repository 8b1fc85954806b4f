"""GRPO as released code reads it: "trl:grpo" and "verl:grpo"."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from melior.method import Method
from melior.objectives import Clip, TokenMean
from melior.parts import Evaluation
from melior.records.catalogue import entry, get
from toys import table_batch

GRPO, TRL, VERL = get("grpo"), get("trl:grpo"), get("verl:grpo")


def test_each_differs_from_the_paper_where_it_says():
    for dialect in (TRL, VERL):
        changed = {f.name for f in fields(Method) if getattr(dialect, f.name) != getattr(GRPO, f.name)}
        assert changed == {"name", "advantage", "objective", "aggregate"}
        assert dialect.aggregate == TokenMean()
    assert TRL.objective == 1.0 * Clip() and VERL.objective == 1.0 * Clip(dual=3.0)
    assert entry("trl:grpo").settings == {"lr": 1e-6, "n": 8, "temperature": 1.0}


@pytest.mark.parametrize(("method", "eps"), [(GRPO, 1e-6), (TRL, 1e-4), (VERL, 1e-6)])
def test_epsilon_and_ddof(method, eps):
    batch = method.advantage(table_batch([1.0, 0.0], [[0], [0]], [0, 0]))
    assert batch.advantage[0, 0].item() == pytest.approx(0.5 / (0.5**0.5 + eps), rel=1e-12)


def test_a_group_of_one_keeps_its_reward_in_verl():
    batch = table_batch([2.0, 1.0, 0.0], [[0]] * 3, [7, 8, 8])
    assert VERL.advantage(batch).advantage[0, 0].item() == pytest.approx(2 / (1 + 1e-6), rel=1e-12)
    assert TRL.advantage(batch).advantage[0, 0].item() == GRPO.advantage(batch).advantage[0, 0].item() == 0.0


def test_verl_bounds_the_loss_of_negative_advantages():
    batch = table_batch([1.0, 0.0], [[0], [0]], [0, 0])
    batch = batch.with_(proximal_logp=torch.full((2, 1), -9.0, dtype=torch.float64))
    now = Evaluation(torch.full((2, 1), -9.0, dtype=torch.float64) + torch.tensor([[0.0], [3.0]]).double())
    a = VERL.advantage(batch).advantage[0, 0].item()
    assert VERL.objective(now, VERL.advantage(batch), TokenMean()).value.item() == pytest.approx((-a + 3 * a) / 2)
    b = TRL.advantage(batch).advantage[0, 0].item()
    ratio = torch.tensor(3.0).double().exp().item()
    assert TRL.objective(now, TRL.advantage(batch), TokenMean()).value.item() == pytest.approx((-b + ratio * b) / 2)

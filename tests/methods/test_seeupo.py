"""SeeUPO as a record; its numbers are checked where its update is (tests/updates/test_turn_by_turn.py)."""

from __future__ import annotations

import torch

from melior.methods.group_relative import GRPO
from melior.methods.multi_turn import SEEUPO
from melior.parts import AsIs
from melior.run import Run
from melior.settings import LanguageSettings
from toys import HandMadeWorld, learner_of, random_table, table_batch


def test_it_differs_from_grpo_in_advantage_objective_and_update_alone():
    mine, theirs = SEEUPO.record, GRPO.record
    for stage in ("rollout", "reward", "teacher", "aggregate", "curriculum"):
        assert getattr(mine, stage) == getattr(theirs, stage)
    assert {need.scorer for need in mine.needs() if need.quantity == "logp"} == {"reference"}


def test_a_step_in_a_multi_turn_world_makes_one_update_for_each_turn():
    batch = table_batch([1, 0, 1, 0], [[0, 1, 2, 0], [1, 0, 0, 2], [2, 2, 1, 1], [0, 2, 1, 0]], [0, 0, 1, 1]).column(
        turn=torch.tensor([[0, 0, 1, 2]]).expand(4, 4)
    )
    table = random_table(2, 4, 3)
    before = table.logits.detach().clone()
    # An environment's token (the third) belongs to a turn but is not the learner's.
    method = SEEUPO.record.but("seeupo", reward=AsIs())
    world = HandMadeWorld(batch.only(torch.tensor([[True, True, False, True]])))
    run = Run(method, LanguageSettings(), world, {"policy": learner_of(table, method.aggregate, lr=2.0)})
    run.prepare()
    batch = run.credit(next(iter(method.rollout(run, run.next_prompts()).values())))
    figures = method.update(run.learner(), batch, method.objective, run)
    assert figures["updates"] == 2.0
    assert figures["turn_correction"] > 0
    moved = (table.logits.detach() != before).any(-1).any(-1)
    assert moved.tolist() == [[True, True, False, True]] * 2

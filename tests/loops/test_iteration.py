"""One step of the line: rounds of prompts, what is kept, what is skipped, what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import melior
from melior.learner import Learner
from melior.loops.iteration import gather, iterate
from melior.parts import Memory, Objective, Update
from melior.prompts import Prompt
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from toys import HandMadeWorld, learner_of, random_table, table_batch


class Rounds(HandMadeWorld):
    """Four prompts a round, two siblings each; the outcomes of a round are told."""

    def __init__(self, *rounds: list[float]) -> None:
        super().__init__()
        self.rounds, self.sampled = rounds, 0

    def next_prompts(self, run: Run, n: int | None, split: str) -> list[Prompt]:
        return [Prompt(slot, (slot,)) for slot in range(4)]

    def sample(self, run: Run, prompts: Any, n: int, policy: str, blend: Any, greedy: bool) -> Trajectories:
        outcome = self.rounds[self.sampled]
        self.sampled += 1
        group = [run.round * 4 + slot for slot in range(4) for _ in range(2)]
        batch = table_batch(outcome, [[i % 3, i % 2] for i in range(8)], group, [g % 4 for g in group])
        return batch.column(length=torch.full((8,), 2)).with_(reward=None, components={}, behaviour_logp=None)

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        return batch.with_(components={"right": batch.outcome}, weights={"right": 1.0})

    def figures(self, run: Run, batch: Trajectories) -> dict[str, float]:
        return {"judged": float(len(batch))}


def run_with(method: Any, *rounds: list[float], **settings: Any) -> Run:
    policy = random_table(4, 2, 3)
    policy.prepare(method.needs())
    learner = learner_of(policy, method.aggregate, kind="adamw")
    run = Run(method, LanguageSettings(prompts=4, n=2, **settings), Rounds(*rounds), {"policy": learner})
    run.prepare()
    return run


MIXED, EQUAL, ONE = [0, 1] * 4, [1.0] * 8, [0, 1, 1, 1, 0, 0, 1, 1]
DAPO = melior.get("dapo").but("dapo-2", reward=melior.get("grpo").reward)


@pytest.mark.parametrize(
    ("rounds", "groups", "refills"),
    [
        ((MIXED,), [0, 1, 2, 3], 0),
        ((ONE, MIXED), [0, 4, 5, 6], 1),  # what came in excess is dropped, the first ones are kept
        ((EQUAL, ONE, ONE, MIXED), [4, 8, 12, 13], 3),
    ],
)
def test_rounds_follow_until_enough_groups_are_kept(rounds, groups, refills):
    run = run_with(DAPO, *rounds)
    sampled, kept = gather(run)
    assert kept["policy"].group.unique().tolist() == groups and run.round == refills
    assert len(sampled["policy"]) == 8 * len(rounds) == 8 * run.world.sampled


def test_tries_are_bounded_and_what_was_kept_is_learnt_from():
    method = DAPO.but("bounded", curriculum=replace(DAPO.curriculum, refill=2))
    run = run_with(method, EQUAL, ONE, EQUAL)
    figures = iterate(run)
    assert (figures["refills"], figures["rows"], figures["judged"], figures["skipped"]) == (2, 2, 24, 0)
    assert run.step == 1 and figures["update_norm"] > 0


def test_a_step_of_which_nothing_is_kept_is_counted_and_moves_nothing():
    run = run_with(DAPO.but("once", curriculum=replace(DAPO.curriculum, refill=1)), EQUAL, EQUAL)
    before = run.learner().policy.logits.clone()
    figures = iterate(run)
    assert (run.step, figures["skipped"], figures["rows"], figures["judged"]) == (1, 1, 0, 16)
    assert torch.equal(before, run.learner().policy.logits) and run.version == 0


@dataclass(frozen=True)
class Mine(Update):
    """Moves in its own way, takes it back or not, and reports figures of its own."""

    how: str = "step"
    accept: bool = True

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> dict[str, float]:
        before = learner.snapshot()
        learner.gradient(objective, batch)
        learner.proposed()
        if self.how == "step":
            learner.step()
        elif self.how == "assign":
            learner.assign(learner.vector() - 0.1 * learner.grad_vector())
        if not self.accept:
            learner.restore(before)
        return {"mine": 1.0}


@pytest.mark.parametrize(
    ("update", "skipped"), [(Mine(), 0), (Mine("assign"), 0), (Mine("nothing"), 1), (Mine("step", accept=False), 1)]
)
def test_a_step_counts_as_skipped_when_the_weights_are_what_they_were(update, skipped):
    run = run_with(melior.get("rloo").but("mine", update=update), MIXED)
    before = run.learner().vector()
    figures = iterate(run)
    assert (figures["mine"], figures["skipped"]) == (1, skipped)
    assert torch.equal(before, run.learner().vector()) == bool(skipped)


@dataclass(frozen=True)
class Counter(Memory):
    """Counts the steps that it saw and the rows that it recalled for."""

    seen: list[str] = field(default_factory=list, compare=False)

    def init(self, run: Run) -> dict[str, float]:
        return {"steps": 0.0}

    def recall(self, state: Mapping[str, float], batch: Trajectories) -> Trajectories:
        self.seen.append(f"recall {state['steps']:g}, credited: {batch.advantage is not None}")
        return batch

    def observe(self, state: Mapping[str, float], batch: Trajectories, stats: Mapping[str, float]) -> dict[str, float]:
        self.seen.append(f"observe, credited: {batch.advantage is not None}, moved: {stats['update_norm'] > 0}")
        return {"steps": state["steps"] + 1}


def test_memories_recall_before_the_credit_and_observe_after_the_update():
    counter = Counter()
    run = run_with(melior.get("rloo").but("counting", memory={"count": counter}), MIXED, MIXED)
    iterate(run)
    iterate(run)
    expected = [f"recall {step}, credited: False|observe, credited: True, moved: True".split("|") for step in (0, 1)]
    assert counter.seen == [*expected[0], *expected[1]] and run.state == {"count": {"steps": 2.0}}


def test_the_rate_is_that_of_the_step():
    run = run_with(melior.get("rloo"), MIXED, MIXED, MIXED, steps=4, lr=1.0, schedule="linear", warmup=2)
    rates = [iterate(run)["lr"] for _ in range(3)]
    assert rates[0] < rates[1] and rates[2] <= 1.0 and run.learner().rate > 0

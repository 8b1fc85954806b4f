"""What every language method owes: finite numbers on hand-made batches, parameters that move, state that comes back."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from melior.method import Method
from melior.parts import Scorer
from melior.records.catalogue import entries
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from toys import HandMadeWorld, language_batch, learner_of, random_table

LANGUAGE = sorted(
    name for name, row in entries().items() if isinstance(row.record, Method) and row.record.rollout.world == "language"
)


def scored(seed: int = 0) -> Trajectories:
    """A sampled and judged batch, as it stands before the reward stage."""
    batch = language_batch(seed, width=6)
    keep = {"length", "limit", "turn", "user"}
    return batch.with_(
        reward=None,
        proximal_logp=None,
        advantage=None,
        scores={},
        features={},
        sampled_prompt=batch.prompt,
        columns={k: v for k, v in batch.columns.items() if k in keep} | {"greedy": torch.full((11,), 0.25).double()},
    )


def prepared(name: str) -> Run:
    method = entries()[name].record
    learners = {}
    for learner in ("policy", *method.others):
        policy = random_table(4, 6, 5)
        policy.prepare(method.of(learner).needs())
        learners[learner] = learner_of(policy, method.of(learner).aggregate, rows=3, kind="adamw")
    asked = {need.scorer for need in method.needs()}
    asked |= {scorer for need in method.needs() if need.head is not None for scorer in need.head.scorers}
    models = {scorer: Scorer("a/path") for scorer in asked - {"policy", "proximal", "reference"} - set(method.scorers)}
    models |= {
        s: record if record.weights else replace(record, weights="a/path") for s, record in method.scorers.items()
    }
    method = method.but(name, scorers=models)
    run = Run(method, LanguageSettings(**method.pins), HandMadeWorld(scored()), learners)
    run.prepare()
    return run


def test_the_catalogue_holds_the_methods_of_the_first_issue():
    assert {
        "reinforce", "rloo", "remax", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "ppo-lm", "trl:grpo", "verl:grpo",
        "rgra", "two-grpo", "gdpo", "tempo", "tpo",
    } <= set(LANGUAGE)  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE)
def test_credit_is_finite_detached_and_zero_where_masked(name):
    run = prepared(name)
    for learner in run.learners:
        batch = run.credit(scored(), learner)
        if batch.advantage is not None:
            assert batch.advantage.isfinite().all() and not batch.advantage.requires_grad
            assert not batch.advantage[~batch.mask].any()
        assert set(batch.objects["text"]) == set(scored().objects["text"])
        assert torch.equal(batch.columns["user"], scored().columns["user"])


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_step_is_finite_moves_the_parameters_and_can_be_taken_back_bit_for_bit(name):
    run = prepared(name)
    for name, learner in run.learners.items():
        method = run.method.of(name)
        batch = run.credit(scored(), name)
        snapshot, before = learner.snapshot(), learner.vector()
        memories = copy.deepcopy(run.state)
        results = []
        for _ in range(2):
            stats = method.update(learner, batch, method.objective, run)
            assert all(torch.isfinite(torch.tensor(value)) for value in stats.values()), stats
            assert not torch.equal(learner.vector(), before) and learner.vector().isfinite().all()
            for key, memory in run.memories(name):
                run.state[key] = memory.observe(run.state[key], batch, stats)
            results.append(learner.vector())
            learner.restore(snapshot)
            run.state = copy.deepcopy(memories)
            assert torch.equal(learner.vector(), before)
        assert torch.equal(*results)


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_gradient_does_not_depend_on_the_micro_batch(name):
    gradients = []
    for rows in (1, 3, 0):
        run = prepared(name)
        learner = run.learner()
        learner.rows_per_micro = rows
        batch = learner.record(run.credit(scored()))
        if run.method.objective.terms:
            learner.gradient(run.method.objective, batch)
        gradients.append(learner.grad_vector())
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-10, atol=1e-13)

"""Trust-region blending as a record: distillation that asks for a teacher, and learns from it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from melior.engines.sampler import sample
from melior.errors import UserError
from melior.loops.iteration import iterate
from melior.methods.distillation import TRB
from melior.parts import AsIs, Blend, Scorer
from melior.policies.policy import Policy
from melior.policies.table import Table
from melior.prompts import Prompts
from melior.rollouts import Group, TrustBlend
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from toys import HandMadeWorld, learner_of, random_table, run_of

TEACHED = TRB.record.but("trb", scorers={"teacher": Scorer(weights="teacher")}, reward=AsIs())


class Chain(HandMadeWorld):
    """Two prompts and four tokens; completions come from the sampler, and nothing is rewarded."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def sample(
        self, run: Run, prompts: Prompts, n: int, policy: str, blend: Blend | None, greedy: bool
    ) -> Trajectories:
        self.asked.append(blend is not None)
        noise = torch.rand(len(prompts) * n, 5, generator=run.rng("sample"), dtype=torch.float64)
        others: Any = {name: run.scorer(name) for name in (blend.scorers if blend else ())}
        actor: Any = run.learner(policy).policy
        ids = [prompt.ids for prompt in prompts]
        drawn = sample(actor, ids, n, noise, temperature=1.0, blend=blend, others=others, run=run)
        rows = [prompt for prompt in ids for _ in range(n)]
        return Trajectories(
            mask=torch.ones_like(drawn.tokens, dtype=torch.bool),
            group=torch.arange(len(ids)).repeat_interleave(n),
            prompt=tuple(rows),
            tokens=drawn.tokens,
            behaviour_logp=drawn.logp,
            reward=torch.zeros(len(rows), dtype=torch.float64),
        )

    def figures(self, run: Run, batch: Trajectories) -> dict[str, float]:
        return {}

    def load_policy(self, path: str) -> Policy:
        assert path == "teacher"
        return random_table(2, 5, 4, seed=9)


def run_in_chain(method=TEACHED) -> tuple[Run, Table, Chain]:
    table, world = Table(2, 5, 4, dtype=torch.float64), Chain()
    run = Run(method, LanguageSettings(n=32), world, {"policy": learner_of(table, method.aggregate, lr=20.0)})
    run.prepare()
    return run, table, world


def test_a_missing_teacher_is_named_with_what_to_do():
    with pytest.raises(UserError, match=r"teacher.*--set scorers\.teacher\.weights=PATH"):
        run_of(TRB.record, random_table(2, 5, 4))


def test_the_student_comes_to_the_teacher():
    run, table, _ = run_in_chain()
    teacher: Any = run.scorer("teacher")
    first = (slice(None), 0, 4)  # the first token of each prompt, which every rollout visits

    def distance() -> float:
        mine, goal = (policy.logits.detach()[first].log_softmax(-1) for policy in (table, teacher))
        return float((mine.exp() * (mine - goal)).sum(-1).mean())

    start, before = distance(), teacher.logits.detach().clone()
    figures = [iterate(run) for _ in range(40)]
    assert distance() < 0.05 * start
    assert figures[-1]["reverse_kl_teacher_top16"] < 0.2 * figures[0]["reverse_kl_teacher_top16"]
    assert torch.equal(teacher.logits, before)


def test_the_loss_is_the_reverse_divergence_at_visited_prefixes_whatever_was_sampled_from():
    run, table, _ = run_in_chain()
    teacher: Any = run.scorer("teacher")
    batch = run.credit(next(iter(run.method.rollout(run, run.next_prompts()).values())))
    loss = run.learner().gradient(run.method.objective, batch)
    rows = table._where(batch.prompt, batch.tokens)
    student = table.logits.detach().clone().requires_grad_()
    s, t = student[rows].log_softmax(-1), teacher.logits.detach()[rows].log_softmax(-1)
    expected = (s.exp() * (s - t)).sum(-1).mean()
    (slope,) = torch.autograd.grad(expected, student)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(table.logits.grad, slope)


def test_rollouts_are_blended_during_the_warm_up_and_recorded_as_such():
    method = TEACHED.but("trb", rollout=Group(blend=TrustBlend(eps=0.3, anneal=2)))
    run, _, world = run_in_chain(method)
    gaps = [iterate(run)["kl_sampler"] for _ in range(3)]
    assert world.asked == [True, True, False]
    assert gaps[0] > 0.01
    assert gaps[2] == pytest.approx(0.0, abs=1e-12)

"""The roots: "reinforce", "rloo", "remax" and "ppo-lm" as `PARENTS` defines them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from melior.advantages import Reward
from melior.objectives import SequenceSum
from melior.parts import Evaluation
from melior.prompts import Prompts
from melior.records.catalogue import get
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from toys import HandMadeWorld, learner_of, random_table, run_of, table_batch

MASK = torch.tensor([[True, True], [True, False], [True, True]])
LOGP = torch.tensor([[-1.0, -2.0], [-3.0, -9.0], [-0.5, -0.5]], dtype=torch.float64)


def case(**columns: torch.Tensor) -> tuple[Evaluation, Trajectories]:
    batch = Trajectories(
        mask=MASK,
        group=torch.zeros(3, dtype=torch.long),
        reward=torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64),
        columns=columns,
    )
    return Evaluation(LOGP.clone().requires_grad_()), batch


def loss_of(name: str, **columns: torch.Tensor) -> float:
    method = get(name)
    now, batch = case(**columns)
    return method.objective(now, method.advantage(batch), method.aggregate).value.item()


def test_reinforce():
    """A = r; mean over the tokens of each answer, then over answers."""
    assert loss_of("reinforce") == pytest.approx((1.5 + 0 + 0.25) / 3)
    method = get("reinforce").but("with a mean", advantage=Reward("running_mean"))
    _, batch = case(running_mean=torch.full((3,), 0.25, dtype=torch.float64))
    assert method.advantage(batch).advantage[:, 0].tolist() == [0.75, -0.25, 0.25]


def test_rloo():
    """A = r - mean of the others = G / (G - 1) (r - mean); sum over tokens, mean over answers."""
    _, batch = case()
    advantage = get("rloo").advantage(batch).advantage
    assert advantage[:, 0].tolist() == pytest.approx([0.75, -0.75, 0.0])
    torch.testing.assert_close(advantage[:, 0], 3 / 2 * (batch.reward - batch.reward.mean()))
    assert loss_of("rloo") == pytest.approx((0.75 * 3 - 0.75 * 3 + 0) / 3)
    assert loss_of("rloo") == pytest.approx(0.0) and get("rloo").aggregate == SequenceSum()


def test_remax():
    """A = r - r(greedy); sum over tokens, mean over answers."""
    greedy = torch.full((3,), 0.25, dtype=torch.float64)
    assert loss_of("remax", greedy=greedy) == pytest.approx((0.75 * 3 - 0.25 * 3 + 0.25 * 1) / 3)


def test_remax_takes_the_reward_of_each_prompts_own_greedy_answer():
    class World(HandMadeWorld):
        calls: list[tuple[int, bool]] = []

        def sample(self, run: Run, prompts: Prompts, n: int, policy: str, blend: Any, greedy: bool) -> Trajectories:
            self.calls.append((n, greedy))
            if greedy:
                return self.known(table_batch([0.75, 0.25], [[0], [0]], [4, 7], prompt=[0, 1]))
            return self.known(table_batch([0.0, 1.0, 0.5], [[0], [0], [0]], [7, 4, 7], prompt=[1, 0, 1]))

        @staticmethod
        def known(batch: Trajectories) -> Trajectories:
            return batch.with_(reward=None, components={"right": batch.reward})

    method = get("remax")
    run = Run(method, LanguageSettings(n=3), World(), {"policy": learner_of(random_table(8, 2, 3))})
    batch = run.credit(method.rollout(run, [])["policy"])
    assert World.calls == [(3, False), (1, True)] and len(batch) == 3
    assert batch.columns["greedy"].tolist() == [0.25, 0.75, 0.25]
    assert batch.advantage[:, 0].tolist() == [-0.25, 0.25, 0.25]


# ---- ppo-lm


def ppo_batch() -> tuple[Run, Trajectories]:
    policy = random_table(3, 3, 4)
    run = run_of(get("ppo-lm"), policy)
    with torch.no_grad():
        policy.values.copy_(torch.linspace(-1, 1, policy.values.numel()).view_as(policy.values))  # type: ignore[union-attr]
        policy.logits.mul_(0.5)  # moved away from the reference
    batch = table_batch([1.0, 0.0, 0.5], [[0, 1, 2], [2, 0, 1], [3, 3, 0]], [0, 1, 2])
    batch = batch.with_(mask=torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()).column(
        length=torch.tensor([3, 2, 1])
    )
    return run, batch


def test_ppo_lm_token_rewards_and_gae_by_hand():
    """The outcome on the last trained token, -beta k1 on every token; gamma 1, lambda 0.95; whitened over tokens."""
    run, batch = ppo_batch()
    out = run.credit(batch)
    policy = run.learner().policy
    value = policy.values[policy._where(batch.prompt, batch.tokens)].detach()
    k1 = (policy.evaluate(batch).logp - run.scorer("reference").evaluate(batch).logp).detach()
    raw = torch.zeros(3, 3, dtype=torch.float64)
    for row, n in enumerate((3, 2, 1)):
        running = 0.0
        for t in reversed(range(n)):
            reward = -0.05 * k1[row, t] + (batch.reward[row] if t == n - 1 else 0.0)
            after = value[row, t + 1] if t < n - 1 else 0.0
            running = reward + after - value[row, t] + 0.95 * running
            raw[row, t] = running
    inside = raw[batch.mask]
    torch.testing.assert_close(out.columns["returns"][batch.mask], inside + value[batch.mask])
    torch.testing.assert_close(out.advantage[batch.mask], (inside - inside.mean()) / inside.std())
    assert not out.advantage[~batch.mask].any()


def test_ppo_lm_descends_surrogate_and_value_error_and_its_critic_learns():
    run, batch = ppo_batch()
    objective = get("ppo-lm").objective
    assert [w.weight for w in objective.terms] == [1.0, 0.1]
    out = run.credit(batch)
    before = (
        (run.learner().evaluate(out, objective.needs())["value"] - out.columns["returns"])[out.mask].square().mean()
    )
    get("ppo-lm").update(run.learner(), out, objective, run)
    after = (run.learner().evaluate(out, objective.needs())["value"] - out.columns["returns"])[out.mask].square().mean()
    assert after < before

"""RGRA, the method "rgra": its worked numbers, its equality with GRPO's first step, and the paper's ablations."""

from __future__ import annotations

import pytest
import torch

from melior.advantages import GroupRelative, PositiveOnly
from melior.objectives import Clip, PolicyGradient, ReferenceKL, SequenceMean, Surrogate, TokenMean
from melior.parts import Evaluation
from melior.policies.table import Table
from melior.records.catalogue import get
from melior.trajectories import Trajectories
from toys import direct_gradient, draw, language_batch, learner_of, random_table, table_batch

RGRA = get("rgra")
GRPO = get("grpo").but("grpo at rgra's epsilon", advantage=RGRA.advantage)


def worked() -> tuple[Evaluation, Trajectories]:
    batch = Trajectories(
        mask=torch.tensor([[True, True], [True, False]]),
        group=torch.zeros(2, dtype=torch.long),
        reward=torch.tensor([1.0, 0.0], dtype=torch.float64),
        scores={"reference": {"logp": torch.tensor([[-0.4, -1.1], [-0.5, -9.0]], dtype=torch.float64)}},
    )
    return Evaluation(torch.tensor([[-0.5, -1.0], [-0.2, -0.4]], dtype=torch.float64).requires_grad_()), batch


def test_check_1_worked_example():
    now, batch = worked()
    batch = RGRA.advantage(batch)
    assert batch.advantage[:, 0].tolist() == pytest.approx([0.7070068, -0.7070068], abs=1e-7)
    objective = 1.0 * PolicyGradient()
    assert objective(now, batch, RGRA.aggregate).value.item() == pytest.approx(0.1944269, abs=1e-7)
    assert objective(now, batch, TokenMean()).value.item() == pytest.approx(0.3063696, abs=1e-7)
    population = GroupRelative(eps=1e-4, ddof=0)(batch)
    assert population.advantage[:, 0].tolist() == pytest.approx([0.9998000, -0.9998000], abs=1e-7)
    assert objective(now, population, SequenceMean()).value.item() == pytest.approx(0.2749450, abs=1e-7)


def test_the_record_is_the_definition():
    now, batch = worked()
    loss = RGRA.objective(now, RGRA.advantage(batch), RGRA.aggregate).value
    d = torch.tensor([0.1, -0.1, -0.3], dtype=torch.float64)
    k3 = d.exp() - d - 1
    expected = 0.1944269 + 0.04 * 0.5 * ((k3[0] + k3[1]) / 2 + k3[2])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-7)
    assert RGRA.update.epochs * RGRA.update.minibatches == 1  # strictly on-policy


def test_check_2_its_gradient_is_grpos_at_the_first_step_and_not_after():
    policy = random_table(4, 6, 5)
    learner = learner_of(policy, SequenceMean(), lr=5.0)
    batch = RGRA.advantage(learner.record(language_batch().with_(proximal_logp=None)))
    gradients = [direct_gradient(policy, m.objective, batch, m.aggregate) for m in (RGRA, GRPO)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
    assert gradients[0].norm() > 0.01
    learner.gradient(RGRA.objective, batch)
    learner.step()
    later = [direct_gradient(policy, m.objective, batch, m.aggregate) for m in (RGRA, GRPO)]
    assert (later[0] - later[1]).norm() > 1e-3


def test_check_3_positive_feedback_leaves_one_row_a_gradient():
    batch = table_batch([0.0, 0.0, 0.0, 1.0], [[0, 1], [1, 1], [2, 0], [1, 0]], [0] * 4)
    policy, objective = random_table(1, 2, 3), 1.0 * PolicyGradient()
    positive = (RGRA.advantage | PositiveOnly())(batch)
    assert [row for row, _ in learner_of(policy).row_gradients(objective, positive)] == [3]
    assert len(list(learner_of(policy).row_gradients(objective, RGRA.advantage(batch)))) == 4
    binary = (RGRA.advantage | PositiveOnly(binary=True))(batch)
    assert binary.advantage.tolist() == [[0, 0]] * 3 + [[1, 1]]


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0]])
def test_check_4_equal_rewards_or_a_group_of_one_leave_the_divergence_alone(rewards):
    policy, reference = random_table(1, 2, 3), random_table(1, 2, 3, seed=1)
    batch = table_batch(rewards, [[0, 1], [1, 1], [2, 0]][: len(rewards)], [0] * len(rewards))
    batch = RGRA.advantage(batch.scored("reference", logp=reference.evaluate(batch).logp.detach()))
    assert not batch.advantage.any()
    gradient = direct_gradient(policy, RGRA.objective, batch, RGRA.aggregate)
    k3 = direct_gradient(policy, 1.0 * ReferenceKL("k3"), batch, RGRA.aggregate)
    torch.testing.assert_close(gradient, 0.04 * k3, rtol=1e-14, atol=0)
    assert k3.norm() > 0.01


def test_an_empty_answer_changes_nothing():
    now, batch = worked()
    batch = batch.with_(mask=torch.tensor([[True, True], [False, False]]))
    loss = RGRA.objective(now, RGRA.advantage(batch), RGRA.aggregate).value
    assert loss.isfinite() and torch.autograd.grad(loss, now.logp)[0][1].tolist() == [0.0, 0.0]


def test_the_ablations_with_a_ratio_are_its_neighbours():
    now, batch = worked()
    batch = RGRA.advantage(batch).with_(proximal_logp=torch.tensor([[-0.9, -1.0], [-0.2, -0.2]], dtype=torch.float64))
    ratio = torch.tensor([[0.4], [0.0]], dtype=torch.float64).exp()
    surrogate, clipped = Surrogate()(now, batch), Clip()(now, batch)
    torch.testing.assert_close(surrogate[0, 0], -0.7070068 * ratio[0, 0], rtol=0, atol=1e-6)
    assert clipped[0, 0].item() == pytest.approx(-1.2 * 0.7070068, abs=1e-6)
    assert surrogate[1, 0].item() == clipped[1, 0].item() == pytest.approx(0.7070068, abs=1e-7)


def learn(method, updates: int = 80, seed: int = 0) -> list[float]:
    """Mean fraction of a random target string that is hit, after each update (the spec's tabular task)."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 4, (8, 3), generator=generator)
    table = Table(8, 3, 4)
    learner = learner_of(table, TokenMean(), lr=0.05, kind="adamw")
    curve = []
    for _ in range(updates):
        batch = draw(table, 8, 3, generator)
        batch = batch.with_(reward=(batch.tokens == target[batch.group]).float().mean(1))
        curve.append(float(batch.reward.mean()))
        learner.gradient(method.objective, method.advantage(batch))
        learner.step()
    return curve


def test_check_5_it_learns_as_fast_as_grpo_and_faster_than_from_positive_rows_alone():
    plain = RGRA.but("plain", objective=PolicyGradient())
    rgra, grpo = learn(plain), learn(GRPO.but("grpo", objective=Clip()))
    positive = learn(plain.but("positive", advantage=RGRA.advantage | PositiveOnly()))

    def reaches(curve: list[float]) -> int:
        return next(i for i, value in enumerate(curve) if value >= 0.9)

    assert rgra == pytest.approx(grpo, abs=1e-6)
    assert sum(rgra[-10:]) / 10 > 0.93
    assert reaches(rgra) < reaches(positive) and sum(positive[-10:]) < sum(rgra[-10:])

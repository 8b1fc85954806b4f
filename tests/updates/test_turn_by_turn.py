"""Turns one after another: the order of operations, the ratios and their product, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from melior.advantages import GroupRelative, Whiten
from melior.learner import Learner
from melior.methods.multi_turn import SEEUPO as ENTRY
from melior.objectives import Clip, PolicyGradient, ReferenceKL, SegmentRatio, SequenceMean, SequenceSum
from melior.parts import Objective, Transform
from melior.policies.table import Table
from melior.run import Run
from melior.trajectories import Trajectories
from melior.updates import Gradient, TurnByTurn
from melior.updates.turn_by_turn import accumulate, turn_ratio
from toys import learner_of, random_table, run_of, table_batch

SEEUPO = ENTRY.record
ADVANTAGE: Transform = GroupRelative(scale=None, single="reward") | Whiten(clamp=3, over="rows", eps=0, floor=1e-6)
SURROGATE: Objective = 1.0 * Clip(ratio=SegmentRatio("turn"))


def two_turns(table: Table, rewards: tuple[float, ...] = (1.0, 0.0, 1.0, 0.0)) -> Trajectories:
    """Four rows of two one-token turns, credited."""
    batch = table_batch(rewards, [[0, 1], [1, 0], [2, 2], [0, 2]], [0, 0, 1, 1], prompt=[0, 0, 0, 0])
    return ADVANTAGE(batch.column(turn=torch.tensor([[1, 2]]).expand(4, 2)))


def update(
    update: TurnByTurn | Gradient, learner: Learner, objective: Objective, batch: Trajectories
) -> dict[str, float]:
    run: Run = run_of(SEEUPO, learner.policy, batch)
    return update(learner, batch, objective, run)


# ---- check 1: the advantage


def test_advantage_is_centered_in_the_group_and_whitened_over_the_rows():
    batch = table_batch([1, 0, 1, 0, 1, 1, 1, 0], [[0, 0]] * 8, [0] * 4 + [1] * 4)
    centered = GroupRelative(scale=None, single="reward")(batch)
    assert centered.advantage[:, 0].tolist() == [0.5, -0.5, 0.5, -0.5, 0.25, 0.25, 0.25, -0.75]
    assert ADVANTAGE(batch).advantage.tolist() == [[a, a] for a in (1.0, -1.0, 1.0, -1.0, 0.5, 0.5, 0.5, -1.5)]


@pytest.mark.parametrize(("rewards", "expected"), [((1, 1, 1, 1), (0, 0, 0, 0)), ((1, 1, 0, 0), (0, 0, 0, 0))])
def test_equal_rewards_within_every_group_teach_nothing(rewards, expected):
    batch = ADVANTAGE(table_batch(rewards, [[0, 0]] * 4, [0, 0, 1, 1]))
    assert batch.advantage[:, 0].tolist() == list(expected)


def test_a_group_of_one_keeps_its_reward_until_the_batch_is_whitened():
    batch = table_batch([1, 0], [[0, 0]] * 2, [0, 1])
    assert ADVANTAGE(batch).advantage[:, 0].tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert ADVANTAGE(batch.rows([0])).advantage[:, 0].tolist() == [0.0]  # centered, and one row is not divided


# ---- checks 2 and 5: the ratio of a turn and the product


def test_ratio_is_the_clipped_geometric_mean_over_the_turns_tokens():
    old = torch.tensor([[0.5, 0.5, 0.5], [0.4, 0.4, 0.9], [0.5, 0.5, 0.5]]).double().log()
    new = torch.tensor([[0.6, 0.55, 0.5], [0.3, 0.3, 0.1], [0.9, 0.9, 0.9]]).double().log()
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    ratio, sound = turn_ratio(new, old, mask, 0.2)
    assert ratio.tolist() == pytest.approx([1.096961, 0.8, 1.0], abs=1e-6)
    assert turn_ratio(new, old, mask, 0.5)[0][1] == pytest.approx(0.75)
    assert sound.all()


def test_product_accumulates_within_its_bounds():
    def next_product(product: float, ratio: float) -> float:
        return float(accumulate(torch.tensor([product]).double(), torch.tensor([ratio]).double(), 0.2))

    assert next_product(1.2, 0.8) == pytest.approx(0.96)
    assert next_product(1.096961, 0.8) == pytest.approx(0.877569, abs=1e-6)
    assert next_product(1.2, 1.2) == pytest.approx(1.2)
    assert next_product(0.8, 0.8) == pytest.approx(0.8)


def test_a_ratio_that_is_not_finite_counts_as_one_and_is_reported():
    old = torch.zeros(3, 1).double()
    new = torch.tensor([[-torch.inf], [torch.nan], [50.0]]).double()
    ratio, sound = turn_ratio(new, old, torch.ones(3, 1, dtype=torch.bool), 0.2)
    assert ratio.tolist() == [1.0, 1.0, 1.2]
    assert sound.tolist() == [False, False, True]


# ---- check 3: the order of operations


def by_hand(table: Table, batch: Trajectories, lr: float, clip: float) -> torch.Tensor:
    """The two steps written out for one-token turns: the gradient of mean_i w_i log pi(a_i) is w (onehot - p)."""
    logits = table.logits.detach().clone()
    a, first, second = batch.advantage[:, 0], batch.tokens[:, 0], batch.tokens[:, 1]

    def climb(where: tuple[int, int, int], action: int, weight: float) -> torch.Tensor:
        p = start[where].softmax(-1)
        return lr * weight * (torch.nn.functional.one_hot(torch.tensor(action), len(p)) - p) / len(batch)

    start = logits.clone()
    for i in range(len(batch)):
        where = (0, 1, int(first[i]))
        logits[where] += climb(where, int(second[i]), float(a[i]))
    before = start[0, 1].log_softmax(-1)[first, second]
    u = (logits[0, 1].log_softmax(-1)[first, second] - before).exp().clamp(1 - clip, 1 + clip)
    start = logits.clone()
    for i in range(len(batch)):
        where = (0, 0, table.vocabulary)
        logits[where] += climb(where, int(first[i]), float(a[i] * u[i]))
    return logits


def test_the_first_turn_weighs_its_advantage_by_the_new_last_turn():
    table = random_table(1, 2, 3, seed=3)
    batch, expected = two_turns(table), by_hand(table, two_turns(table), lr=2.0, clip=0.2)
    update(TurnByTurn(), learner_of(table, SequenceMean(), lr=2.0), SURROGATE, batch)
    torch.testing.assert_close(table.logits.detach(), expected, rtol=0, atol=1e-12)


def test_without_the_correction_the_first_turn_would_move_elsewhere():
    table = random_table(1, 2, 3, seed=3)
    corrected = by_hand(table, two_turns(table), lr=2.0, clip=0.2)
    plain = by_hand(table, two_turns(table), lr=2.0, clip=0.0)
    assert float((corrected - plain)[0, 0].abs().max()) > 0.01


def test_turns_are_updated_in_the_order_asked_for(monkeypatch):
    table = random_table(1, 2, 3, seed=3)
    learner, moved = learner_of(table, SequenceMean(), lr=2.0), []
    step = learner.step

    def watched() -> dict[str, float]:
        before = table.logits.detach().clone()
        figures = step()
        moved.append(
            tuple(position for position in (0, 1) if not torch.equal(before[0, position], table.logits[0, position]))
        )
        return figures

    monkeypatch.setattr(learner, "step", watched)
    update(TurnByTurn(), learner, SURROGATE, two_turns(table))
    update(TurnByTurn(order="sequential"), learner, SURROGATE, two_turns(table))
    assert moved == [(1,), (0,), (0,), (1,)]
    update(TurnByTurn(order="random"), learner, SURROGATE, two_turns(table))
    assert sorted(moved[4:]) == [(0,), (1,)]


# ---- check 4: one turn


@pytest.mark.parametrize("marked", [True, False])
def test_a_single_turn_is_gspo_with_the_whitened_advantage(marked):
    table, other = random_table(2, 4, 3, seed=5), random_table(2, 4, 3, seed=5)
    batch = table_batch([1, 0, 0, 1], [[0, 1, 2, 0], [1, 1, 0, 2], [2, 0, 0, 1], [0, 0, 1, 1]], [0, 0, 1, 1])
    reference = random_table(2, 4, 3, seed=6).evaluate(batch).logp.detach()
    batch = ADVANTAGE(batch).scored("reference", logp=reference)
    turned = batch.column(turn=torch.full((4, 4), 3)) if marked else batch
    objective = Clip(ratio=SegmentRatio("row")) + 0.002 * ReferenceKL()
    figures = update(TurnByTurn(), learner_of(table, SequenceMean()), SEEUPO.objective, turned)
    update(Gradient(), learner_of(other, SequenceMean()), objective, batch)
    assert figures["updates"] == 1.0
    assert float((other.logits - random_table(2, 4, 3, seed=5).logits).detach().abs().max()) > 0.001
    torch.testing.assert_close(table.logits, other.logits, rtol=0, atol=1e-15)


# ---- missing turns


def test_a_missing_turn_counts_as_zero_in_the_mean_over_rows_and_leaves_the_product_alone():
    table, start = random_table(1, 2, 3, seed=3), random_table(1, 2, 3, seed=3).logits.detach()
    batch = two_turns(table)
    tokens, advantage = batch.tokens, batch.advantage[:, 0]
    short = batch.only(torch.tensor([[True, True], [True, True], [True, False], [True, False]]))
    update(TurnByTurn(), learner_of(table, SequenceMean(), lr=2.0), SURROGATE, short)

    def slope(where: tuple[int, int, int], action: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(action, 3) - start[where].softmax(-1)

    expected = start.clone()
    for i in (0, 1):  # the last turn: two of four rows have it
        where = (0, 1, int(tokens[i, 0]))
        expected[where] += 2.0 * advantage[i] * slope(where, tokens[i, 1]) / 4
    torch.testing.assert_close(table.logits[0, 1].detach(), expected[0, 1], rtol=0, atol=1e-12)
    u = (expected.log_softmax(-1) - start.log_softmax(-1))[0, 1, tokens[:, 0], tokens[:, 1]].exp().clamp(0.8, 1.2)
    u[2:] = 1.0
    for i in range(4):
        expected[0, 0, 3] += 2.0 * advantage[i] * u[i] * slope((0, 0, 3), tokens[i, 0]) / 4
    torch.testing.assert_close(table.logits.detach(), expected, rtol=0, atol=1e-12)


def test_a_turn_that_no_row_has_costs_no_step():
    table = random_table(1, 2, 3, seed=3)
    batch = two_turns(table)
    batch = batch.column(turn=torch.tensor([[1, 7]]).expand(4, 2)).only(torch.tensor([[True, False]]))
    figures = update(TurnByTurn(), learner_of(table, SequenceMean()), SURROGATE, batch)
    assert figures["updates"] == 1.0


def test_a_row_whose_ratio_is_not_finite_is_left_out_of_the_remaining_turns(monkeypatch):
    table = random_table(1, 2, 3, seed=3)
    learner, seen = learner_of(table, SequenceMean()), []
    evaluate, gradient = learner.evaluate, learner.gradient

    def broken(batch: Trajectories, *needs):
        now = evaluate(batch, *needs)
        now.logp[2] = torch.nan if seen else now.logp[2]
        return now

    def watched(objective: Objective, batch: Trajectories):
        seen.append(batch.mask.any(-1).tolist())
        monkeypatch.setattr(learner, "evaluate", evaluate)
        loss = gradient(objective, batch)
        monkeypatch.setattr(learner, "evaluate", broken)
        return loss

    monkeypatch.setattr(learner, "evaluate", broken)
    monkeypatch.setattr(learner, "gradient", watched)
    update(TurnByTurn(), learner, SURROGATE, two_turns(table))
    assert seen == [[True] * 4, [True, True, False, True]]


# ---- check 6: learning with exact gradients

REWARD = torch.tensor([[0.6, 0.5, 0.5], [1, 0, 0], [0.2, 0.2, 0.2]]).double()


def value(table: Table) -> float:
    """J of the two-turn policy."""
    first = table.logits.detach()[0, 0, 3].softmax(-1)
    second = table.logits.detach()[0, 1, :3].softmax(-1)
    return float((first[:, None] * second * REWARD).sum())


def every_trajectory(table: Table) -> Trajectories:
    """All nine pairs of actions; the advantage carries their probability, so that sums over rows are expectations."""
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    batch = table_batch(REWARD.flatten().tolist(), pairs.tolist(), [0] * 9)
    probability = table.evaluate(batch).logp.detach().sum(-1).exp()
    weighted = probability * (batch.reward - value(table)) * len(batch)
    return batch.with_(advantage=weighted[:, None].expand(9, 2)).column(turn=torch.tensor([[0, 1]]).expand(9, 2))


def test_exact_updates_never_lose_and_keep_ahead_of_simultaneous_ones():
    marks, curves = (50, 100), {}
    for name, part in {"turns": TurnByTurn(clip=math.inf), "at once": Gradient()}.items():
        table = Table(1, 2, 3, dtype=torch.float64)
        learner = learner_of(table, SequenceSum(), lr=0.5)
        run = run_of(SEEUPO, table)
        curve = [value(table)]
        for _ in range(marks[-1]):
            part(learner, every_trajectory(table), 1.0 * PolicyGradient(), run)
            curve.append(value(table))
        curves[name] = curve
    assert curves["turns"][0] == pytest.approx(0.355556, abs=1e-6)
    assert [curves["at once"][mark] for mark in marks] == pytest.approx([0.7903, 0.9485], abs=1e-4)
    assert [curves["turns"][mark] for mark in marks] == pytest.approx([0.8051, 0.9501], abs=1e-4)
    assert all(later >= earlier for earlier, later in zip(curves["turns"], curves["turns"][1:], strict=False))

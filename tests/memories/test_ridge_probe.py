"""The probe on hidden states: the ridge, its pairs, its buffer, and the baseline it makes. Numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from melior.advantages import LeaveOneOut, SiblingBaseline
from melior.memories import RidgeProbe
from melior.memories.ridge_probe import fit, predict, principal_axes, ridge, sibling_target
from melior.methods.memories import POISE
from melior.trajectories import Trajectories
from toys import random_table, run_of, table_batch


def seen(rewards: list[float], features: torch.Tensor, group: list[int]) -> Trajectories:
    """A scored batch with hidden states [B,d] and an entropy of row number / 10 at each of its two tokens."""
    batch = table_batch(rewards, [[0, 0]] * len(rewards), group)
    entropy = torch.arange(len(rewards)).double()[:, None].expand(-1, 2) / 10
    return batch.with_(features={"hidden": features.double()}).column(entropy=entropy)


def rows(count: int, width: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


# ---- check 1: baselines, advantages, targets


@pytest.mark.parametrize(
    ("reward", "prediction", "advantage", "target"),
    [
        ([1, 0], [0.7, 0.4], [0.6, -0.7], [0, 1]),
        ([1, 0, 1], [0.6, 0.3, 0.9], [0.4, -0.75, 0.55], [0.5, 1, 0.5]),
    ],
)
def test_each_row_is_judged_by_its_siblings_predictions(reward, prediction, advantage, target):
    batch = table_batch(reward, [[0, 0]] * len(reward), [0] * len(reward))
    batch = batch.column(prediction=torch.tensor(prediction).double())
    assert SiblingBaseline()(batch).advantage[:, 0].tolist() == pytest.approx(advantage)
    assert sibling_target(batch, False).tolist() == pytest.approx(target)


def test_targets_can_be_the_groups_mean_and_need_a_sibling_otherwise():
    batch = table_batch([1, 0, 1], [[0, 0]] * 3, [0, 0, 1])
    assert sibling_target(batch, True).tolist() == [0.5, 0.5, 1.0]
    alone = sibling_target(batch, False).tolist()
    assert alone[:2] == [0.0, 1.0]
    assert math.isnan(alone[2])


def test_both_right_is_still_better_than_expected():
    batch = table_batch([1, 1], [[0, 0]] * 2, [0, 0]).column(prediction=torch.tensor([0.9, 0.9]).double())
    assert SiblingBaseline()(batch).advantage[:, 0].tolist() == pytest.approx([0.1, 0.1])


# ---- check 2: unbiased


def test_the_siblings_prediction_leaves_the_expected_gradient_alone_and_ones_own_does_not():
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    reward, prediction = torch.tensor([1.0, 0.2, 0.6]).double(), torch.tensor([0.9, -0.4, 0.3]).double()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    tokens, chance = pairs.flatten(), (p[pairs[:, 0]] * p[pairs[:, 1]]).repeat_interleave(2)
    score = torch.eye(3).double()[tokens] - p  # gradient of log p by the logits
    batch = table_batch(reward[tokens].tolist(), tokens[:, None].tolist(), [g for g in range(9) for _ in range(2)])
    crossed = SiblingBaseline()(batch.column(prediction=prediction[tokens])).advantage[:, 0]

    def gradient(advantage: torch.Tensor) -> torch.Tensor:
        return (chance[:, None] * advantage[:, None] * score).sum(0) / 2

    truth = gradient(batch.reward)
    torch.testing.assert_close(gradient(crossed), truth, rtol=0, atol=1e-12)
    assert float((gradient(batch.reward - prediction[tokens]) - truth).abs().max()) > 0.05


# ---- check 3 and the bootstrap


def test_before_anything_is_fitted_it_is_the_leave_one_out_baseline():
    batch = seen([1, 0, 1, 0, 0, 1], rows(6), [0, 0, 0, 1, 1, 2])
    probe = RidgeProbe(bootstrap=2)
    state = probe.init(None)
    for _ in range(2):
        recalled = SiblingBaseline()(probe.recall(state, batch))
        assert torch.equal(recalled.advantage, LeaveOneOut()(batch).advantage)
        state = probe.observe(state, batch, {})
    assert not torch.equal(SiblingBaseline()(probe.recall(state, batch)).advantage, LeaveOneOut()(batch).advantage)


def test_an_empty_buffer_is_leave_one_out_whatever_the_step():
    probe, alone = RidgeProbe(bootstrap=0), seen([1, 0], rows(2), [0, 1])
    state = probe.observe(probe.init(None), alone, {})  # nobody has a sibling to pair with
    assert state["steps"] == 1
    assert probe.recall(state, alone).columns["prediction"].tolist() == [1.0, 0.0]


# ---- check 4: the order in a step


def test_this_steps_rewards_do_not_touch_this_steps_baselines():
    probe, features = RidgeProbe(bootstrap=0, alpha=0.1), rows(8)
    state = probe.observe(probe.init(None), seen([1, 0, 0, 1] * 2, features, [0, 0, 1, 1] * 2), {})
    now = rows(4, seed=1)
    one = probe.recall(state, seen([1, 1, 0, 1], now, [0, 0, 1, 1])).columns["prediction"]
    two = probe.recall(state, seen([0, 0, 1, 0], now, [0, 0, 1, 1])).columns["prediction"]
    assert torch.equal(one, two)
    later = probe.observe(state, seen([1, 1, 0, 1], now, [0, 0, 1, 1]), {})
    third = probe.recall(later, seen([0, 0, 1, 0], now, [0, 0, 1, 1])).columns["prediction"]
    assert not torch.equal(one, third)


# ---- check 5: the ridge, and what is around it


def test_ridge_is_the_closed_form_with_a_free_intercept():
    weights, intercept = ridge(torch.arange(5.0).double()[:, None], torch.tensor([0, 0, 1, 1, 1]).double(), 10.0)
    assert weights.tolist() == pytest.approx([0.15])
    assert float(intercept) == pytest.approx(0.3)


def test_ridge_minimizes_the_sum_of_squares_plus_the_penalty():
    x, y = rows(20, 3).double(), rows(20, 1, seed=1).double().squeeze(1)
    solution = torch.cat([ridge(x, y, 4.0)[0], ridge(x, y, 4.0)[1][None]]).requires_grad_()
    loss = (x @ solution[:3] + solution[3] - y).square().sum() + 4.0 * solution[:3].square().sum()
    (slope,) = torch.autograd.grad(loss, solution)
    torch.testing.assert_close(slope, torch.zeros(4).double(), rtol=0, atol=1e-10)


def test_principal_axes_are_those_of_greatest_variance_and_no_more_than_the_rows_span():
    x = torch.zeros(6, 3).double()
    x[:, 1], x[:, 0] = torch.tensor([5, -5, 3, -3, 1, -1]), torch.tensor([1, 1, -1, -1, 0, 0])
    assert principal_axes(x, 1).abs().squeeze(1).tolist() == pytest.approx([0, 1, 0])
    assert principal_axes(x, 3).shape == (3, 2)  # the third column never varies
    assert principal_axes(x[:2], 64).shape == (3, 1)
    assert principal_axes(torch.ones(4, 3).double(), 2).shape == (3, 0)


def test_the_probe_finds_a_linear_reward_and_clips_its_predictions():
    features = torch.cat([rows(200, 5), torch.zeros(200, 1)], 1)
    truth = 0.5 + 0.4 * features[:, 0]
    probe = fit(features, truth, pca=5, alpha=1e-6)
    torch.testing.assert_close(predict(probe, features), truth.double().clamp(0, 1), rtol=0, atol=1e-6)
    assert float(predict(probe, torch.full((1, 6), 100.0))) in (0.0, 1.0)


def test_the_buffer_keeps_the_newest_pairs():
    probe = RidgeProbe(buffer=6, bootstrap=0)
    state = probe.observe(probe.init(None), seen([1, 0, 1, 0], rows(4), [0, 0, 1, 1]), {})
    state = probe.observe(state, seen([0, 1, 1, 1], rows(4, seed=1), [0, 0, 1, 1]), {})
    assert state["features"].shape == (6, 5)
    torch.testing.assert_close(state["features"][2:, :4], rows(4, seed=1))
    assert state["targets"].tolist() == [0, 1, 1, 0, 1, 1]
    assert state["features"][-1, 4].item() == pytest.approx(0.3)  # the mean entropy


def test_features_that_are_not_finite_take_the_buffers_mean():
    probe, known = RidgeProbe(bootstrap=0), rows(4)
    state = probe.observe(probe.init(None), seen([1, 0, 1, 0], known, [0, 0, 1, 1]), {})
    strange = rows(2, seed=1)
    strange[0, 2] = torch.nan
    filled = strange.clone()
    filled[0, 2] = known[:, 2].mean()
    got = probe.recall(state, seen([1, 0], strange, [0, 0])).columns["prediction"]
    torch.testing.assert_close(got, probe.recall(state, seen([1, 0], filled, [0, 0])).columns["prediction"])
    assert probe.observe(state, seen([1, 0], strange, [0, 0]), {})["features"].isfinite().all()
    assert probe.observe(probe.init(None), seen([1, 0], strange, [0, 0]), {})["features"].isfinite().all()


def test_rows_without_a_reward_teach_nothing():
    probe = RidgeProbe(bootstrap=0)
    batch = seen([1, 0, math.nan], rows(3), [0, 0, 0]).only(torch.tensor([[True], [True], [False]]))
    state = probe.observe(probe.init(None), batch, {})
    assert state["targets"].tolist() == [0, 1]
    assert probe.recall(state, batch).columns["prediction"].isfinite().all()


def test_the_run_brings_the_features():
    method = POISE.record.but("mine", memory={"probe": RidgeProbe(bootstrap=0, alpha=1.0)})
    policy = random_table(4, 2, 5)
    batch = table_batch([1, 0, 0, 1], [[0, 1], [1, 2], [3, 4], [4, 4]], [0, 0, 1, 1])
    run = run_of(method, policy, batch)
    credited = run.credit(batch)
    assert credited.features["hidden"].shape == (4, 5)
    run.state["probe"] = method.memory["probe"].observe(run.state["probe"], credited, {})
    again = run.credit(batch)
    prediction = again.columns["prediction"]
    assert not torch.equal(prediction, batch.reward)
    expected = batch.reward - prediction[[1, 0, 3, 2]]
    torch.testing.assert_close(again.advantage, expected[:, None].expand(4, 2))

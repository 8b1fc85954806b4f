"""Batches from environments: what a row holds, and which value each step looks forward to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

from melior.errors import UserError
from melior.loops.control import build
from melior.loops.given import Given
from melior.methods.control import PPO
from melior.parts import Blend
from melior.rollouts.environments import VectorEnvs
from melior.run import Run
from melior.settings import ControlSettings
from melior.trajectories import Trajectories
from worlds.clocks import Clock, side_by_side

SETTINGS = ControlSettings(env="clock", envs=2, horizon=9, hidden=(8,), eval_episodes=5)
MODES = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def run_of(mode: AutoresetMode | None = None, settings: ControlSettings = SETTINGS, **options: Any) -> Run:
    env = (lambda: Clock(**options)) if mode is None else side_by_side(mode, **options)
    return build(PPO.record, settings, Given(env=env))


def batch_of(run: Run) -> Trajectories:
    return VectorEnvs()(run, ())["policy"]


@pytest.mark.parametrize("mode", MODES)
def test_a_row_is_one_environments_segment(mode: AutoresetMode) -> None:
    batch = batch_of(run_of(mode))
    assert batch.mask.shape == (2, 9) and batch.prompt.shape == (2, 9, 2)
    assert batch.step_reward is not None and batch.reward is not None
    clock = batch.prompt[0, :, 1]
    real = batch.mask[0]
    torch.testing.assert_close(batch.step_reward[0], torch.where(real, clock + 1, torch.zeros(9)))
    torch.testing.assert_close(batch.reward, batch.step_reward.sum(1))
    assert int((~batch.mask).sum()) == (4 if mode == AutoresetMode.NEXT_STEP else 0)
    ended = batch.columns["terminated"] | batch.columns["truncated"]
    assert torch.equal(batch.columns["cut"], ended | ~batch.mask)


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_off_episode_looks_forward_to_its_own_last_observation(mode: AutoresetMode) -> None:
    """Not to the observation after the reset, not to the one before the step, and not to nothing."""
    run = run_of(mode)
    batch = batch_of(run)
    values = run.learner().policy.values  # type: ignore[attr-defined]
    cut, ended = batch.columns["truncated"][0].nonzero()[0], batch.columns["terminated"][0].nonzero()[0]
    with torch.no_grad():
        after_cut, before_cut = values(torch.tensor([[1.0, 4.0]])), values(torch.tensor([[1.0, 3.0]]))
        reset = values(torch.tensor([[2.0, 0.0]]))
        inside = values(torch.tensor([[0.0, 1.0]]))
    found = batch.columns["next_value"][0]
    torch.testing.assert_close(found[cut], after_cut)
    assert not torch.allclose(after_cut, before_cut) and not torch.allclose(after_cut, reset)
    assert float(found[ended]) == 0
    torch.testing.assert_close(found[:1], inside)


def test_the_edge_of_a_batch_looks_forward_to_what_the_next_one_begins_with() -> None:
    run = run_of(settings=ControlSettings(env="clock", envs=1, horizon=2, hidden=(8,)))
    first, second = batch_of(run), batch_of(run)
    torch.testing.assert_close(first.columns["next_value"][0, -1], second.columns["value"][0, 0])
    assert second.prompt[0, 0].tolist() == [0.0, 2.0]  # the episode went on


@pytest.mark.parametrize("box", [False, True])
def test_before_any_update_the_ratio_is_one(box: bool) -> None:
    """Also where the drawn action lies outside the bounds: it is stored as drawn."""
    run = run_of(box=box)
    batch = batch_of(run)
    assert batch.behaviour_logp is not None and batch.tokens is not None
    ratio = (run.learner().evaluate(batch).logp - batch.behaviour_logp).exp()
    assert float((ratio - 1).abs().max()) < 1e-6
    if box:
        assert float(batch.tokens.abs().max()) > 1


def test_actions_depend_on_seed_step_and_call_only() -> None:
    same, other, later = run_of(), run_of(), run_of()
    later.step = 1
    first = batch_of(same).tokens
    assert first is not None
    assert torch.equal(first, batch_of(other).tokens)
    assert not torch.equal(first, batch_of(later).tokens)
    assert not torch.equal(first, batch_of(same).tokens)


def test_greedy_steps_take_the_likeliest_action() -> None:
    run = run_of()
    batch = run.sample((), 1, greedy=True)
    assert torch.equal(batch.tokens, run.learner().policy.best(batch.prompt.flatten(0, 1)).view(2, 9))  # type: ignore


def test_figures_are_of_episodes_that_ended() -> None:
    run = run_of()
    figures = dict(run.world.figures(run, batch_of(run)))
    assert figures == {"env_steps": 18.0, "episodes": 4.0, "return": 8.0, "episode_length": 3.5}
    short = run_of(settings=ControlSettings(env="clock", envs=1, horizon=2, hidden=(8,)))
    assert dict(short.world.figures(short, batch_of(short))) == {"env_steps": 2.0, "episodes": 0.0}


def test_evaluation_counts_one_episode_to_an_environment() -> None:
    figures = run_of().evaluate()
    assert figures["score"] == figures["return"][0] == 6.0 and figures["episodes"] == 5


def test_evaluation_deals_episodes_out_beforehand() -> None:
    """Two environments of a vector share 5 episodes: 3 and 2, whatever their lengths."""
    figures = run_of(AutoresetMode.NEXT_STEP).evaluate()
    assert figures["episodes"] == 5
    assert figures["return"][0] == pytest.approx((6 + 10 + 6 + 6 + 10) / 5)
    assert figures["episode_length"][0] == pytest.approx((3 + 4 + 3 + 3 + 4) / 5)


def test_a_blend_of_tokens_is_refused() -> None:
    class Mean(Blend):
        pass

    with pytest.raises(UserError, match="in environments the policy acts alone"):
        run_of().world.sample(run_of(), (), 1, "policy", Mean(), False)


def test_scorers_load_saved_policies(tmp_path: Any) -> None:
    run = run_of()
    run.learner().policy.save(tmp_path)
    batch = batch_of(run)
    loaded = run.world.load_policy(str(tmp_path))
    assert torch.equal(loaded.evaluate(batch).logp, run.learner().evaluate(batch).logp)

"""PPO in environments through the same iteration as language: it learns, and goes on bit for bit after a resume."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from melior.advantages import GAE
from melior.errors import UserError
from melior.loops import loop_of
from melior.loops.control import build, trainee
from melior.loops.given import Given
from melior.method import Method
from melior.methods.control import PPO, TUNED
from melior.objectives import Clip
from melior.records.catalogue import get
from melior.request import adopt
from melior.settings import ControlSettings
from runs import put_away

SMALL = ControlSettings(envs=3, horizon=40, hidden=(16,), steps=4, eval_episodes=4)


def figures_of(run: Any, steps: int) -> list[dict[str, float]]:
    return [run.advance() for _ in range(steps)]


def test_cartpole_is_balanced() -> None:
    """With the published settings, after 38,400 of their 100,000 steps; random actions last about 20."""
    record, settings = adopt(PPO.record, ControlSettings(seed=1), TUNED["CartPole-v1"][0])
    run = trainee(record, settings)
    assert run.evaluate()["score"] < 60
    figures_of(run, 150)
    assert run.evaluate()["score"] >= 195


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    one = trainee(PPO.record, SMALL)
    figures_of(one, 2)
    take_up = put_away(one, tmp_path)
    expected = figures_of(one, 2)
    other = trainee(PPO.record, SMALL)
    take_up(other)
    assert figures_of(other, 2) == expected
    assert one.evaluate() == other.evaluate()
    for mine, theirs in zip(one.run.learner().parameters(), other.run.learner().parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_action_vectors_resume_too(tmp_path: Path) -> None:
    settings = replace(SMALL, env="Pendulum-v1")
    one, other = trainee(PPO.record, settings), trainee(PPO.record, settings)
    figures_of(one, 1)
    put_away(one, tmp_path)(other)
    assert figures_of(other, 2) == figures_of(one, 2)


def test_evaluation_changes_nothing() -> None:
    one, other = trainee(PPO.record, SMALL), trainee(PPO.record, SMALL)
    first = one.evaluate()
    assert one.evaluate() == first
    assert figures_of(one, 2) == figures_of(other, 2)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def run(seed: int) -> list[dict[str, float]]:
        return figures_of(trainee(PPO.record, replace(SMALL, seed=seed)), 1)

    assert run(0) == run(0) != run(1)


def test_figures_are_finite_and_complete() -> None:
    row = figures_of(trainee(PPO.record, SMALL), 1)[0]
    for name in ("env_steps", "return", "entropy", "kl_proximal", "clip_high", "value_loss", "grad_norm", "lr"):
        assert torch.isfinite(torch.tensor(row[name])), name
    assert row["env_steps"] == 120 and row["updates"] == 16 and row["skipped"] == 0


def test_the_first_minibatch_of_the_first_epoch_has_ratio_one() -> None:
    record = PPO.record.but("one", update=replace(PPO.record.update, epochs=1, minibatches=1))
    row = figures_of(trainee(record, SMALL), 1)[0]
    assert row["kl_proximal"] == row["clip_low"] == row["clip_high"] == 0
    assert row["gap_max"] < 1e-6


def test_the_rate_falls_linearly_to_zero() -> None:
    run = trainee(PPO.record, replace(SMALL, schedule="linear", lr=1e-3))
    assert [row["lr"] for row in figures_of(run, 4)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_an_environment_may_be_handed_over() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=10)
    run = trainee(PPO.record, SMALL, Given(env=env))
    assert figures_of(run, 1)[0]["episode_length"] <= 10
    assert run.evaluate()["episode_length"][2] <= 10


def test_two_learners_are_two_networks() -> None:
    record = PPO.record.but("pair", others={"second": PPO.record})
    run = build(record, SMALL)
    first, second = run.learner().vector(), run.learner("second").vector()
    assert len(first) == len(second) and not torch.equal(first, second)


def test_what_a_preview_says() -> None:
    run = trainee(PPO.record, SMALL)
    text = run.preview()
    assert "ppo: 4 steps of 3 environments x 40 steps of CartPole-v1 (4 numbers seen, 2 choices)" in text
    assert "480 environment steps in all" in text
    assert run.preview(short=True) in text
    assert run.notes == ()


def test_the_saved_policy_is_what_was_trained(tmp_path: Path) -> None:
    from melior.policies.control import load_control_policy

    run = trainee(PPO.record, SMALL)
    figures_of(run, 1)
    run.save(tmp_path)
    seen = torch.randn(7, 4)
    assert torch.equal(load_control_policy(tmp_path).best(seen), run.run.learner().policy.best(seen))  # type: ignore


def test_the_loop_of_ppo_is_this_one() -> None:
    assert loop_of(get("ppo")).SETTINGS is ControlSettings


def test_a_method_that_acts_on_text_is_refused() -> None:
    with pytest.raises(UserError, match="method 'grpo' acts on text; in environments choose ppo"):
        build(get("grpo"), SMALL)


def test_tuned_settings_name_fields_and_their_source() -> None:
    known = {f.name for f in fields(Method)} | {f.name for f in fields(ControlSettings)}
    for changes, source in TUNED.values():
        assert set(changes) <= known and source
    record, settings = adopt(PPO.record, ControlSettings(), TUNED["CartPole-v1"][0])
    assert record.advantage == GAE(0.98, 0.8) and settings.horizon == 32
    with pytest.raises(UserError, match="neither 'ppo' nor the settings have 'horizn'; did you mean 'horizon'"):
        adopt(PPO.record, ControlSettings(), {"horizn": 3})


def test_the_clip_is_the_very_same_part() -> None:
    grpo = get("grpo").objective.terms[0].term
    assert PPO.record.objective.terms[0].term == grpo == Clip()
    assert type(PPO.record.objective.terms[0].term) is type(grpo)

"""TD3 in environments: it learns, and goes on bit for bit after a resume."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from melior.actor_critic.acting import Explore
from melior.actor_critic.networks import Actor, Critics
from melior.errors import UserError
from melior.frames import ActorCritic, ActorCriticSettings
from melior.loops import loop_of
from melior.loops.actor_critic import trainee
from melior.loops.given import Given
from melior.methods.offpolicy import TD3, TUNED
from melior.policies.networks import MLP
from melior.records.catalogue import entry, get
from melior.records.serialize import fingerprint, from_yaml, to_yaml
from melior.request import adopt
from melior.storage.tree import load_tree, save_tree
from worlds.clocks import Clock

BODY = MLP((8,), "relu", "uniform")
SMALL = TD3.record.but("small", nets={"actor": Actor(BODY), "q": Critics(BODY)}, act=Explore(start=40))
SETTINGS = ActorCriticSettings(horizon=30, steps=4, eval_episodes=3, env_args={"max_episode_steps": 25})


def figures_of(run: Any, steps: int) -> list[dict[str, float]]:
    return [run.advance() for _ in range(steps)]


def test_pendulum_is_swung_up() -> None:
    """Random actions return about -1,200, and hanging down about -1,500."""
    record, settings = adopt(TD3.record, ActorCriticSettings(seed=1), TUNED["Pendulum-v1"][0])
    run = trainee(record, settings)
    assert run.evaluate()["score"] < -900
    figures_of(run, 7)
    assert run.seen == 7_000 and run.learner.updates == 6_000
    assert run.evaluate()["score"] > -400


@pytest.mark.parametrize("steps", [1, 2])
def test_a_resumed_run_goes_on_bit_for_bit(steps: int, tmp_path: Path) -> None:
    """Put away while actions are still random, and in the middle of an episode after learning began."""
    one, other = trainee(SMALL, SETTINGS), trainee(SMALL, SETTINGS)
    figures_of(one, steps)
    save_tree(tmp_path / "state", one.state())
    expected = figures_of(one, 2)
    other.load_state(load_tree(tmp_path / "state"))
    assert figures_of(other, 2) == expected
    assert one.evaluate() == other.evaluate()
    for name, net in one.learner.nets.items():
        assert all(map(torch.equal, net.parameters(), other.learner.nets[name].parameters())), name


def test_nothing_is_learned_before_the_start_and_one_update_follows_each_transition_after() -> None:
    rows = figures_of(trainee(SMALL, SETTINGS), 3)
    assert [row["updates"] for row in rows] == [0, 20, 30]
    assert [row["env_steps"] for row in rows] == [30, 30, 30]
    assert "q_loss" not in rows[0] and rows[2]["q_loss"] > 0


def test_several_environments_share_a_buffer() -> None:
    run = trainee(SMALL, replace(SETTINGS, envs=3))
    rows = figures_of(run, 2)
    assert run.seen == len(run.buffer) == 180 and [row["updates"] for row in rows] == [50, 90]


def test_what_a_time_limit_cuts_off_is_remembered_as_truncated() -> None:
    run = trainee(SMALL, SETTINGS)
    figures_of(run, 2)
    state = run.buffer.state()
    assert not state["terminated"].any()
    assert state["truncated"].nonzero().flatten().tolist() == [24, 49]
    follows = state["next_observation"][:-1] == state["observation"][1:]
    assert (~follows.all(-1)).nonzero().flatten().tolist() == [24, 49]  # only there a new episode began


def test_actions_reach_the_environment_in_its_own_units() -> None:
    env = gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), np.float32(10), np.float32(30))  # type: ignore[var-annotated]
    run = trainee(SMALL, SETTINGS, Given(env=env))
    torch.testing.assert_close(run.scale(torch.tensor([[-1.0], [0.0], [1.0]])), torch.tensor([[10.0], [20.0], [30.0]]))
    figures_of(run, 1)
    assert float(run.buffer.state()["action"].abs().max()) <= 1


def test_exploration_stays_within_bounds_and_evaluation_is_without() -> None:
    run = trainee(SMALL, SETTINGS)
    seen = torch.randn(500, 3)
    loud = replace(SMALL.act, noise=3.0)
    noisy = loud(run.learner.nets, seen, 1, 1_000, torch.Generator().manual_seed(0))
    assert float(noisy.abs().max()) == 1
    assert torch.equal(loud.best(run.learner.nets, seen), run.learner.nets["actor"](seen))
    before = run.rng.get_state()
    assert run.evaluate() == run.evaluate()
    assert torch.equal(before, run.rng.get_state())


@pytest.mark.parametrize("env", ["CartPole-v1", "unbounded"])
def test_actions_that_it_cannot_take_are_refused(env: str) -> None:
    class Unbounded(Clock):
        def __init__(self) -> None:
            super().__init__(box=True)
            self.action_space = gymnasium.spaces.Box(-float("inf"), float("inf"), (1,))

    given = Given(env=Unbounded) if env == "unbounded" else Given()
    sentence = "Unbounded has action vectors without bounds" if given.env else "CartPole-v1 takes choices"
    with pytest.raises(UserError, match=sentence):
        trainee(SMALL, replace(SETTINGS, env=env, env_args={}), given)


def test_saved_networks_load_in_plain_torch(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = trainee(SMALL, SETTINGS)
    run.save(tmp_path)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Tanh())
    tensors = load_file(tmp_path / "networks.safetensors")
    plain.load_state_dict({k.removeprefix("actor."): v for k, v in tensors.items() if k.startswith("actor.")})
    seen = torch.randn(5, 3)
    assert torch.equal(plain(seen), run.learner.nets["actor"](seen))


def test_what_a_preview_says() -> None:
    text = trainee(TD3.record, replace(SETTINGS, steps=10)).preview()
    assert "td3: 10 steps of 1 environments x 30 steps of Pendulum-v1 (3 numbers seen, vectors of 1 as actions)" in text
    assert "nothing will be learned: act.start is 25,000, and only 300 transitions come" in text
    assert "nothing will be learned" not in trainee(SMALL, SETTINGS).preview(short=True)


def test_the_record_is_in_the_catalogue_and_survives_yaml() -> None:
    assert entry("td3").frame == "ActorCritic" and loop_of(get("td3")).SETTINGS is ActorCriticSettings
    again = from_yaml(to_yaml(TD3.record))
    assert again == TD3.record and fingerprint(again) == fingerprint(TD3.record)


def test_tuned_settings_name_fields_and_their_source() -> None:
    known = {f.name for f in fields(ActorCritic)} | {f.name for f in fields(ActorCriticSettings)}
    assert all(set(changes) <= known and source for changes, source in TUNED.values())

"""Stepping environments: episodes never mix, whatever the way of resetting; and they can be put away and taken up."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from melior.errors import RunError, UserError
from melior.worlds.making import maker, seeds
from melior.worlds.stepping import Environments, Stepped
from worlds.clocks import Clock, side_by_side

MODES = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def walk(environments: Environments, steps: int) -> list[tuple[torch.Tensor, Stepped]]:
    action = torch.zeros(len(environments), dtype=torch.long)
    return [(environments.observation, environments.step(action)) for _ in range(steps)]


# With aliased observations, resets within the same step are left out: there Gymnasium itself hands out the buffer that
# the reset has overwritten.
@pytest.mark.parametrize(("mode", "alias"), [*((mode, False) for mode in MODES), *((mode, True) for mode in MODES[:2])])
def test_no_transition_joins_two_episodes(mode: AutoresetMode, alias: bool) -> None:
    real = [
        (*before[0].tolist(), *stepped.reached[0].tolist(), bool(stepped.terminated[0]), bool(stepped.truncated[0]))
        for before, stepped in walk(Environments(side_by_side(mode, alias=alias), 0), 18)
        if bool(stepped.real[0])
    ]
    expected = []
    for episode in range(5):
        length = 3 if episode % 2 == 0 else 4
        for t in range(length):
            last = t == length - 1
            ended, cut = last and episode % 2 == 0, last and episode % 2 == 1
            expected.append((episode, t, episode, t + 1, ended, cut))
    skipped = 4 if mode == AutoresetMode.NEXT_STEP else 0  # each new episode costs a call
    assert len(real) == 18 - skipped
    assert real == expected[: len(real)] + [(5, 0, 5, 1, False, False)] * (len(real) - len(expected))


@pytest.mark.parametrize("mode", MODES)
def test_termination_wins_over_truncation(mode: AutoresetMode) -> None:
    _, third = walk(Environments(side_by_side(mode, both=True), 0), 3)[-1]
    assert third.terminated.all() and not third.truncated.any()


@pytest.mark.parametrize("mode", MODES)
def test_returns_of_finished_episodes(mode: AutoresetMode) -> None:
    environments = Environments(side_by_side(mode, count=1), 0)
    walk(environments, 8)
    assert environments.finished() == [(6.0, 3), (10.0, 4)]
    assert environments.finished() == []


def test_observations_handed_out_are_copies() -> None:
    environments = Environments(side_by_side(AutoresetMode.DISABLED, alias=True), 0)
    seen = [before for before, _ in walk(environments, 3)]
    assert [int(each[0, 1]) for each in seen] == [0, 1, 2]


def test_choices_are_shifted_to_the_environments_own_numbers() -> None:
    environments = Environments(side_by_side(AutoresetMode.DISABLED, count=1), 0)
    environments.step(torch.tensor([2]))
    assert environments.envs.envs[0].sent[0] == 7


def test_action_vectors_are_clipped_on_the_way_only() -> None:
    environments = Environments(side_by_side(AutoresetMode.DISABLED, count=1, box=True), 0)
    action = torch.tensor([[1.7, -0.4]])
    environments.step(action)
    np.testing.assert_allclose(environments.envs.envs[0].sent[0], [1.0, -0.4], rtol=1e-6)
    assert action[0, 0] == pytest.approx(1.7)


def test_every_environment_has_a_seed_of_its_own() -> None:
    environments = Environments(side_by_side(AutoresetMode.DISABLED, count=4), 3)
    given = [env.seeded for env in environments.envs.envs]
    assert given == seeds(3, "train", 4) and len(set(given)) == 4
    assert given != seeds(4, "train", 4)


class Broken(Clock):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action: Any) -> Any:
        seen, reward, ended, cut, infos = super().step(action)
        if self.how == "raises":
            raise ValueError("out of fuel")
        return seen, float("nan") if self.how == "nan" else reward, ended, cut, infos


@pytest.mark.parametrize(
    ("how", "sentence"),
    [("raises", "clock failed at its step 1: ValueError: out of fuel"), ("nan", "not finite at step 1 .environment 0")],
)
def test_a_broken_environment_is_named(how: str, sentence: str) -> None:
    environments = Environments(maker(lambda: Broken(how))(1), 0, "clock")
    with pytest.raises(RunError, match=sentence):
        environments.step(torch.zeros(1, dtype=torch.long))


# ---- making


def test_unknown_names_propose_the_near_one() -> None:
    with pytest.raises(UserError, match="no environment 'CartPole-v7'; did you mean 'CartPole-v1'"):
        maker("CartPole-v7")(1)


def test_what_makes_no_environment_is_refused() -> None:
    with pytest.raises(UserError, match=r"must return a gymnasium\.Env, got int"):
        maker(lambda: 3)(1)
    with pytest.raises(UserError, match="is no environment"):
        maker(3)
    with pytest.raises(UserError, match="FrozenLake-v1 shows Discrete observations"):
        Environments(maker("FrozenLake-v1")(1), 0, "FrozenLake-v1")


def test_a_file_an_object_and_a_vector_environment_are_understood(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import gymnasium\n\ndef pole(limit):\n    return gymnasium.make('CartPole-v1', max_episode_steps=limit)\n"
    )
    assert Environments(maker(f"{file}:pole", {"limit": 7})(2), 0).envs.envs[0].spec.max_episode_steps == 7
    mine = gymnasium.make("Pendulum-v1")
    made = Environments(maker(mine)(3), 0)
    assert len(made) == 3 and all(env is not mine for env in made.envs.envs)
    several = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
    array = Environments(maker(several)(1), 0)
    assert len(array) == 5 and array.mode == AutoresetMode.NEXT_STEP


# ---- putting away


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_classic_control_goes_on_bit_for_bit(name: str) -> None:
    def play(environments: Environments, generator: torch.Generator, steps: int) -> list[torch.Tensor]:
        spaces = environments.spaces
        seen = []
        for _ in range(steps):
            noise = torch.rand(len(environments), spaces.actions, generator=generator)
            seen.append(environments.step(noise.argmax(-1) if spaces.discrete else noise * 4 - 2).reached)
        return seen

    one, generator = Environments(maker(name, {"max_episode_steps": 30})(3), 1), torch.Generator().manual_seed(0)
    play(one, generator, 47)
    state = one.state()
    state = {**state, "observation": state["observation"].clone(), "returns": state["returns"].clone()}
    state["lengths"] = state["lengths"].clone()
    other = Environments(maker(name, {"max_episode_steps": 30})(3), 2)
    other.load_state(state)
    kept = generator.get_state()
    expected = play(one, generator, 60)
    generator.set_state(kept)
    assert all(map(torch.equal, expected, play(other, generator, 60)))
    assert one.exact and other.exact and not other.note


def test_others_say_that_they_begin_anew() -> None:
    environments = Environments(maker(Clock)(2), 0, "clock")
    walk(environments, 2)
    again = Environments(maker(Clock)(2), 0, "clock")
    again.load_state(environments.state())
    assert not again.exact and again.steps == 2
    assert again.observation[:, 1].tolist() == [0, 0]
    assert "clock cannot be saved in the middle of an episode" in again.note


def test_a_state_of_another_environment_is_refused() -> None:
    one, other = Environments(maker("Acrobot-v1")(1), 0), Environments(maker("Pendulum-v1")(1), 0)
    with pytest.raises(RunError, match="lacks last_u of PendulumEnv"):
        other.load_state(one.state())
    with pytest.raises(RunError, match="holds 1 environments, and this run has 2"):
        Environments(maker("Acrobot-v1")(2), 0).load_state(one.state())

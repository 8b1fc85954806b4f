"""The TD3 update: targets, noise, and which network moves when."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from melior.actor_critic.learner import NetLearner
from melior.actor_critic.losses import Ascend, TDError, clipped_double_target, smoothed_action
from melior.actor_critic.networks import Actor, Critics, Nets, q_values
from melior.actor_critic.replay import Transitions
from melior.errors import RunError, UserError
from melior.frames import ActorCriticSettings, NetLoss, Phase, Polyak, Step
from melior.methods.offpolicy import TD3
from melior.parts import Loss
from melior.policies.networks import MLP

BODY = MLP((8,), "relu", "uniform")
SMALL = TD3.record.but("small", nets={"actor": Actor(BODY), "q": Critics(BODY)})


def learner_of(record=SMALL, **settings: float) -> NetLearner:
    return NetLearner(record, ActorCriticSettings(**settings), 3, 2, torch.Generator().manual_seed(0))


def transitions(count: int = 16, terminated: bool | None = None) -> Transitions:
    generator = torch.Generator().manual_seed(1)
    ended = torch.rand(count, generator=generator) < 0.3 if terminated is None else torch.full((count,), terminated)
    return Transitions(
        torch.randn(count, 3, generator=generator),
        torch.rand(count, 2, generator=generator) * 2 - 1,
        torch.randn(count, generator=generator),
        torch.randn(count, 3, generator=generator),
        ended,
        torch.zeros(count, dtype=torch.bool),
    )


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in net.parameters()])


def test_the_target_takes_the_smaller_critic_and_stops_at_terminations() -> None:
    found = clipped_double_target(
        torch.tensor([1.0, 0.5]), torch.tensor([False, True]), torch.tensor([[10.0, 7.0], [9.0, 8.0]]), 0.99
    )
    torch.testing.assert_close(found, torch.tensor([9.91, 0.5]))


def test_noise_scales_with_the_largest_action_and_is_clipped_twice() -> None:
    nothing = torch.zeros(1, 2)
    torch.testing.assert_close(
        smoothed_action(nothing, torch.tensor([[0.9, -0.3]]), 0.2, 0.5, 2.0), torch.tensor([[0.36, -0.12]])
    )
    torch.testing.assert_close(
        smoothed_action(nothing, torch.tensor([[3.0, -2.0]]), 0.2, 0.5, 2.0), torch.tensor([[1.0, -0.8]])
    )
    torch.testing.assert_close(
        smoothed_action(torch.tensor([[1.8, -1.9]]), torch.tensor([[3.0, -2.0]]), 0.2, 0.5, 2.0),
        torch.tensor([[2.0, -2.0]]),
    )


def test_the_smaller_of_two_unbiased_estimates_is_low_by_a_known_amount() -> None:
    errors = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros(100_000)
    low = clipped_double_target(nothing, nothing.bool(), errors, 1.0).mean()
    assert float(low) == pytest.approx(-1 / math.sqrt(math.pi), abs=0.01)


def test_actor_and_targets_move_at_every_second_update_only() -> None:
    learner = learner_of()
    before = {name: flat(net) for name, net in learner.nets.items()}
    learner.update(transitions())
    after = {name: flat(net) for name, net in learner.nets.items()}
    assert not torch.equal(before["q"], after["q"])
    for name in ("actor", "q_target", "actor_target"):
        assert torch.equal(before[name], after[name]), name
    learner.update(transitions())
    for name in ("q", "actor"):
        expected = 0.005 * flat(learner.nets[name]) + 0.995 * before[f"{name}_target"]
        torch.testing.assert_close(flat(learner.nets[f"{name}_target"]), expected, atol=1e-7, rtol=0)
    assert not torch.equal(before["actor"], flat(learner.nets["actor"]))


def test_the_critics_loss_is_the_sum_of_two_means() -> None:
    learner, batch = learner_of(), transitions(terminated=True)
    loss = TDError()(learner.nets, batch, torch.Generator())
    values = q_values(learner.nets["q"], batch.observation, batch.action)
    torch.testing.assert_close(loss.value, sum(((q - batch.reward) ** 2).mean() for q in values))


def test_the_actor_ascends_the_first_critic_alone() -> None:
    learner, batch = learner_of(), transitions()
    action = learner.nets["actor"](batch.observation)
    first, _ = q_values(learner.nets["q"], batch.observation, action)
    torch.testing.assert_close(Ascend()(learner.nets, batch, torch.Generator()).value, -first.mean())
    learner.update(batch)
    before = flat(learner.nets["q"])
    step = SMALL.phases[0].steps[1]
    assert isinstance(step, Step)
    learner._descend(step, learner._optimizers["0-1"], batch)
    assert torch.equal(before, flat(learner.nets["q"]))  # the actor's step leaves the critics alone


def test_one_critic_without_smoothing_or_delay_is_ddpg() -> None:
    steps = (Step("q", TDError(sigma=0.0)), Step("actor", Ascend()), Polyak(("actor", "q")))
    learner = learner_of(SMALL.but("ddpg", nets={**SMALL.nets, "q": Critics(BODY, 1)}, phases=(Phase(steps),)))
    batch = transitions()
    with torch.no_grad():
        after = learner.nets["actor_target"](batch.next_observation)
        target = q_values(learner.nets["q_target"], batch.next_observation, after)[0] * 0.99 * ~batch.terminated
        value = q_values(learner.nets["q"], batch.observation, batch.action)[0]
        expected = (value - batch.reward - target).square().mean()
    torch.testing.assert_close(TDError(sigma=0.0)(learner.nets, batch, learner.rng).value.detach(), expected)
    before = flat(learner.nets["actor"])
    learner.update(batch)
    assert not torch.equal(before, flat(learner.nets["actor"]))


def test_critics_start_differently() -> None:
    first, second = learner_of().nets["q"].children()
    assert not torch.equal(flat(first), flat(second))


class Explodes(NetLoss):
    def __call__(self, nets: Nets, batch: Transitions, rng: torch.Generator) -> Loss:
        return Loss(next(nets["q"].parameters()).sum() * float("nan"))


def test_a_loss_that_is_not_finite_stops_before_anything_moves() -> None:
    learner = learner_of(SMALL.but("bad", phases=(Phase((Step("q", Explodes()),)),)))
    before = flat(learner.nets["q"])
    with pytest.raises(RunError, match="not finite at update 1; no step was made"):
        learner.update(transitions())
    assert torch.equal(before, flat(learner.nets["q"]))


def test_losses_add_up() -> None:
    learner, batch = learner_of(), transitions()
    both = Ascend() + 0.5 * Ascend()
    assert repr(both) == f"{Ascend()!r} + 0.5 * {Ascend()!r}"
    one = Ascend()(learner.nets, batch, torch.Generator()).value
    torch.testing.assert_close(both(learner.nets, batch, torch.Generator()).value, 1.5 * one)


def test_phases_follow_each_other() -> None:
    first, second = Phase((Step("q", TDError()),), updates=3), Phase((Step("actor", Ascend()),))
    record = SMALL.but("two", phases=(first, second))
    assert [record.phase(update)[0] for update in (1, 3, 4, 100)] == [0, 0, 1, 1]
    assert [record.phase(update)[1] for update in (3, 4)] == [first, second]


def test_a_step_may_have_a_rate_of_its_own() -> None:
    slow = SMALL.but("slow", phases=(Phase((replace(SMALL.phases[0].steps[0], lr=0.0), SMALL.phases[0].steps[2])),))
    fast = SMALL.but("fast", phases=(Phase((replace(SMALL.phases[0].steps[0], lr=1e-2), SMALL.phases[0].steps[2])),))
    moved = {}
    for record in (slow, fast):
        learner = learner_of(record, lr=1e-4)
        before = flat(learner.nets["q"])
        learner.update(transitions())
        moved[record.name] = float((flat(learner.nets["q"]) - before).abs().max())
    assert moved["slow"] == pytest.approx(1e-4, rel=0.01) and moved["fast"] == pytest.approx(1e-2, rel=0.01)


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(UserError, match="trains 'critic', none of its networks; choose from actor, q"):
        learner_of(SMALL.but("odd", phases=(Phase((Step("critic", TDError()),)),)))

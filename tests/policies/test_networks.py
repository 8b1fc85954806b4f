"""Networks from parts, and the two policies over observations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from melior.errors import RunError, UserError
from melior.objectives import Divergence, EntropyBonus
from melior.parts import Need
from melior.policies.categorical import Categorical
from melior.policies.control import control_policy, load_control_policy
from melior.policies.gaussian import Gaussian, normal_logp
from melior.policies.networks import MLP, NetworkPolicy
from melior.trajectories import Trajectories

BODY = MLP((8, 8))
VALUE = frozenset({Need("value"), Need("entropy")})


def policy_of(kind: type[NetworkPolicy]) -> NetworkPolicy:
    policy = kind(3, 2, BODY, seed=5)
    policy.prepare(VALUE)
    return policy


def batch_of(policy: NetworkPolicy, rows: int = 4, steps: int = 3) -> Trajectories:
    generator = torch.Generator().manual_seed(1)
    seen = torch.randn(rows, steps, 3, generator=generator)
    action, logp = policy.act(seen.flatten(0, 1), policy.noise((rows * steps,), generator))
    return Trajectories(
        mask=torch.ones(rows, steps, dtype=torch.bool),
        group=torch.arange(rows),
        prompt=seen,
        tokens=action.view(rows, steps, *action.shape[1:]),
        behaviour_logp=logp.view(rows, steps),
    )


def test_orthogonal_start_has_the_gains_of_the_field() -> None:
    net = MLP((64, 64))(64, 4, torch.Generator().manual_seed(0), head_gain=0.01)
    first, last = net[0], net[-1]
    assert isinstance(first, torch.nn.Linear) and isinstance(last, torch.nn.Linear)
    torch.testing.assert_close(first.weight @ first.weight.T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    torch.testing.assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
    assert not first.bias.any() and not last.bias.any()


def test_a_network_depends_on_its_generator_and_on_no_other_randomness() -> None:
    def build(init: str, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)  # must not matter
        net = MLP((5,), "relu", init)(3, 2, torch.Generator().manual_seed(9))  # type: ignore[arg-type]
        return torch.cat([p.flatten() for p in net.parameters()])

    for init in ("orthogonal", "uniform"):
        assert torch.equal(build(init, 0), build(init, 1))


@pytest.mark.parametrize("kind", [Categorical, Gaussian])
def test_what_acted_is_what_is_scored(kind: type[NetworkPolicy]) -> None:
    policy = policy_of(kind)
    batch = batch_of(policy)
    assert batch.behaviour_logp is not None
    now = policy.evaluate(batch, VALUE)
    torch.testing.assert_close(now.logp, batch.behaviour_logp, atol=1e-6, rtol=0)
    assert now["value"].shape == now["entropy"].shape == batch.mask.shape


def test_categorical_actions_have_the_probabilities_of_the_softmax() -> None:
    policy = policy_of(Categorical)
    seen = torch.tensor([[0.3, -1.0, 2.0]])
    with torch.no_grad():
        policy.networks["actor"][-1].bias.copy_(torch.tensor([0.0, math.log(3.0)]))  # type: ignore[index, operator]
        probability = policy.networks["actor"](seen).softmax(-1)[0, 1]
    noise = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    action, _ = policy.act(seen.expand(1000, 3), noise)
    assert float(action.double().mean()) == pytest.approx(float(probability), abs=1.1e-3)
    assert int(policy.best(seen)) == 1


def test_gaussian_density_and_entropy_agree_with_torch() -> None:
    policy = policy_of(Gaussian)
    assert isinstance(policy, Gaussian)
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([0.3, -0.7]))
    batch = batch_of(policy)
    assert batch.tokens is not None
    normal = torch.distributions.Normal(policy.networks["actor"](batch.prompt), policy.log_std.exp())
    now = policy.evaluate(batch, VALUE)
    torch.testing.assert_close(now.logp, normal.log_prob(batch.tokens).sum(-1))
    torch.testing.assert_close(now["entropy"], normal.entropy().sum(-1))
    clipped = batch.tokens.clamp(-0.1, 0.1)
    assert not torch.allclose(normal_logp(clipped, normal.loc, policy.log_std), now.logp)


@pytest.mark.parametrize("kind", [Categorical, Gaussian])
def test_gradients_flow_only_where_they_are_asked_for(kind: type[NetworkPolicy]) -> None:
    policy = policy_of(kind)
    batch = batch_of(policy)
    now = policy.evaluate(batch, frozenset({Need("value", on="batch"), *EntropyBonus().needs()}))
    assert now["entropy"].requires_grad and not now["value"].requires_grad


def test_values_do_not_touch_the_actor() -> None:
    policy = policy_of(Categorical)
    policy.evaluate(batch_of(policy), VALUE)["value"].sum().backward()
    assert all(p.grad is None for name, p in policy.named_parameters() if name.startswith("actor"))


def test_a_divergence_to_another_network() -> None:
    policy, other = policy_of(Categorical), Categorical(3, 2, BODY, seed=6)
    with torch.no_grad():
        other.networks["actor"][-1].bias.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[index, operator]
    batch, term = batch_of(policy), Divergence("reference")
    now = policy.evaluate(batch, term.needs(), {"reference": other})
    mine = policy.networks["actor"](batch.prompt).log_softmax(-1)
    theirs = other.networks["actor"](batch.prompt).log_softmax(-1)
    torch.testing.assert_close(now[term.quantity], (mine.exp() * (mine - theirs)).sum(-1))


def test_an_unknown_quantity_is_named() -> None:
    policy = policy_of(Gaussian)
    with pytest.raises(UserError, match="gaussian policy does not know the quantity 'curvature'"):
        policy.evaluate(batch_of(policy), frozenset({Need("curvature")}))
    with pytest.raises(RunError, match="has no value network"):
        Gaussian(3, 2, BODY).values(torch.zeros(1, 3))


@pytest.mark.parametrize("kind", [Categorical, Gaussian])
def test_a_frozen_copy_stays_as_it_was(kind: type[NetworkPolicy]) -> None:
    policy = policy_of(kind)
    copy = policy.frozen()
    before = {name: value.clone() for name, value in copy.state().items()}
    with torch.no_grad():
        for _, p in policy.named_parameters():
            p.add_(1)
    assert all(torch.equal(before[name], value) for name, value in copy.state().items())
    assert not any(p.requires_grad for _, p in copy.named_parameters())


@pytest.mark.parametrize("discrete", [True, False])
def test_a_saved_policy_acts_the_same(discrete: bool, tmp_path: Path) -> None:
    policy = control_policy(3, 2, discrete, MLP((8,), "relu"), seed=2)
    policy.prepare(VALUE)
    policy.save(tmp_path)
    again = load_control_policy(tmp_path)
    batch = batch_of(policy)
    assert torch.equal(again.evaluate(batch).logp, policy.evaluate(batch).logp)
    assert torch.equal(again.values(batch.prompt), policy.values(batch.prompt))
    other = control_policy(3, 2, discrete, MLP((8,), "relu"), seed=3)
    other.prepare(VALUE)
    live = [p for _, p in other.named_parameters()]
    other.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(policy.state().values(), other.state().values(), strict=True))
    assert all(p is q for p, (_, q) in zip(live, other.named_parameters(), strict=True))


def test_a_folder_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no control policy: policy\.json is missing"):
        load_control_policy(tmp_path)
    policy_of(Categorical).save(tmp_path)
    told = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps({**told, "kind": "categoric"}))
    with pytest.raises(UserError, match="did you mean 'categorical'"):
        load_control_policy(tmp_path)


def test_a_state_that_does_not_fit_is_named() -> None:
    policy = policy_of(Categorical)
    state = dict(policy.state())
    with pytest.raises(RunError, match=r"differ in value\.0\.bias"):
        policy.load_state({name: value for name, value in state.items() if name != "value.0.bias"})
    with pytest.raises(RunError, match=r"actor\.0\.weight has shape"):
        policy.load_state({**state, "actor.0.weight": torch.zeros(2, 2)})

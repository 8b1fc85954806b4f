"""Value iteration against the exact solution of small problems, and its certificate against the true error."""

from __future__ import annotations

import itertools

import pytest
import torch

from melior.errors import UserError
from melior.exact import FiniteMDP, ValueIteration, chain, problem
from melior.frames import Solution
from melior.records.catalogue import entry


def random_problem(seed: int, states: int = 4, actions: int = 3, gamma: float = 0.8) -> FiniteMDP:
    generator = torch.Generator().manual_seed(seed)
    transition = torch.rand(states, actions, states, generator=generator, dtype=torch.float64) ** 4
    reward = torch.randn(states, actions, generator=generator, dtype=torch.float64)
    return FiniteMDP(transition / transition.sum(-1, keepdim=True), reward, gamma)


def best_by_enumeration(mdp: FiniteMDP) -> torch.Tensor:
    """The largest value in every state over all deterministic policies, each by one linear solve."""
    states, actions = mdp.reward.shape
    values = []
    for choice in itertools.product(range(actions), repeat=states):
        policy = torch.nn.functional.one_hot(torch.tensor(choice), actions).double()
        values.append(mdp.value_of(policy))
    return torch.stack(values).amax(0)


PROBLEMS = [chain(), chain(6, slip=0.0, gamma=0.95), *map(random_problem, range(4))]


@pytest.mark.parametrize("mdp", PROBLEMS)
def test_the_policy_found_is_the_best_there_is(mdp: FiniteMDP) -> None:
    found = ValueIteration()(mdp)
    best = best_by_enumeration(mdp)
    torch.testing.assert_close(mdp.value_of(found.policy), best, atol=1e-10, rtol=0)
    torch.testing.assert_close(found.value, best, atol=1e-8, rtol=0)
    assert found.gap <= 1e-8


@pytest.mark.parametrize("mdp", PROBLEMS)
@pytest.mark.parametrize("sweeps", [1, 3, 10, 40])
def test_the_certificate_bounds_the_true_error(mdp: FiniteMDP, sweeps: int) -> None:
    found = ValueIteration(tolerance=0.0, sweeps=sweeps)(mdp)
    best = best_by_enumeration(mdp)
    assert float((found.value - best).abs().max()) <= found.gap + 1e-12
    loss = float((mdp.value_of(found.policy) - best).abs().max())
    assert loss <= 2 * mdp.gamma / (1 - mdp.gamma) * found.gap + 1e-12
    assert len(found.trace) == sweeps and found.trace[-1] == found.gap


def test_every_sweep_shrinks_the_certificate_by_gamma_at_least() -> None:
    mdp = chain()
    trace = ValueIteration()(mdp).trace
    assert all(after <= mdp.gamma * before * (1 + 1e-9) + 1e-14 for before, after in itertools.pairwise(trace))


def test_one_state_by_hand() -> None:
    """V = max(1, 2) / (1 - 0.5) = 4, and after one sweep V = 2 with the certificate 0.5 / 0.5 * 2 = 2."""
    mdp = FiniteMDP(torch.ones(1, 2, 1).double(), torch.tensor([[1.0, 2.0]]).double(), 0.5)
    first = ValueIteration(sweeps=1)(mdp)
    assert float(first.value) == 2 and first.gap == 2
    assert float(ValueIteration()(mdp).value) == pytest.approx(4, abs=1e-8)
    assert first.policy.tolist() == [[0.0, 1.0]]


def test_without_a_future_one_sweep_is_exact() -> None:
    mdp = random_problem(0, gamma=0.0)
    found = ValueIteration()(mdp)
    assert found.gap == 0 and len(found.trace) == 1
    assert torch.equal(found.value, mdp.reward.amax(-1))


def test_the_chain_is_worth_crossing_only_for_the_patient() -> None:
    far = ValueIteration()(chain(5, slip=0.0, gamma=0.9)).policy
    near = ValueIteration()(chain(5, slip=0.0, gamma=0.5)).policy
    assert far[0].argmax() == 1 and near[0].argmax() == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"transition": torch.full((2, 1, 2), 0.6)}, "after action 0 in state 0 are no distribution"),
        ({"transition": torch.tensor([[[1.0, 0.0]], [[1.5, -0.5]]])}, "after action 0 in state 1 are no distribution"),
        ({"transition": torch.ones(2, 2, 1)}, r"transition must be \[S,A,S\]"),
        ({"reward": torch.tensor([[0.0], [float("nan")]])}, "reward of action 0 in state 1 is not finite"),
        ({"gamma": 1.0}, "gamma must be at least 0 and less than 1, got 1"),
    ],
)
def test_what_is_no_problem_is_refused(change: dict[str, object], sentence: str) -> None:
    right = {"transition": torch.full((2, 1, 2), 0.5), "reward": torch.zeros(2, 1), "gamma": 0.9}
    with pytest.raises(UserError, match=sentence):
        FiniteMDP(**{**right, **change})  # type: ignore[arg-type]


def test_named_problems() -> None:
    assert problem("chain").reward.shape == (5, 2)
    with pytest.raises(UserError, match="no problem 'chian'; did you mean 'chain'"):
        problem("chian")


def test_the_catalogue_holds_it_in_its_frame() -> None:
    found = entry("value-iteration")
    assert found.frame == "Solver" and found.record == ValueIteration()
    assert isinstance(found.record(problem("chain")), Solution)

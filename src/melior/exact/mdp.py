"""Finite Markov decision problems as tensors, and named ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float

from melior.errors import UserError, near


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """S states, A actions, discounted for ever.

    Attributes:
        transition: [S,A,S] probability of the next state.
        reward: [S,A] expected reward of an action in a state.
        gamma: discount, in [0, 1).

    Raises:
        UserError: probabilities that are negative or do not sum to 1, shapes that do not fit, rewards that are not
            finite, or a discount out of range.
    """

    transition: torch.Tensor
    reward: torch.Tensor
    gamma: float

    def __post_init__(self) -> None:
        states, actions = self.reward.shape
        if tuple(self.transition.shape) != (states, actions, states):
            shapes = f"{tuple(self.transition.shape)} and {tuple(self.reward.shape)}"
            raise UserError(f"transition must be [S,A,S] and reward [S,A], got {shapes}")
        if not 0 <= self.gamma < 1:
            raise UserError(f"gamma must be at least 0 and less than 1, got {self.gamma:g}")
        wrong = (self.transition < 0).any(-1) | ((self.transition.sum(-1) - 1).abs() > 1e-6)
        if bool(wrong.any()):
            state, action = wrong.nonzero()[0].tolist()
            raise UserError(f"the probabilities after action {action} in state {state} are no distribution")
        if not bool(self.reward.isfinite().all()):
            state, action = (~self.reward.isfinite()).nonzero()[0].tolist()
            raise UserError(f"the reward of action {action} in state {state} is not finite")

    def look_ahead(self, value: Float[torch.Tensor, "S"]) -> Float[torch.Tensor, "S A"]:
        """Q = r + gamma * P value."""
        return self.reward + self.gamma * self.transition @ value

    def value_of(self, policy: Float[torch.Tensor, "S A"]) -> Float[torch.Tensor, "S"]:
        """The value of a policy in every state, by one linear solve: (I - gamma * P_pi) V = r_pi."""
        step = torch.einsum("sa,sat->st", policy, self.transition)
        reward = (policy * self.reward).sum(-1)
        identity = torch.eye(len(reward), dtype=reward.dtype, device=reward.device)
        return torch.linalg.solve(identity - self.gamma * step, reward)


def chain(states: int = 5, slip: float = 0.2, gamma: float = 0.9) -> FiniteMDP:
    """A corridor with a small reward at its left end and a large one at its right.

    Action 0 goes left and 1 goes right; with probability `slip` the other way. Acting in the leftmost state earns 0.2,
    in the rightmost 1, elsewhere nothing. Whoever steps against a wall stays.
    """
    transition = torch.zeros(states, 2, states, dtype=torch.float64)
    reward = torch.zeros(states, 2, dtype=torch.float64)
    for state in range(states):
        left, right = max(state - 1, 0), min(state + 1, states - 1)
        for action, (meant, other) in enumerate(((left, right), (right, left))):
            transition[state, action, meant] += 1 - slip
            transition[state, action, other] += slip
    reward[0], reward[-1] = 0.2, 1.0
    return FiniteMDP(transition, reward, gamma)


PROBLEMS: Mapping[str, Callable[[], FiniteMDP]] = {"chain": chain}


def problem(name: str) -> FiniteMDP:
    """A named problem.

    Raises:
        UserError: no problem of this name.
    """
    if name not in PROBLEMS:
        raise UserError(f"there is no problem '{name}'{near(name, PROBLEMS)}")
    return PROBLEMS[name]()

"""Generalized advantage estimation over the action axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float

from melior.parts import Need, Transform
from melior.trajectories import Trajectories


def gae(
    reward: Float[torch.Tensor, "B T"],
    value: Float[torch.Tensor, "B T"],
    next_value: Float[torch.Tensor, "B T"],
    cut: Bool[torch.Tensor, "B T"],
    gamma: float,
    lam: float,
) -> Float[torch.Tensor, "B T"]:
    """A_t = delta_t + gamma * lam * (1 - cut_t) * A_{t+1}, with delta_t = r_t + gamma * next_value_t - value_t.

    `next_value` is the value of the state that truly followed: zero after a termination, the value of the last
    observation (before any reset) after a truncation. `cut` marks the last step of an episode, either way.

    Source: Schulman et al. 2016, arXiv 1506.02438, equation 16.
    """
    delta = reward + gamma * next_value - value
    keep = gamma * lam * (~cut)
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for t in range(delta.shape[1] - 1, -1, -1):
        running = delta[:, t] + keep[:, t] * running
        advantage[:, t] = running
    return advantage


@dataclass(frozen=True)
class GAE(Transform):
    """Advantages from a critic, exponentially weighted over horizons; also writes the column "returns" = A + V.

    Reads `step_reward` and the column "value". In control the rollout supplies the columns "next_value" (before any
    reset, zero after a termination) and "cut"; without them a row is one episode that ends with its last trained
    action, and actions that are masked out (an environment's text) are passed over.
    """

    gamma: float = 0.99
    lam: float = 0.95
    reads = (Need("value", on="batch"),)

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.step_reward is not None
        value = batch.require("value").to(batch.step_reward.dtype)
        if "next_value" in batch.columns:
            nexts, cut = batch.columns["next_value"].to(value.dtype), batch.columns["cut"].bool()
            advantage = gae(batch.step_reward, value, nexts, cut, self.gamma, self.lam)
        else:
            advantage = self._episodes(batch, value)
        return batch.with_(advantage=advantage * batch.mask).column(returns=advantage + value)

    def _episodes(self, batch: Trajectories, value: torch.Tensor) -> torch.Tensor:
        """Rows as whole episodes: trained actions are moved together, estimated, and moved back."""
        assert batch.step_reward is not None
        order = batch.mask.int().argsort(dim=1, descending=True, stable=True)
        mask = batch.mask.gather(1, order)
        packed = torch.where(mask, value.gather(1, order), torch.zeros_like(value))
        reward = torch.where(mask, batch.step_reward.gather(1, order), torch.zeros_like(value))
        nexts = torch.cat([packed[:, 1:], torch.zeros_like(packed[:, :1])], 1)
        advantage = gae(reward, packed, nexts, torch.zeros_like(mask), self.gamma, self.lam)
        return torch.zeros_like(advantage).scatter(1, order, advantage)


def terminal_reward(
    reward: Float[torch.Tensor, "B"], mask: Bool[torch.Tensor, "B T"], penalty: Float[torch.Tensor, "B T"] | None = None
) -> Float[torch.Tensor, "B T"]:
    """A row's reward on its last trained action and 0 before, minus a penalty on every trained action.

    A row without a reward (NaN) or without trained actions has only zeros and penalties.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = ((position * mask).amax(-1, keepdim=True) == position) & mask
    step = torch.where(last, reward.nan_to_num(0.0)[:, None], torch.zeros_like(reward)[:, None])
    return step if penalty is None else step - torch.where(mask, penalty, torch.zeros_like(penalty)).to(step.dtype)


@dataclass(frozen=True)
class TerminalReward(Transform):
    """Turns a row's reward into token rewards: all of it on the last trained token, minus beta * k1 on every token.

    k1 = log pi - log pi_ref under the policy that sampled, so the penalty is part of the return (RLHF's reward).
    """

    beta: float = 0.0
    scorer: str = "reference"

    def needs(self) -> frozenset[Need]:
        if self.beta == 0:
            return frozenset()
        return frozenset({Need("logp", "batch", self.scorer), Need("logp", "batch", "proximal")})

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        penalty = None
        if self.beta:
            assert batch.proximal_logp is not None
            penalty = self.beta * (batch.proximal_logp - batch.scores[self.scorer]["logp"])
        return batch.with_(step_reward=terminal_reward(batch.reward, batch.mask, penalty))

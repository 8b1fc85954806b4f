"""Losses on networks: the critics' error and the actor's ascent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float

from melior.actor_critic.networks import Nets, q_values
from melior.actor_critic.replay import Transitions
from melior.parts import Loss, Part


class NetLoss(Part):
    """(networks, transitions, random stream) -> loss. Only the network that its `Step` trains is differentiated.

    `A + 0.1 * B` adds losses on the same network.
    """

    def __call__(self, nets: Nets, batch: Transitions, rng: torch.Generator) -> Loss:
        raise NotImplementedError("a NetLoss is a part of its own: write __call__(nets, batch, rng) -> Loss")

    def __add__(self, other: NetLoss) -> NetLoss:
        return SumOfLosses((*_terms(self), *_terms(other)))

    def __rmul__(self, weight: float) -> NetLoss:
        return SumOfLosses(tuple((weight * w, loss) for w, loss in _terms(self)))


@dataclass(frozen=True)
class SumOfLosses(NetLoss):
    """A weighted sum of losses on one network: `A + 0.1 * B`."""

    terms: tuple[tuple[float, NetLoss], ...]

    def __call__(self, nets: Nets, batch: Transitions, rng: torch.Generator) -> Loss:
        value = torch.zeros(())
        metrics: dict[str, torch.Tensor] = {}
        for weight, loss in self.terms:
            found = loss(nets, batch, rng)
            value = value + weight * found.value
            metrics |= found.metrics
        return Loss(value, metrics)

    def __repr__(self) -> str:
        return " + ".join(repr(loss) if weight == 1 else f"{weight:g} * {loss!r}" for weight, loss in self.terms)


def _terms(loss: NetLoss) -> tuple[tuple[float, NetLoss], ...]:
    return loss.terms if isinstance(loss, SumOfLosses) else ((1.0, loss),)


def smoothed_action(
    action: Float[torch.Tensor, "B a"],
    normal: Float[torch.Tensor, "B a"],
    sigma: float,
    clip: float,
    limit: float = 1.0,
) -> Float[torch.Tensor, "B a"]:
    """A nearby action: + clip(sigma * limit * normal, -clip * limit, clip * limit), held within [-limit, limit].

    Source: Fujimoto et al. 2018, arXiv 1802.09477, section 5.3.
    """
    noise = (sigma * limit * normal).clamp(-clip * limit, clip * limit)
    return (action + noise).clamp(-limit, limit)


def clipped_double_target(
    reward: Float[torch.Tensor, "B"],
    terminated: Bool[torch.Tensor, "B"],
    next_value: Float[torch.Tensor, "K B"],
    gamma: float,
) -> Float[torch.Tensor, "B"]:
    """y = r + gamma * (1 - terminated) * the smallest of the target critics' values. A time limit does not terminate.

    Source: Fujimoto et al. 2018, arXiv 1802.09477, equation 10.
    """
    return reward + gamma * torch.where(terminated, torch.zeros_like(reward), next_value.amin(0))


@dataclass(frozen=True)
class TDError(NetLoss):
    """Sum over critics of mean (Q(s,a) - y)^2, y the clipped double target at a smoothed target action (TD3).

    Reads the networks `critics`, `critics`_target and `actor`_target.

    Attributes:
        gamma: discount.
        sigma, clip: deviation and bound of the smoothing noise, as shares of the largest action; sigma 0 smooths not.
        critics, actor: names of networks.
    """

    gamma: float = 0.99
    sigma: float = 0.2
    clip: float = 0.5
    critics: str = "q"
    actor: str = "actor"

    def __call__(self, nets: Nets, batch: Transitions, rng: torch.Generator) -> Loss:
        with torch.no_grad():
            action = nets[f"{self.actor}_target"](batch.next_observation)
            normal = torch.randn(action.shape, generator=rng).to(action.device)
            smoothed = smoothed_action(action, normal, self.sigma, self.clip)
            after = q_values(nets[f"{self.critics}_target"], batch.next_observation, smoothed)
            target = clipped_double_target(batch.reward, batch.terminated, after, self.gamma)
        value = q_values(nets[self.critics], batch.observation, batch.action)
        loss = (value - target).square().mean(1).sum()
        return Loss(loss, {"q_loss": loss.detach(), "q_mean": value[0].detach().mean()})


@dataclass(frozen=True)
class Ascend(NetLoss):
    """-mean Q_1(s, actor(s)): the deterministic policy gradient, by the first critic only."""

    critics: str = "q"
    actor: str = "actor"

    def __call__(self, nets: Nets, batch: Transitions, rng: torch.Generator) -> Loss:
        both = torch.cat([batch.observation, nets[self.actor](batch.observation)], -1)
        loss = -nets[self.critics].get_submodule("0")(both).mean()
        return Loss(loss, {"actor_loss": loss.detach()})

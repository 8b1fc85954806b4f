"""Staying near another policy, and staying random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float

from melior.objectives.heads import Entropy, ReverseKL
from melior.parts import Evaluation, Need, Needs, Ratio, Term
from melior.trajectories import Trajectories


def kl_estimate(difference: Float[torch.Tensor, "*S"], estimator: str) -> Float[torch.Tensor, "*S"]:
    """A per-token estimate of KL(pi || ref) from d = log ref - log pi of the sampled token.

    k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. Their values agree in expectation (k2's nearly); as a loss their
    gradients do not: k2's is that of the reverse KL on on-policy samples, k1's is zero in expectation, and k3's is
    that of the forward KL. `k3+` has the value of k3 and the gradient of k2.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    k3 = difference.expm1() - difference  # without cancellation: near the reference it is d^2 / 2
    if estimator == "k3":
        return k3
    k2 = difference.square() / 2
    return k3.detach() + k2 - k2.detach()


@dataclass(frozen=True)
class ReferenceKL(Term):
    """KL to the reference policy, estimated from the sampled token.

    Attributes:
        estimator: "k3" (GRPO's; its gradient is the forward KL's), "k2" (the reverse KL's gradient), "k1" (as a loss
            its gradient vanishes in expectation; it belongs in a reward), "k3+" (value of k3, gradient of k2).
        scorer: whose log-probabilities.
        ratio: multiplies the estimate by this importance ratio, with its gradient: k3's is then that of the reverse KL,
            also where the policy has moved away from the sampled one (DeepSeek-V3.2, TRL); None leaves it.
    """

    estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    scorer: str = "reference"
    ratio: Ratio | None = None

    def needs(self) -> Needs:
        return frozenset({Need("logp", "batch", self.scorer)})

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        difference = batch.scores[self.scorer]["logp"].to(now.logp.dtype) - now.logp
        estimate = kl_estimate(torch.where(batch.mask, difference, torch.zeros_like(difference)), self.estimator)
        return estimate if self.ratio is None else estimate * self.ratio(now, batch).exp()

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        return {f"kl_{self.scorer}": (self(now, batch) * batch.mask).sum() / batch.mask.sum().clamp(min=1)}


@dataclass(frozen=True)
class Divergence(Term):
    """Reverse KL of the whole next-token distribution to a scorer, KL(pi || scorer), by vocabulary and not by sample.

    Attributes:
        scorer: whose distribution.
        k: only over the policy's own k likeliest tokens, not renormalized (the value can then be negative); 0 for all.
    """

    scorer: str = "reference"
    k: int = 0
    exact_likelihood = True

    @property
    def quantity(self) -> str:
        """The name under which the policy files it."""
        return f"reverse_kl_{self.scorer}" + (f"_top{self.k}" if self.k else "")

    def needs(self) -> Needs:
        return frozenset({Need(self.quantity, "policy", head=ReverseKL(self.scorer, self.k))})

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return now[self.quantity]

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        return {self.quantity: (now[self.quantity] * batch.mask).sum() / batch.mask.sum().clamp(min=1)}


@dataclass(frozen=True)
class EntropyBonus(Term):
    """Minus the entropy of the policy at each action, in nats: add it with a positive weight to keep exploring."""

    exact_likelihood = True
    reads = (Need("entropy", head=Entropy()),)

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return -now["entropy"]

"""A linear probe on the policy's own hidden states that predicts the reward of a completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float

from melior.advantages.groups import group_moments, group_size, leave_one_out_mean
from melior.objectives.heads import Entropy
from melior.parts import Memory, Need, Stats
from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.run import Run

State = Mapping[str, Any]
# Directions of the hidden states whose variance is less than this share of the greatest are rounding.
NEGLIGIBLE = 1e-10


def ridge(
    features: Float[torch.Tensor, "N k"], targets: Float[torch.Tensor, "N"], alpha: float
) -> tuple[Float[torch.Tensor, "k"], Float[torch.Tensor, ""]]:
    """Weights w and intercept b that minimize the sum of (w . x + b - y)^2 + alpha |w|^2; b is not penalized.

    w = (X'X + alpha I)^-1 X'y on centered data, b = mean y - w . mean x.
    """
    center, level = features.mean(0), targets.mean()
    x = features - center
    gram = x.T @ x + alpha * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    weights = torch.linalg.pinv(gram, hermitian=True) @ (x.T @ (targets - level))
    return weights, level - weights @ center


def principal_axes(features: Float[torch.Tensor, "N d"], most: int) -> Float[torch.Tensor, "d k"]:
    """The directions of greatest variance, at most `most`, fewer when the rows do not span that many."""
    x = features - features.mean(0)
    variance, axes = torch.linalg.eigh(x.T @ x)
    rank = int((variance > NEGLIGIBLE * variance.amax()).sum())
    return axes.flip(1)[:, : min(most, rank)]


def fill(features: Float[torch.Tensor, "B d"], known: Float[torch.Tensor, "N d"]) -> Float[torch.Tensor, "B d"]:
    """Features with whatever is not finite replaced by the mean of `known` (0 when nothing is known)."""
    mean = known.mean(0) if len(known) else features.new_zeros(features.shape[1])
    return torch.where(features.isfinite(), features, mean)


def sibling_target(batch: Trajectories, pair_average: bool) -> Float[torch.Tensor, "B"]:
    """What the probe should have said of each row: the mean reward of the others, or with `pair_average` of all.

    NaN where there is no such reward.
    """
    assert batch.reward is not None
    if pair_average:
        return group_moments(batch.reward, batch.group)[0]
    others = group_size(batch.reward, batch.group) - (~batch.reward.isnan()).to(batch.reward.dtype)
    mean = leave_one_out_mean(batch.reward, batch.group)
    return torch.where(others > 0, mean, torch.full_like(mean, torch.nan))


@dataclass(frozen=True)
class RidgeProbe(Memory[State]):
    """Predicts a completion's reward from the policy's hidden state and entropy, as the column "prediction".

    After each update the batch's features enter a sliding buffer, each paired with the mean reward of the *other*
    siblings, and the probe is fitted anew: the hidden states (middle layer, mean of the last tokens) are reduced to
    their principal axes, joined by the mean token entropy, standardized, and regressed with a ridge penalty.
    Predictions are clipped to 0..1, so rewards should lie there. While nothing is fitted yet the prediction is the
    row's own reward, which makes `SiblingBaseline` the leave-one-out mean (RLOO).

    Features that are not finite take the buffer's mean. Rows without a reward, or without siblings to pair with, teach
    the probe nothing.

    Attributes:
        pca: axes kept of the hidden states; fewer when the buffer spans fewer.
        alpha: ridge penalty, in the scale of a sum of squared errors.
        buffer: pairs remembered, the newest.
        bootstrap: steps during which the buffer only fills.
        pair_average: pair features with the group's mean reward, the row's own included.

    Source: Choi, Lim et al. 2026, arXiv 2605.07579.
    """

    pca: int = 64
    alpha: float = 100.0
    buffer: int = 4096
    bootstrap: int = 16
    pair_average: bool = False

    reads = (Need("hidden", on="batch"), Need("entropy", on="batch", head=Entropy()))

    def init(self, run: Run) -> State:
        return {"steps": 0, "features": torch.zeros(0, 0), "targets": torch.zeros(0), "probe": {}}

    def recall(self, state: State, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None
        if state["steps"] < self.bootstrap or not state["probe"]:
            return batch.column(prediction=batch.reward)
        features = fill(pooled(batch), state["features"])
        return batch.column(prediction=predict(state["probe"], features).to(batch.reward))

    def observe(self, state: State, batch: Trajectories, stats: Stats) -> State:
        target = sibling_target(batch, self.pair_average)
        paired = batch.mask.any(-1) & target.isfinite()
        features = pooled(batch)[paired.cpu()]
        old = state["features"] if len(state["features"]) else features[:0]
        known = old if len(old) else features[features.isfinite().all(-1)]
        features = torch.cat([old, fill(features, known)])[-self.buffer :]
        targets = torch.cat([state["targets"], target[paired].float().cpu()])[-self.buffer :]
        probe = fit(features, targets, self.pca, self.alpha) if len(features) else {}
        return {"steps": state["steps"] + 1, "features": features, "targets": targets, "probe": probe}


def pooled(batch: Trajectories) -> Float[torch.Tensor, "B d1"]:
    """[hidden state, mean entropy over the trained tokens], one row each; NaN entropy for a row without tokens.

    In float32 on the CPU, where checkpoints put the memory back.
    """
    hidden = batch.features["hidden"].float().cpu()
    entropy = torch.where(batch.mask, batch.require("entropy"), torch.zeros_like(batch.require("entropy")))
    mean = entropy.sum(-1) / batch.mask.sum(-1)
    return torch.cat([hidden, mean.to(hidden)[:, None]], 1)


def fit(
    features: Float[torch.Tensor, "N d1"], targets: Float[torch.Tensor, "N"], pca: int, alpha: float
) -> dict[str, torch.Tensor]:
    """The probe of these pairs: axes of the hidden part, center and scale of what is reduced, weights, intercept."""
    axes = principal_axes(features[:, :-1].double(), pca)
    reduced = _reduce(features, axes)
    center, scale = reduced.mean(0), reduced.std(0, correction=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    weights, intercept = ridge((reduced - center) / scale, targets.double(), alpha)
    return {"axes": axes, "center": center, "scale": scale, "weights": weights, "intercept": intercept}


def predict(probe: Mapping[str, torch.Tensor], features: Float[torch.Tensor, "B d1"]) -> Float[torch.Tensor, "B"]:
    """g(z) = clip(w . z + b, 0, 1)."""
    reduced = (_reduce(features, probe["axes"]) - probe["center"]) / probe["scale"]
    return (reduced @ probe["weights"] + probe["intercept"]).clamp(0, 1)


def _reduce(features: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    """The hidden part along the axes, and the entropy as it is."""
    wide = features.double()
    return torch.cat([wide[:, :-1] @ axes, wide[:, -1:]], 1)

"""Objectives that need the whole batch, with the aggregates they are reduced by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from melior.objectives import (
    NLL,
    CappedWeight,
    Clip,
    ConstantLength,
    EntropyBonus,
    PolicyGradient,
    Probe,
    PromptMean,
    ReferenceKL,
    SegmentRatio,
    SequenceMean,
    Surrogate,
    TargetMatching,
    TokenMean,
    ValueLoss,
)
from melior.objectives.ratios import log_ratio
from melior.parts import Evaluation, Need, Term
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class CappedSampleSize(Term):
    """An importance-weighted loss whose scale is the batch's effective sample size, differentiated through both."""

    cap: float = 0.9

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        weight = log_ratio(now, batch).sum(-1).exp() * batch.mask.any(-1)
        share = weight.sum().square() / (weight.square().sum() * len(batch))
        return -batch.advantage * weight[:, None] * torch.clamp(share, max=self.cap)


@dataclass(frozen=True)
class HiddenNorm(Term):
    """A whole-row loss of the pooled hidden state."""

    reads = (Need("hidden"),)

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return now["hidden"].square().sum(-1)


OBJECTIVES = {
    "effective sample size": (1.0 * CappedSampleSize(), TokenMean()),
    "softmax over a group": (1.0 * TargetMatching(), PromptMean()),
    "two denominators": (Clip() + 0.5 * NLL().over(TokenMean("right")), TokenMean()),
    "two quantities": (
        Clip(0.1) + 0.3 * ValueLoss(0.2) + 0.2 * EntropyBonus() + 0.04 * ReferenceKL("k3"),
        SequenceMean(),
    ),
    "ratio of a turn": (1.0 * Clip(0.1, 0.2, ratio=SegmentRatio("turn")), ConstantLength()),
    "ratio of a row": (1.0 * Surrogate(SegmentRatio("row", "sum")), Probe()),
    "detached weight": (CappedWeight(0.2) + 0.1 * ReferenceKL("k2"), TokenMean()),
    "pooled": (PolicyGradient() + 0.1 * HiddenNorm().over(PromptMean()), TokenMean()),
}

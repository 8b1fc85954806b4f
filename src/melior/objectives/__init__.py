"""Objectives: what do we descend, and inside which trust region? Terms, ratios and aggregates."""

from melior.objectives.aggregates import ConstantLength, Probe, PromptMean, SequenceMean, SequenceSum, TokenMean
from melior.objectives.divergence import Divergence, EntropyBonus, ReferenceKL
from melior.objectives.likelihood import NLL
from melior.objectives.policy_gradient import CappedWeight, Clip, PolicyGradient, Surrogate
from melior.objectives.ratios import SegmentRatio, TokenRatio
from melior.objectives.target import TargetMatching
from melior.objectives.value import ValueLoss

__all__ = [
    "NLL",
    "CappedWeight",
    "Clip",
    "ConstantLength",
    "Divergence",
    "EntropyBonus",
    "PolicyGradient",
    "Probe",
    "PromptMean",
    "ReferenceKL",
    "SegmentRatio",
    "SequenceMean",
    "SequenceSum",
    "Surrogate",
    "TargetMatching",
    "TokenMean",
    "TokenRatio",
    "ValueLoss",
]

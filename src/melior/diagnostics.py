"""Figures about an evaluation that every step logs, whatever the objective."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float

from melior.objectives.heads import Entropy
from melior.parts import Evaluation, Need
from melior.trajectories import Trajectories

MONITORS = frozenset({Need("entropy", on="batch", head=Entropy())})


def effective_sample_size(log_weight: Float[torch.Tensor, "N"]) -> Float[torch.Tensor, ""]:
    """(sum w)^2 / (N sum w^2) in (0, 1]: the share of N samples that importance weights leave."""
    if log_weight.numel() == 0:
        return torch.ones(())
    w = (log_weight - log_weight.max()).exp()
    return (w.sum().square() / (w.square().sum() * w.numel())).clamp(max=1)  # rounding may lift it above


def k3(difference: Float[torch.Tensor, "N"]) -> Float[torch.Tensor, ""]:
    """Mean of exp(d) - d - 1, d = log q - log p of samples from p: an estimate of KL(p || q), never negative."""
    return (difference.expm1() - difference).mean() if difference.numel() else torch.zeros(())


def sampler_gap(
    trainer: Float[torch.Tensor, "B T"], sampler: Float[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"]
) -> dict[str, torch.Tensor]:
    """Mean, 95th percentile and greatest |difference| of the two log-probabilities over trained tokens, and the share
    of those whose ratio trainer / sampler lies outside [0.9, 1.1]."""
    gap = (trainer - sampler).abs()[mask].float()
    if gap.numel() == 0:
        return {}
    p95 = gap.kthvalue(max(1, -(-gap.numel() * 95 // 100))).values  # quantile() takes at most 2**24 values
    outside = outside_share(trainer, sampler, mask)
    return {"gap_mean": gap.mean(), "gap_p95": p95, "gap_max": gap.max(), "gap_outside": outside}


def outside_share(
    trainer: Float[torch.Tensor, "B T"], sampler: Float[torch.Tensor, "B T"], mask: Bool[torch.Tensor, "B T"]
) -> Float[torch.Tensor, ""]:
    """Share of the tokens in the mask whose probability ratio trainer / sampler lies outside [0.9, 1.1]."""
    ratio = (trainer - sampler)[mask].exp()
    return ((ratio < 0.9) | (ratio > 1.1)).float().mean()


def diagnostics(now: Evaluation, batch: Trajectories) -> dict[str, torch.Tensor]:
    """Entropy, divergences from the proximal and the sampling policy, effective sample size, sampler gap.

    The batch was sampled before the policy moved, so both divergences are those of the older policy from the current
    one, KL(old || pi).
    """
    figures: dict[str, torch.Tensor] = {}
    mask, logp = batch.mask, now.logp.detach()
    if "entropy" in now.extra and bool(mask.any()):
        figures["entropy"] = now["entropy"].detach()[mask].mean()
    old = logp if batch.proximal_logp is None else batch.proximal_logp
    figures["kl_proximal"] = k3((logp - old)[mask])
    if batch.behaviour_logp is not None:
        figures["kl_sampler"] = k3((logp - batch.behaviour_logp)[mask])
        figures["ess"] = effective_sample_size((logp - batch.behaviour_logp)[mask])
        figures |= sampler_gap(old, batch.behaviour_logp, mask)
    return figures

"""Sampling from something between the policy and another model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float

from melior.parts import Blend

if TYPE_CHECKING:
    from melior.run import Run

HALVINGS = 50


def trust_region_blend(
    student_logp: Float[torch.Tensor, "N V"], teacher_logp: Float[torch.Tensor, "N V"], eps: float
) -> Float[torch.Tensor, "N V"]:
    """The distribution nearest to the teacher within eps of the student: argmin KL(mu || T) with KL(mu || S) <= eps.

    Takes and returns log-probabilities (nats), one distribution a row. The minimizer is mu proportional to
    S^(1 - beta) T^beta with the largest feasible beta in [0, 1]; KL(mu || S) rises with beta, so beta is found by
    bisection, and its feasible end is kept: the bound holds.

    Where KL(T || S) <= eps the result is the teacher itself, and for eps = 0 the student itself. Tokens that the
    teacher excludes leave mu at every beta > 0; where that alone costs more than eps the result is the student, as it
    is where either distribution holds a NaN.

    Source: Plyusov, Gorbatovski et al. 2026, arXiv 2605.31159.
    """
    student, teacher = student_logp.double(), teacher_logp.double()
    if not eps > 0:
        return student_logp
    broken = (student.isnan() | teacher.isnan()).any(-1)
    free = ~broken & (_divergence(teacher, student) <= eps)
    mixed = torch.where(free[:, None], teacher, student)
    between = ~broken & ~free
    if bool(between.any()):
        mixed[between] = _between(student[between], teacher[between], eps)
    return mixed.to(student_logp.dtype)


def _divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """[N] KL(p || q) of log-distributions, with 0 log 0 = 0."""
    return torch.where(p > -torch.inf, p.exp() * (p - q), torch.zeros_like(p)).sum(-1)


def _between(student: torch.Tensor, teacher: torch.Tensor, eps: float) -> torch.Tensor:
    """The blend of rows whose teacher lies outside the trust region."""
    shared = student.isfinite() & teacher.isfinite()
    base = student.masked_fill(~shared, -torch.inf)
    slope = torch.where(shared, teacher - student, torch.zeros_like(student))
    low, high = torch.zeros_like(base[:, 0]), torch.ones_like(base[:, 0])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        inside = _within(base, slope, middle, eps)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    blended = (base + low[:, None] * slope).log_softmax(-1)
    return torch.where((low > 0)[:, None], blended, student)


def _within(base: torch.Tensor, slope: torch.Tensor, beta: torch.Tensor, eps: float) -> Bool[torch.Tensor, "N"]:
    """Whether KL(mu || S) = beta E_mu[log T - log S] - log Z(beta) is at most eps; False where nothing is shared."""
    weight = base + beta[:, None] * slope
    scale = weight.logsumexp(-1)
    mean = ((weight - scale[:, None]).exp() * slope).sum(-1)
    return beta * mean - scale <= eps


@dataclass(frozen=True)
class TrustBlend(Blend):
    """Rollouts from the policy pulled toward a teacher, within eps nats of the policy at every token; annealed away.

    In step k (from 0) the bound is eps * (1 - k / anneal), and 0 from k = anneal on: then the policy is sampled and
    the teacher no longer asked. Both distributions are taken at the sampling temperature. The two models must share a
    vocabulary.

    Attributes:
        eps: the first bound on KL(blend || policy) at each prefix, in nats; inf samples the teacher.
        anneal: steps of the warm-up; 0 samples the policy from the start, inf keeps the bound.
    """

    eps: float = 0.05
    anneal: float = 25

    scorers = ("teacher",)

    def bound(self, step: int) -> float:
        """The bound in a step counted from 0."""
        left = 1 - step / self.anneal if self.anneal > 0 else 0.0
        return self.eps * left if left > 0 else 0.0

    def active(self, run: Run) -> bool:
        return self.bound(run.step) > 0

    def __call__(self, logp: Mapping[str, torch.Tensor], run: Run) -> torch.Tensor:
        return trust_region_blend(logp["policy"], logp["teacher"], self.bound(run.step))

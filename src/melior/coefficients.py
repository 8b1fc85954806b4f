"""The objective on detached leaves: its loss, and its derivative with respect to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch

from melior.errors import RunError
from melior.parts import POOLED, Aggregate, Evaluation, Loss, Objective
from melior.trajectories import Trajectories

Coefficients = dict[str, torch.Tensor | None]


def evaluation(leaves: Mapping[str, torch.Tensor]) -> Evaluation:
    """What the objective sees of such leaves."""
    return Evaluation(leaves["logp"], {name: value for name, value in leaves.items() if name != "logp"})


def differentiate(
    objective: Objective, now: Evaluation, known: Set[str], batch: Trajectories, aggregate: Aggregate
) -> tuple[Loss, dict[str, torch.Tensor], Coefficients]:
    """The loss at these values, the leaves (`logp` and the `known` quantities), and the derivative for each."""
    leaves = {name: now[name].detach().requires_grad_() for name in ("logp", *sorted(known & set(now.extra)))}
    rest = {name: value.detach() for name, value in now.extra.items() if name not in leaves}
    loss = objective(evaluation({**leaves, **rest}), batch, aggregate)
    if not loss.value.requires_grad:
        slopes: Sequence[torch.Tensor | None] = [None] * len(leaves)
    else:
        slopes = torch.autograd.grad(loss.value, list(leaves.values()), allow_unused=True)
    return loss, leaves, dict(zip(leaves, slopes, strict=True))


def foreseen(
    objective: Objective, known: Set[str], batch: Trajectories, aggregate: Aggregate, dtype: torch.dtype
) -> Coefficients | None:
    """The derivatives, where they do not depend on what the policy is about to say; None where they may.

    On a first pass the ratio is 1 by construction, and most objectives weigh each log-probability by its advantage,
    whatever its value. Whether that holds for this objective and batch is found by asking at two places; who uses the
    answer compares it with the derivatives at the true values afterwards.
    """
    if batch.proximal_logp is not None or known & POOLED:
        return None
    start = torch.full_like(batch.mask, -1.0, dtype=dtype)
    if batch.behaviour_logp is not None:
        start = torch.where(batch.mask, batch.behaviour_logp.to(dtype), start)
    found = []
    for scale in (1.0, 0.5):
        leaves = {name: start * scale for name in ("logp", *known)}
        found.append(differentiate(objective, evaluation(leaves), known, batch, aggregate)[2])
    first, second = found
    same = all(equal(first[name], second[name]) for name in first)
    return first if same and all(c is None or bool(c.isfinite().all()) for c in first.values()) else None


def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two derivatives are the same number for number."""
    return a is b if a is None or b is None else torch.equal(a, b)


def missing(true: Coefficients, used: Coefficients) -> Coefficients:
    """What is left to send backward when other derivatives than the true ones were used."""
    rest: Coefficients = {}
    for name, c in true.items():
        u = used.get(name)
        if equal(c, u):
            rest[name] = None
        else:
            rest[name] = c if u is None else -u if c is None else c - u
    return rest


def busy(coefficients: Mapping[str, torch.Tensor | None], rows: int) -> torch.Tensor:
    """Index of the rows that have any coefficient other than zero."""
    found: torch.Tensor | None = None
    for c in coefficients.values():
        if c is not None:
            some = (c.reshape(rows, -1) != 0).any(-1)
            found = some if found is None else found | some
    return torch.zeros(0, dtype=torch.long) if found is None else found.nonzero().squeeze(-1)


def check_finite(
    loss: Loss,
    leaves: Mapping[str, torch.Tensor],
    coefficients: Mapping[str, torch.Tensor | None],
    batch: Trajectories,
) -> None:
    """Raises RunError that names the first rows at fault when anything about the loss is not finite."""
    for name, leaf in leaves.items():
        wrong = ~leaf.detach().isfinite()
        bad = (wrong & batch.mask if name not in POOLED else wrong).any(-1).nonzero().flatten()
        if len(bad):
            raise RunError(f"the policy's {name} is not finite in rows {bad[:5].tolist()} of the minibatch")
    for name, c in coefficients.items():
        if c is None:
            continue
        bad = (~c.isfinite()).reshape(len(batch), -1).any(-1).nonzero().flatten()
        if len(bad):
            raise RunError(
                f"the gradient of the loss with respect to {name} is not finite in rows {bad[:5].tolist()} "
                "of the minibatch; no step was made"
            )
    if not bool(torch.isfinite(loss.value)):
        raise RunError("the loss is not finite; no step was made")

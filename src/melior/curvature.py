"""Hessian-vector products of an objective that sees the whole minibatch, whatever the micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from melior.microbatches import place
from melior.parts import Evaluation
from melior.trajectories import Trajectories

Micro = tuple[Trajectories, torch.Tensor]


def hessian_vector_product(
    loss: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    whole: Evaluation,
    micros: Sequence[Micro],
    evaluate: Callable[[Trajectories], Evaluation],
    parameters: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """H v = J' (d2f J v) + sum over leaves of c d2l v, one tensor a parameter.

    The objective's own curvature d2f needs J v of the whole batch first; then every micro-batch adds both its shares.

    Args:
        loss: the scalar objective of the leaves.
        whole: the evaluation of the whole batch, without gradient.
        micros: micro-batches and the index of their rows.
        evaluate: a differentiable evaluation of one micro-batch.
        parameters: what the Hessian is taken for.
        tangents: v, split like the parameters.
    """
    leaves = {name: whole[name].detach().requires_grad_() for name in ("logp", *whole.extra)}
    first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True, allow_unused=True)
    slopes = {name: c for name, c in zip(leaves, first, strict=True) if c is not None}
    moved = {name: torch.zeros_like(leaves[name]) for name in slopes}
    with torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH
    ):  # the fused kernels have no double backward
        for micro, index in micros:
            for name, change in _jvp(evaluate(micro), list(slopes), parameters, tangents).items():
                place(moved[name], change, index)
        curved = _leaf_curvature(slopes, leaves, moved)
        total = [torch.zeros_like(p) for p in parameters]
        for micro, index in micros:
            shares = _second(evaluate(micro), slopes, curved, index, parameters, tangents)
            for whole_sum, share in zip(total, shares, strict=True):
                whole_sum += share
    return total


def _inner(pulled: Sequence[torch.Tensor | None], tangents: Sequence[torch.Tensor]) -> torch.Tensor:
    products = [(g * t).sum() for g, t in zip(pulled, tangents, strict=True) if g is not None]
    return torch.stack(products).sum()


def _jvp(
    now: Evaluation, names: list[str], parameters: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """J v of the named leaves, by differentiating the vector-Jacobian product with respect to its cotangent."""
    values = [now[name] for name in names]
    probes = [torch.zeros_like(value, requires_grad=True) for value in values]
    pulled = torch.autograd.grad(values, parameters, probes, create_graph=True, allow_unused=True)
    return dict(zip(names, torch.autograd.grad(_inner(pulled, tangents), probes), strict=True))


def _leaf_curvature(
    slopes: Mapping[str, torch.Tensor], leaves: Mapping[str, torch.Tensor], moved: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """d2f applied to the leaves' change."""
    bent = [name for name, c in slopes.items() if c.requires_grad]
    if not bent:
        return {name: torch.zeros_like(leaves[name]) for name in slopes}
    second = torch.autograd.grad(
        [slopes[name] for name in bent],
        [leaves[name] for name in slopes],
        [moved[name] for name in bent],
        allow_unused=True,
    )
    return {name: torch.zeros_like(leaves[name]) if s is None else s for name, s in zip(slopes, second, strict=True)}


def _second(
    now: Evaluation,
    slopes: Mapping[str, torch.Tensor],
    curved: Mapping[str, torch.Tensor],
    index: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """One micro-batch's share: the curvature of its leaves, and of the objective seen through them."""
    values = [now[name] for name in slopes]
    weights = [slopes[name].detach()[index][:, : now[name].shape[1]] for name in slopes]
    pulled = torch.autograd.grad(values, parameters, weights, create_graph=True, allow_unused=True)
    bend = [(curved[name][index][:, : now[name].shape[1]] * now[name]).sum() for name in slopes]
    grads = torch.autograd.grad(_inner(pulled, tangents) + torch.stack(bend).sum(), list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]

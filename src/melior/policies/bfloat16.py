"""Computation in bfloat16 where the processor has no instructions for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are at least about as fast as in float32 there.

    On a CPU that lacks the instructions, products of bfloat16 matrices run ten times slower than those of float32.
    """
    return device.type != "cpu" or _cpu_multiplies()


@functools.cache
def _cpu_multiplies() -> bool:
    # Private in torch, but the very question that its own compiler asks before it chooses oneDNN's kernels.
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def products(device: torch.device, autocast: bool) -> AbstractContextManager[Any]:
    """The context in which bfloat16 passes run on this device: nothing where it has the instructions."""
    return Float32Products() if autocast and not multiplies_bfloat16(device) else nullcontext()


class Float32Products(TorchFunctionMode):
    """Within, and where autocast is on, products of matrices take and give bfloat16 but are computed in float32.

    That is what bfloat16 instructions do too: they multiply rounded numbers and add in float32. Activations are kept
    in bfloat16, half as large as in float32; weights are read as they are, in float32, without being rounded first.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        mine = _PRODUCTS.get(func) if torch.is_autocast_enabled("cpu") else None
        return (mine or func)(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """[M,K] times the transpose of [N,K]; what is kept for the backward pass is the input in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x.float(), weight.float().t()).bfloat16()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        (x, weight), slope = ctx.saved_tensors, grads[0].float()
        to_x = torch.mm(slope, weight.float()).bfloat16() if ctx.needs_input_grad[0] else None
        to_weight = torch.mm(slope.t(), x.float()).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return to_x, to_weight


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        flat = _Linear.apply(x.bfloat16().reshape(-1, x.shape[-1]), weight)
        out = flat.view(*x.shape[:-1], weight.shape[0])
        return out if bias is None else out + bias.bfloat16()


def _addmm(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _linear(x, weight.t(), bias)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.matmul(a.bfloat16().float(), b.bfloat16().float()).bfloat16()


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        q, k, v = (x.bfloat16().float() for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, *args, **kwargs).bfloat16()


_PRODUCTS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.nn.functional.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.nn.functional.scaled_dot_product_attention: _attention,
}

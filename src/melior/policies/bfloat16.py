"""Computation in bfloat16 where the processor has no instructions for it."""

from __future__ import annotations

import functools

import torch


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are at least about as fast as in float32 there.

    On a CPU that lacks the instructions, products of bfloat16 matrices run ten times slower than those of float32.
    """
    return device.type != "cpu" or _cpu_multiplies()


@functools.cache
def _cpu_multiplies() -> bool:
    # Private in torch, but the very question that its own compiler asks before it chooses oneDNN's kernels.
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

"""Statistics of sibling rows. Groups are found by id, have any size, and NaN rows are left out."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int


def group_index(group: Int[torch.Tensor, "B"]) -> tuple[Int[torch.Tensor, "B"], int]:
    """Consecutive ids 0..G-1 for arbitrary group ids, and G."""
    ids, inverse = torch.unique(group, return_inverse=True)
    return inverse, len(ids)


def group_sum(values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"]) -> Float[torch.Tensor, "B"]:
    """For each row the sum over its group. A NaN spreads only when no finite sibling exists: it counts as zero."""
    index, count = group_index(group)
    total = torch.zeros(count, dtype=values.dtype, device=values.device)
    return total.index_add(0, index, values.nan_to_num(0.0))[index]


def group_size(values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"]) -> Float[torch.Tensor, "B"]:
    """For each row the number of siblings (itself included) whose value is not NaN."""
    return group_sum((~values.isnan()).to(values.dtype), group)


def group_extremes(
    values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"]
) -> tuple[Float[torch.Tensor, "B"], Float[torch.Tensor, "B"]]:
    """For each row the least and the greatest value in its group, NaN left out (+inf and -inf when all are NaN)."""
    index, count = group_index(group)
    low = torch.full((count,), torch.inf, dtype=values.dtype, device=values.device)
    low = low.scatter_reduce(0, index, values.nan_to_num(torch.inf), "amin")
    high = torch.full((count,), -torch.inf, dtype=values.dtype, device=values.device)
    high = high.scatter_reduce(0, index, values.nan_to_num(-torch.inf), "amax")
    return low[index], high[index]


def group_moments(
    values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"], ddof: int = 1
) -> tuple[Float[torch.Tensor, "B"], Float[torch.Tensor, "B"]]:
    """For each row the mean and the standard deviation of its group, NaN rows left out of both.

    Computed in float64 from centered values. A group whose values are all equal has exactly that mean and deviation
    zero (rounding would otherwise leave a difference that a small epsilon blows up). With `ddof` 1 a group of one has
    deviation zero. A group without any value has mean NaN and deviation zero.
    """
    exact = values.double()
    size = group_size(exact, group)
    low, high = group_extremes(exact, group)
    mean = torch.where(low == high, low, group_sum(exact, group) / size)
    square = group_sum((exact - mean).square(), group)
    deviation = torch.where(size > ddof, square / (size - ddof).clamp(min=1), torch.zeros_like(square)).sqrt()
    deviation = torch.where(low == high, torch.zeros_like(deviation), deviation).nan_to_num(0.0)
    return mean.to(values.dtype), deviation.to(values.dtype)


def leave_one_out_mean(values: Float[torch.Tensor, "B"], group: Int[torch.Tensor, "B"]) -> Float[torch.Tensor, "B"]:
    """For each row the mean of its siblings without itself; zero for a row that has none. NaN rows are left out."""
    exact = values.double()
    others = group_size(exact, group) - (~exact.isnan()).double()
    total = group_sum(exact, group) - exact.nan_to_num(0.0)
    low, high = group_extremes(exact, group)
    mean = torch.where(low == high, low, total / others.clamp(min=1))
    return torch.where(others > 0, mean, torch.zeros_like(mean)).to(values.dtype)

"""The siblings of a group as a prefix tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int

from melior.advantages.groups import group_index, group_moments
from melior.parts import Transform
from melior.trajectories import Trajectories

# Odd 64-bit constants of the splitmix64 finalizer, as signed integers.
_GOLDEN, _MIX_1, _MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685


def prefix_values(
    tokens: Int[torch.Tensor, "B T"],
    present: Bool[torch.Tensor, "B T"],
    reward: Float[torch.Tensor, "B"],
    group: Int[torch.Tensor, "B"],
) -> Float[torch.Tensor, "B T1"]:
    """Mean reward of all siblings that share each prefix.

    V[b, t] is the value of the first t tokens of row b, so V[b, 0] is the group's mean reward and T1 = T + 1. Positions
    past the end of a row repeat its last value. A row whose reward is NaN counts for no prefix; its own values are
    those of the prefixes that it shares, and the last shared one beyond.

    Prefixes are compared by a sum of mixed 64-bit hashes of (position, token), which needs no loop over tokens; two
    different prefixes of a batch of 2**20 tokens collide with probability under 2**-24.

    Source: Tran, Yao & Yu 2025, arXiv 2509.18314.
    """
    b, t = tokens.shape
    rows, _ = group_index(group)
    position = torch.arange(1, t + 1, device=tokens.device)
    mixed = _mix(_mix(tokens.long() + 1) + position * _GOLDEN) * present
    key = torch.cat([torch.zeros_like(rows)[:, None], mixed.cumsum(1)], 1)
    key = _mix(key + _mix(rows + 1)[:, None])
    _, node = torch.unique(key, return_inverse=True)
    # A finished row repeats its last key past its end: count it once for each node it visits.
    fresh = torch.cat([torch.ones_like(present[:, :1]), present], 1) & ~reward.isnan()[:, None]
    count = torch.zeros(int(node.max()) + 1, dtype=torch.float64, device=tokens.device)
    total, low, high = count.clone(), count + torch.inf, count - torch.inf
    flat, value = node[fresh], reward.double()[:, None].expand(b, t + 1)[fresh]
    count = count.index_add(0, flat, torch.ones_like(value))
    total = total.index_add(0, flat, value)
    low = low.scatter_reduce(0, flat, value, "amin")
    high = high.scatter_reduce(0, flat, value, "amax")
    mean = torch.where(low == high, low, total / count)[node]
    return _carry(mean).to(reward.dtype)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The splitmix64 finalizer: a bijection of 64-bit integers that scatters neighbours."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _carry(mean: torch.Tensor) -> torch.Tensor:
    """Replaces values that no rewarded row supports (NaN) by the last supported one before them."""
    known = ~mean.isnan()
    position = torch.arange(mean.shape[1], device=mean.device).expand_as(mean)
    last = torch.where(known, position, torch.zeros_like(position)).cummax(1).values
    return mean.gather(1, last)


def tree_advantage(
    value: Float[torch.Tensor, "B T1"],
    reward: Float[torch.Tensor, "B"],
    group: Int[torch.Tensor, "B"],
    eps: float = 1e-6,
    ddof: int = 1,
) -> Float[torch.Tensor, "B T"]:
    """A[b, t] = (r - mean + V[b, t+1] - V[b, t]) / (std + eps), mean and std over the row's group.

    Source: Tran, Yao & Yu 2025, arXiv 2509.18314.
    """
    center, scale = group_moments(reward, group, ddof)
    return ((reward - center)[:, None] + value[:, 1:] - value[:, :-1]) / (scale[:, None] + eps)


@dataclass(frozen=True)
class PrefixTree(Transform):
    """A = (r - mean + V[t+1] - V[t]) / (std + eps): where siblings part, the parting token earns the change in value.

    Where they do not branch the difference is zero and this is `GroupRelative`. Its update is about twice as long as
    GroupRelative's, so compare at equal step norm.
    """

    eps: float = 1e-6
    ddof: int = 1

    @property
    def needs_siblings(self) -> bool:
        """A row without siblings learns nothing."""
        return True

    def __call__(self, batch: Trajectories) -> Trajectories:
        assert batch.reward is not None and batch.tokens is not None
        value = prefix_values(batch.tokens, batch.present, batch.reward, batch.group)
        advantage = tree_advantage(value, batch.reward, batch.group, self.eps, self.ddof)
        scored = ~batch.reward.isnan()[:, None]
        return batch.with_(advantage=torch.where(batch.mask & scored, advantage, torch.zeros_like(advantage)))

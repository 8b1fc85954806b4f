"""Several rewards, each normalized on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int

from melior.advantages.group import group_relative, spread
from melior.advantages.whiten import whiten
from melior.parts import Transform
from melior.trajectories import Trajectories


def group_decoupled(
    components: Float[torch.Tensor, "B K"],
    group: Int[torch.Tensor, "B"],
    weights: Float[torch.Tensor, "K"],
    eps: float = 1e-4,
) -> Float[torch.Tensor, "B"]:
    """s_i = sum_k w_k (r_ik - mean_gk) / (std_gk + eps), ddof 1; a component that does not apply (NaN) adds 0.

    A row without any component is NaN: it takes no part in what follows.

    Source: Liu, Dong et al. 2026, arXiv 2601.05242, equations of section 3.
    """
    each = torch.stack([group_relative(column, group, "std", eps) for column in components.unbind(1)], 1)
    total = (each.nan_to_num(0.0) * weights).sum(1)
    return torch.where(components.isnan().all(1), torch.full_like(total, torch.nan), total)


@dataclass(frozen=True)
class GroupDecoupled(Transform):
    """Each reward component standardized within its group, then summed by weight, then whitened over the batch.

    Attributes:
        eps: added to the deviation of each component in its group.
        batch_norm: the last step: over "sequence" (each row once), over "token", or "none".
        batch_eps: added to the deviation of the batch ("sequence"), or to its variance ("token").
    """

    eps: float = 1e-4
    batch_norm: Literal["sequence", "token", "none"] = "sequence"
    batch_eps: float = 1e-4

    @property
    def needs_siblings(self) -> bool:
        """A row without siblings learns nothing."""
        return True

    def __call__(self, batch: Trajectories) -> Trajectories:
        names = list(batch.components)
        if not names:
            raise ValueError("GroupDecoupled needs reward components, and this batch has none")
        table = torch.stack([batch.components[name] for name in names], 1)
        weights = table.new_tensor([batch.weights.get(name, 1.0) for name in names])
        row = group_decoupled(table, batch.group, weights, self.eps)
        if self.batch_norm == "sequence":
            row = whiten(row, ~row.isnan(), self.batch_eps)
        advantage = spread(row, batch.mask)
        if self.batch_norm == "token":
            advantage = self._over_tokens(advantage, batch.mask & ~row.isnan()[:, None])
        return batch.with_(advantage=advantage)

    def _over_tokens(self, advantage: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inside = advantage[mask]
        if inside.numel() < 2:
            return torch.zeros_like(advantage)
        return (advantage - inside.mean()) * (inside.var() + self.batch_eps).rsqrt() * mask

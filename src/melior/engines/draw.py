"""One draw from each of N distributions over the vocabulary, by inverse distribution function."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int

# Tokens whose probabilities are added up before the running sum is taken: it then has few terms.
BLOCK = 256


def inverse_cdf(
    weights: Float[torch.Tensor, "N V"], uniform: Float[torch.Tensor, "N"]
) -> tuple[Int[torch.Tensor, "N"], Float[torch.Tensor, "N"]]:
    """The token at which the distribution function passes `uniform` in [0,1), and the [N] sums of the weights.

    `weights` are probabilities up to a factor for each row; a weight of zero is never drawn. The running sum is taken
    in float64: in float32 it would lose tokens of a large vocabulary.
    """
    v = weights.shape[-1]
    whole = v - v % BLOCK
    sums = [weights[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1), weights[:, whole:].sum(-1, keepdim=True)]
    cdf = torch.cat(sums, -1).double().cumsum(-1)
    total = cdf[:, -1:]
    target = _below(uniform.to(total)[:, None] * total, total)
    block = torch.searchsorted(cdf, target, right=True)
    before = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp(min=0)), torch.zeros_like(target))
    index = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, index.clamp(max=v - 1)).double().masked_fill(index >= v, 0.0).cumsum(-1)
    # The share of the block that lies below the target: the block's sum and its running sum are rounded differently.
    share = (target - before) / (cdf.gather(-1, block) - before)
    at = torch.searchsorted(inside, _below(share * inside[:, -1:], inside[:, -1:]), right=True)
    return (block * BLOCK + at).squeeze(-1), total.squeeze(-1)


def _below(target: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Rounding may lift a target to the total itself, past every token that has mass."""
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def truncate(logp: Float[torch.Tensor, "N V"], top_p: float = 1.0, top_k: int = 0) -> Float[torch.Tensor, "N V"]:
    """The log-distribution renormalized over its `top_k` likeliest tokens and then its `top_p` nucleus.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p` (it always holds one token).
    Tokens outside get -inf. Equal probabilities are ranked by token id. `top_k=0` and `top_p=1` change nothing.
    """
    if top_p >= 1 and not 0 < top_k < logp.shape[-1]:
        return logp
    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    if top_k > 0:
        ranked[:, top_k:] = -torch.inf
        ranked = ranked.log_softmax(-1)
    if top_p < 1:
        reached = ranked.exp().cumsum(-1)
        outside = torch.zeros_like(reached, dtype=torch.bool)
        outside[:, 1:] = reached[:, :-1] >= top_p
        ranked = ranked.masked_fill(outside, -torch.inf)
    return torch.empty_like(logp).scatter_(-1, order, ranked).log_softmax(-1)

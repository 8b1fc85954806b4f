"""One draw from each of N distributions over the vocabulary, by inverse distribution function."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int


def inverse_cdf(logp: Float[torch.Tensor, "N V"], uniform: Float[torch.Tensor, "N"]) -> Int[torch.Tensor, "N"]:
    """The token at which the distribution function passes `uniform` in [0,1); probability zero is never drawn.

    `logp` need not be normalized. Use float64: the sum over a large vocabulary loses tokens in float32.
    """
    cdf = logp.exp().cumsum(-1)
    total = cdf[:, -1:]
    # Rounding may lift u * total to total itself, past every token that has mass.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target, right=True).squeeze(-1)


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

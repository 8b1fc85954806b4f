"""Whether a model computes the same for siblings in one row as for rows of their own."""

from __future__ import annotations

from typing import Any

import torch

from melior.policies.output import OutputHead
from melior.policies.rows import Rows
from melior.trajectories import Trajectories

PROMPT = 5
COMPLETIONS = (3, 4, 2)
# Of the difference that it makes to ignore where one completion ends and the next begins.
TOLERANCE = 1e-3


def window(config: Any) -> int:
    """How many tokens the narrowest attention layer sees; a mask of ours would widen it beyond that."""
    kinds = set(getattr(config, "layer_types", None) or ())
    sizes = [
        getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None,
        getattr(config, "attention_chunk_size", None) if "chunked_attention" in kinds else None,
    ]
    if kinds and "sliding_attention" not in kinds:
        sizes[0] = None
    return min((int(size) for size in sizes if size), default=2**31)


def attention_share(network: Any) -> float:
    """Operations of one query-key pair in units of those that a token costs outside attention."""
    config = network.config.get_text_config()
    layers = int(getattr(config, "num_hidden_layers", None) or 1)
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    hidden = int(network.get_output_embeddings().weight.shape[1])
    width = heads * int(getattr(config, "head_dim", None) or hidden // heads)
    embeddings = {id(network.get_input_embeddings().weight), id(network.get_output_embeddings().weight)}
    weights = sum(p.numel() for p in network.parameters() if p.dim() == 2 and id(p) not in embeddings)
    return 2 * width * layers / max(weights, 1)


def mask_type(network: Any, autocast: bool) -> torch.dtype:
    """The kind of mask that the model's attention takes: booleans are converted in every layer, numbers only once."""
    fused = getattr(network.config.get_text_config(), "_attn_implementation", "") == "sdpa"
    return torch.bool if fused and autocast else network.get_output_embeddings().weight.dtype


def packs(network: Any, output: OutputHead) -> bool:
    """Whether three short siblings in one row have the states, and their inputs the gradients, of three rows.

    The measure is the difference that mere concatenation makes. State-space and convolution layers, positions that do
    not come from position ids (ALiBi), and attention that takes no mask of ours show here.
    """
    batch = _sample(int(network.get_output_embeddings().weight.shape[0]))
    device = network.get_output_embeddings().weight.device
    apart, packed = Rows.of(batch, device, whole=True), Rows.of(batch, device, whole=True, plan=[[0, 1, 2]])
    try:
        truth, slopes = _states(network, output, apart, apart.positions, None)
        mine = _states(network, output, packed, packed.positions, packed.mask(mask_type(network, False)))
        running = torch.arange(packed.ids.shape[1], device=device)[None]
        naive = _states(network, output, packed, running, None)
    except Exception:  # a model that cannot take the mask fails in as many ways as there are models
        return False
    want = (truth, torch.zeros_like(mine[1]).index_add(0, _home(apart, packed), slopes))
    return all(
        bool((a - b).abs().max() <= TOLERANCE * (c - b).abs().max()) for a, b, c in zip(mine, want, naive, strict=True)
    )


def _sample(vocabulary: int) -> Trajectories:
    """Three different completions of one prompt."""
    ids = (torch.arange(PROMPT + 3 * max(COMPLETIONS)) * 7919 + 5) % vocabulary
    length = torch.tensor(COMPLETIONS)
    tokens = ids[PROMPT:].view(3, -1)
    return Trajectories(
        torch.arange(tokens.shape[1]) < length[:, None],
        torch.zeros(3, dtype=torch.long),
        prompt=(tuple(ids[:PROMPT].tolist()),) * 3,
        tokens=tokens,
        columns={"length": length},
    )


def _home(apart: Rows, packed: Rows) -> torch.Tensor:
    """Where each token of the separate rows stands in the packed one; padding shares the place of the row's last."""
    width = apart.ids.shape[1]
    column = torch.arange(width, device=apart.ids.device).expand(len(COMPLETIONS), width)
    inside = torch.minimum(column - PROMPT, apart.lengths[:, None] - 1)
    return torch.where(column < PROMPT, column, packed.start[:, None] + inside).flatten()


def _states(
    network: Any, output: OutputHead, rows: Rows, positions: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last states [M,d] where actions are predicted, and the gradient of a fixed sum of them at each input [P*L,d]."""
    inputs: list[torch.Tensor] = []

    def catch(module: torch.nn.Module, arguments: Any, out: torch.Tensor) -> torch.Tensor:
        inputs.append(out.detach().requires_grad_())
        return inputs[-1]

    hook = network.get_input_embeddings().register_forward_hook(catch)
    try:
        with torch.enable_grad():
            states = output.run(network, rows.ids, positions, False, mask).hidden.flatten(0, 1)[rows.before]
            weights = torch.arange(states.numel(), device=states.device).cos().view_as(states)
            (slopes,) = torch.autograd.grad((states * weights.to(states.dtype)).sum(), inputs)
    finally:
        hook.remove()
    return states.detach(), slopes.flatten(0, 1)

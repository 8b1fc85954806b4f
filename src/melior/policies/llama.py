"""Single steps of models built like Llama, on a CPU, with little between the matrix products."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int

ROTARY = ("default", "llama3")  # kinds of rotary positions whose frequencies do not depend on the length
PLAIN = ("LlamaForCausalLM",)
# Of the largest logit.
TOLERANCE = 1e-4


class LlamaSteps:
    """N rows that append a token at a time to the keys and values of a cache.

    States are held as [d,N], a row of the batch in each column: a layer is then the product of its weight, as it lies
    in memory, with the states, which is the fastest form for few rows. Heads that share keys are queries of one
    attention, so keys and values are never repeated; and they are appended in place.
    """

    def __init__(self, network: Any, cache: Any, mask: torch.Tensor | None, position: torch.Tensor) -> None:
        self.body, self.head = network.model, network.get_output_embeddings().weight
        self.cos, self.sin = _angles(network, torch.arange(network.config.max_position_embeddings))
        self.used = int(cache.layers[0].keys.shape[-2])
        self.keys = [layer.keys for layer in cache.layers]
        self.values = [layer.values for layer in cache.layers]
        self.padding = None if mask is None else mask.sum(-1) - mask.shape[1]  # minus the columns that hold nothing
        self.position = position

    def step(self, tokens: Int[torch.Tensor, "N"]) -> Float[torch.Tensor, "N V"]:
        """Append one token to each row; raw logits of the next."""
        states = self.body.embed_tokens.weight[tokens].t().contiguous()
        angles = self.cos[:, self.position], self.sin[:, self.position]
        seen = self._seen()
        for number, layer in enumerate(self.body.layers):
            states += self._attend(number, layer.self_attn, _normed(states, layer.input_layernorm), angles, seen)
            inner = _normed(states, layer.post_attention_layernorm)
            gate = torch.nn.functional.silu(layer.mlp.gate_proj.weight @ inner, inplace=True)
            states += layer.mlp.down_proj.weight @ gate.mul_(layer.mlp.up_proj.weight @ inner)
        self.used, self.position = self.used + 1, self.position + 1
        return (self.head @ _normed(states, self.body.norm)).t().contiguous()

    def keep(self, index: Int[torch.Tensor, "K"]) -> None:
        """Go on with these rows only."""
        for kept in (self.keys, self.values):
            for number, held in enumerate(kept):
                kept[number] = held[index]
        self.position = self.position[index]
        self.padding = None if self.padding is None else self.padding[index]

    def _seen(self) -> torch.Tensor | None:
        """[N,1,1,T] where there is a token, once the new one is there; None without padding."""
        if self.padding is None:
            return None
        return (torch.arange(self.used + 1) >= -self.padding[:, None])[:, None, None]

    def _attend(
        self,
        number: int,
        layer: Any,
        states: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        seen: torch.Tensor | None,
    ) -> torch.Tensor:
        n, width = states.shape[1], layer.head_dim
        queries = _rotated((layer.q_proj.weight @ states).view(-1, width, n), *angles)
        key = _rotated((layer.k_proj.weight @ states).view(-1, width, n), *angles)
        value = (layer.v_proj.weight @ states).view(-1, width, n)
        keys = self._append(self.keys, number, key.permute(2, 0, 1))
        values = self._append(self.values, number, value.permute(2, 0, 1))
        shared = queries.view(len(key), -1, width, n).permute(3, 0, 1, 2)  # [N, heads of keys, heads that share, d]
        out = torch.nn.functional.scaled_dot_product_attention(
            shared.contiguous(), keys, values, seen, scale=layer.scaling
        )
        return layer.o_proj.weight @ out.reshape(n, -1).t()

    def _append(self, held: list[torch.Tensor], number: int, more: torch.Tensor) -> torch.Tensor:
        buffer, at = held[number], self.used
        if at == buffer.shape[2]:
            n, heads, _, width = buffer.shape
            roomy = buffer.new_empty(n, heads, at + max(16, at // 2), width)
            roomy[:, :, :at] = buffer
            buffer = held[number] = roomy
        buffer[:, :, at] = more
        return buffer[:, :, : at + 1]


def steps_alone(network: Any) -> bool:
    """Whether `LlamaSteps` gives this model's logits: it is built like Llama, and a trial says so.

    Only in float32: who computes in float64 compares digits, and the model's own norms round to float32 even there.
    """
    config = network.config
    if type(network).__name__ not in PLAIN or network.device.type != "cpu" or network.dtype != torch.float32:
        return False
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "")
    biased = config.attention_bias or config.mlp_bias or config.hidden_act != "silu"
    if kind not in ROTARY or biased or getattr(config, "_attn_implementation", "") not in ("sdpa", "eager"):
        return False
    return _agrees(network)


@torch.no_grad()
def _agrees(network: Any) -> bool:
    ids = (torch.arange(12).view(2, 6) * 7919 + 3) % network.get_output_embeddings().weight.shape[0]
    truth = network(input_ids=ids, use_cache=False).logits[:, -1]
    out = network(input_ids=ids[:, :4], use_cache=True)
    steps = LlamaSteps(network, getattr(out, "cache", None) or out.past_key_values, None, torch.tensor([4, 4]))
    steps.step(ids[:, 4])
    return bool((steps.step(ids[:, 5]) - truth).abs().max() <= TOLERANCE * truth.abs().max())


def _angles(network: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[d,P] cosines and sines of every position."""
    cos, sin = network.model.rotary_emb(network.get_output_embeddings().weight[:1], positions[None])
    return cos[0].t().contiguous(), sin[0].t().contiguous()


def _normed(states: torch.Tensor, norm: Any) -> torch.Tensor:
    scale = torch.rsqrt(states.square().mean(0, keepdim=True).add_(norm.variance_epsilon))
    return (states * scale).mul_(norm.weight[:, None])


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[H,d,N] turned by the angles of each row's position."""
    half = x.shape[1] // 2
    return x * cos + torch.cat([-x[:, half:], x[:, :half]], 1) * sin

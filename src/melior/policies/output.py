"""From a model's last hidden states to its logits, without asking for those of every position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Forward:
    """One pass: last hidden states [B,L,d], the middle layer's if asked, all logits [B,L,V] if unavoidable."""

    hidden: torch.Tensor
    middle: torch.Tensor | None = None
    logits: torch.Tensor | None = None


@dataclass(frozen=True)
class OutputHead:
    """How the logits follow from the last hidden states h: cap * tanh(scale * W h / cap), or scale * W h without cap.

    Attributes:
        scale: 1 for most models; None where the logits follow in some other way, so that the model must be asked for
            all of them.
        cap: of models that bound their logits.
    """

    scale: float | None = 1.0
    cap: float | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, network: Any) -> OutputHead:
        """The form that reproduces the model's own logits on a few tokens."""
        device = network.get_output_embeddings().weight.device
        ids = torch.arange(4, device=device)[None] % network.get_output_embeddings().weight.shape[0]
        positions = torch.arange(4, device=device)[None]
        truth = cls(None).run(network, ids, positions, middle=False)
        assert truth.logits is not None
        hidden = cls().run(network, ids, positions, middle=False).hidden
        tolerance = 1e-5 * float(truth.logits.abs().max())
        for head in _candidates(network.config.get_text_config()):
            if torch.allclose(head(network, hidden).to(truth.logits), truth.logits, rtol=1e-5, atol=tolerance):
                return head
        return cls(None)

    def __call__(self, network: Any, hidden: Float[torch.Tensor, "*N d"]) -> Float[torch.Tensor, "*N V"]:
        """Logits of these hidden states."""
        logits = network.get_output_embeddings()(hidden)
        if self.scale is not None and self.scale != 1:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def run(
        self,
        network: Any,
        ids: torch.Tensor,
        positions: torch.Tensor,
        middle: bool,
        mask: torch.Tensor | None = None,
    ) -> Forward:
        """Pass [B,L] token ids through the model; `mask` [B,1,L,L] replaces its causal one."""
        whole = self.scale is None
        body = network if whole else network.base_model
        out = body(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            output_hidden_states=middle or whole,
            return_dict=True,
            **({} if mask is None else {"attention_mask": mask}),
        )
        states: tuple[torch.Tensor, ...] = out.hidden_states if middle or whole else ()
        hidden = states[-1] if whole else out.last_hidden_state
        return Forward(hidden, states[len(states) // 2] if middle else None, out.logits if whole else None)


def _candidates(config: Any) -> list[OutputHead]:
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    cap = getattr(config, "final_logit_softcapping", None)
    heads = [OutputHead()]
    if scale:
        heads.append(OutputHead(float(scale)))
    if divisor:
        heads.append(OutputHead(1 / float(divisor)))
    if cap:
        heads.append(OutputHead(cap=float(cap)))
    return heads

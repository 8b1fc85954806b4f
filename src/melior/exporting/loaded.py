"""A model to be exported, loaded, and the comparison with what was read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float

from melior.errors import RunError
from melior.exporting.source import Source
from melior.policies.causal_lm import FURTHER
from melior.policies.loading import load_causal_lm

ROWS, LENGTH = 2, 48  # of the random tokens that logits are compared on
RELATIVE = 1e-4  # difference allowed, as a share of the largest logit: float32 in another order of additions
TEXTS = (
    "The quick brown fox, it's 7 o'clock: don't PANIC!",
    "27 + 58 = 85; 3.14159, 1000000 and 12:34:56",
    "  two  spaces,\ttabs\n\nand\r\nlines   \n",
    "def f(x):\n    return {'a': x**2}  # code",
    "Über naïve façades: 你好,世界 — здравствуй 🙂",
    "THEY'LL we'Ve I'D",
)


@dataclass
class Model:
    """A language model in float32, its adapter merged, and the logits from before the merging.

    Attributes:
        source: where it was loaded from.
        network: the transformers model.
        tokenizer: its tokenizer.
        logits: of the model as it was trained, with its adapter, over `tokens`.
    """

    source: Source
    network: Any
    tokenizer: Any
    logits: torch.Tensor

    def texts(self) -> list[str]:
        """Texts to compare tokenizers on: plain ones, and special tokens among text."""
        names = [token for token in self.tokenizer.all_special_tokens if token][:4]
        return [*TEXTS, *(f"a{name}\nb {name}" for name in names)]


def load_source(source: Source) -> Model:
    """The model of a folder on the CPU, adapter merged."""
    policy, tokenizer = load_causal_lm(source.folder, device="cpu")
    network = policy.network
    if (source.folder / FURTHER).is_file():
        _take_further(source, network)
    logits = logits_of(network)
    if policy.adapter is not None:
        network = policy.adapter.peft.merge_and_unload(safe_merge=True)
    return Model(source, network.eval(), tokenizer, logits)


def _take_further(source: Source, network: Any) -> None:
    """Weights that were trained beside an adapter."""
    from safetensors.torch import load_file

    known = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in load_file(source.folder / FURTHER).items():
            known[name.removeprefix("model.")].copy_(value)


@torch.no_grad()
def logits_of(network: Any) -> Float[torch.Tensor, "rows length vocabulary"]:
    """Logits over fixed random tokens."""
    size = network.get_input_embeddings().weight.shape[0]
    context = getattr(network.config, "max_position_embeddings", None) or LENGTH
    shape = (ROWS, min(LENGTH, int(context)))
    tokens = torch.randint(0, size, shape, generator=torch.Generator().manual_seed(0))
    return network(input_ids=tokens).logits.float()


def compared(again: torch.Tensor, expected: torch.Tensor, what: str) -> tuple[float, float]:
    """The largest difference of logits and the one allowed; RunError when it is larger."""
    allowed = RELATIVE * max(1.0, float(expected.abs().max()))
    difference = float((again - expected).abs().max()) if again.shape == expected.shape else float("inf")
    if not difference <= allowed:
        raise RunError(
            f"{what} does not compute what the model does: loaded again, its logits differ by up to {difference:.3g} "
            f"({allowed:.3g} is allowed); it was not kept"
        )
    return difference, allowed


def same_tokens(again: Any, model: Model, what: str) -> int:
    """How many texts were compared; RunError when the reloaded tokenizer encodes one differently."""
    texts = model.texts()
    for text in texts:
        for special in (False, True):
            own = model.tokenizer.encode(text, add_special_tokens=special)
            if again.encode(text, add_special_tokens=special) != own:
                raise RunError(f"{what} was loaded again and encodes {text!r} differently; it was not kept")
    if (again.chat_template or None) != (model.tokenizer.chat_template or None):
        raise RunError(f"{what} was loaded again and has another chat template; it was not kept")
    return len(texts)

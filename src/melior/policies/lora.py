"""LoRA adapters over a language model: the one that is trained, and frozen ones that share its base weights."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from melior.errors import UserError

LIVE = "default"
_numbers = itertools.count()


class Adapter:
    """Which adapter of a peft model a policy acts with: the live one, a frozen copy of it, or none at all.

    Attributes:
        peft: the peft model. Outside of `active` its live adapter is always the active one.
        name: of the adapter; None for the base weights alone.
    """

    def __init__(self, peft: Any, name: str | None = LIVE) -> None:
        self.peft = peft
        self.name = name
        if name not in (LIVE, None):
            weakref.finalize(self, _forget, peft, name)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, the model computes with this adapter."""
        if self.name == LIVE:
            yield
            return
        tuner = self.peft.base_model
        try:
            if self.name is None:
                tuner.disable_adapter_layers()
            else:
                tuner.set_adapter(self.name, inference_mode=True)
            yield
        finally:
            if self.name is None:
                tuner.enable_adapter_layers()
            tuner.set_adapter(LIVE)

    def frozen(self) -> Adapter:
        """The adapter as it is now: none where it still changes nothing, otherwise a copy."""
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        if self.name is None or self._changes_nothing():
            return Adapter(self.peft, None)
        state = get_peft_model_state_dict(self.peft, adapter_name=self.name, save_embedding_layers=False)
        state = {name: value.clone() for name, value in state.items()}
        copy = f"frozen{next(_numbers)}"
        with torch.random.fork_rng(devices=[]):  # the copy is initialized at random before it is filled
            self.peft.add_adapter(copy, self.peft.peft_config[self.name])
        set_peft_model_state_dict(self.peft, state, adapter_name=copy)
        self.peft.set_adapter(LIVE)
        return Adapter(self.peft, copy)

    def save(self, folder: Path) -> None:
        """Write a folder that peft loads (adapter weights and configuration)."""
        self.peft.save_pretrained(str(folder), selected_adapters=[self.name or LIVE], save_embedding_layers=False)

    def _changes_nothing(self) -> bool:
        config = self.peft.peft_config[self.name]
        if config.use_dora or config.modules_to_save or getattr(config, "lora_bias", False):
            return False
        second = [p for name, p in self.peft.named_parameters() if _is_second_factor(name, str(self.name))]
        return bool(second) and not any(bool(p.any()) for p in second)


def add_lora(model: Any, rank: int, alpha: int = 0) -> Adapter:
    """A fresh adapter of that rank on every linear layer but the output, scaled by alpha / rank (alpha 0: 2 * rank).

    It changes nothing until it is trained, and its first factor is the same in every run.
    """
    peft = _peft()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha or 2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Adapter(peft.get_peft_model(model, config))


def load_lora(model: Any, folder: Path) -> Adapter:
    """The adapter saved in `folder`, trainable, on its base model."""
    peft = _peft()
    adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    return adopt(adapted)


def adopt(adapted: Any) -> Adapter:
    """The one adapter of a peft model that the user hands in."""
    names = list(adapted.peft_config)
    if names != [LIVE] or adapted.peft_config[LIVE].peft_type != "LORA":
        kinds = ", ".join(f"{name} ({adapted.peft_config[name].peft_type})" for name in names)
        raise UserError(f"the peft model has the adapters {kinds}; give it one LoRA adapter named '{LIVE}'")
    adapted.set_adapter(LIVE)
    return Adapter(adapted)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs the package peft; install it with: pip install 'melior[lm]'") from None
    return peft


def _is_second_factor(name: str, adapter: str) -> bool:
    return f".{adapter}" in name and ("lora_B" in name or "lora_embedding_B" in name)


def _forget(peft: Any, name: str) -> None:
    peft.delete_adapter(name)
    peft.set_adapter(LIVE)

"""LoRA adapters over a language model: the one that is trained, and frozen ones that share its base weights."""

from __future__ import annotations

import copy
import itertools
import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from melior.errors import RunError, UserError

LIVE = "default"
FROZEN = "melior_frozen"  # and a number: what a run adds, for as long as somebody holds it
WEIGHTS = "adapter_model.safetensors"
_numbers = itertools.count()


class Adapter:
    """Which adapter of a peft model a policy acts with: the live one or a frozen copy of it.

    Attributes:
        peft: the peft model. Outside of `active` its live adapter is always the active one.
        name: of the adapter.
    """

    def __init__(self, peft: Any, name: str = LIVE) -> None:
        self.peft = peft
        self.name = name
        if name != LIVE:
            weakref.finalize(self, _forget, peft, name).atexit = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, the model computes with this adapter."""
        if self.name == LIVE:
            yield
            return
        try:
            self.peft.set_adapter(self.name, inference_mode=True)
            yield
        finally:
            self.peft.set_adapter(LIVE)

    def frozen(self) -> Adapter:
        """A copy of the adapter as it is now."""
        with torch.random.fork_rng(devices=[]):  # the copy is initialized at random before it is filled
            twin = f"{FROZEN}{next(_numbers)}"
            self.peft.add_adapter(twin, copy.copy(self.peft.peft_config[self.name]))
        other = Adapter(self.peft, twin)
        values = dict(self.peft.named_parameters())
        for name in values:
            if other.own(name) != name:
                values[other.own(name)].data.copy_(values[self.own(name)])
        self.peft.set_adapter(LIVE)
        return other

    def own(self, name: str) -> str:
        """The parameter of this adapter that corresponds to the live adapter's parameter `name`."""
        return re.sub(rf"\.{LIVE}(?=\.|$)", f".{self.name}", name)

    def save(self, folder: Path) -> None:
        """Write a folder that peft loads (adapter weights and configuration)."""
        self.peft.save_pretrained(str(folder), selected_adapters=[self.name], save_embedding_layers=False)

    def load(self, folder: Path) -> None:
        """Take the weights of an adapter of the same shape that `save` wrote."""
        from safetensors.torch import load_file

        saved = load_file(folder / WEIGHTS)
        for name in sorted(self.saved().keys() ^ saved.keys()):
            raise RunError(f"the adapter in {folder} {'lacks' if name not in saved else 'has a superfluous'} '{name}'")
        _peft().set_peft_model_state_dict(self.peft, saved, adapter_name=self.name)

    def saved(self) -> dict[str, torch.Tensor]:
        """What `save` writes: name in the file -> live tensor."""
        return _peft().get_peft_model_state_dict(self.peft, adapter_name=self.name, save_embedding_layers=False)


def add_lora(model: Any, rank: int, alpha: int = 0) -> Adapter:
    """A fresh adapter of that rank on every linear layer but the output, scaled by alpha / rank (alpha 0: 2 * rank).

    It changes nothing until it is trained, and its first factor is the same in every run.
    """
    peft = _peft()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha or 2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), _without_deprecations():
        torch.manual_seed(0)
        return Adapter(peft.get_peft_model(model, config))


def load_lora(model: Any, folder: Path) -> Adapter:
    """The adapter saved in `folder`, trainable, on its base model."""
    peft = _peft()
    with _without_deprecations():
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    return adopt(adapted)


def adopt(adapted: Any) -> Adapter:
    """The one adapter of a peft model that the user hands in."""
    names = [name for name in adapted.peft_config if not name.startswith(FROZEN)]
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


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """What peft calls and transformers is about to rename is no news to the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _forget(peft: Any, name: str) -> None:
    peft.delete_adapter(name)
    peft.set_adapter(LIVE)

"""A state value read off a language model's last hidden states."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file

from melior.errors import UserError

FILE = "value_head.safetensors"


class ValueHead(torch.nn.Module):
    """V = w . h + b for the state before each action. Starts at zero, so that the first values are 0 everywhere."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width, dtype=dtype, device=device))
        self.bias = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, hidden: Float[torch.Tensor, "M d"]) -> Float[torch.Tensor, "M"]:
        return hidden.to(self.weight.dtype) @ self.weight + self.bias

    def save(self, folder: Path) -> None:
        """Write it beside the model, in a file that the model's own loaders do not look at."""
        save_file({name: value.detach().contiguous() for name, value in self.state_dict().items()}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Take the values saved in `folder`."""
        state = load_file(folder / FILE)
        if state["weight"].shape != self.weight.shape:
            raise UserError(
                f"{folder / FILE} is for hidden states of width {len(state['weight'])}, not {len(self.weight)}"
            )
        self.load_state_dict(state)

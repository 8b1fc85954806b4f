"""Plain torch networks from parts, and what policies over observations share."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float

from melior.errors import RunError, UserError
from melior.parts import Evaluation, Need, Needs, Part
from melior.trajectories import Trajectories


@dataclass(frozen=True)
class MLP(Part):
    """A fully connected network: `MLP((256, 256), "relu")(inputs, outputs, generator)` is a `torch.nn.Sequential`.

    Attributes:
        hidden: widths of the hidden layers.
        activation: "tanh" or "relu", after every hidden layer.
        init: "orthogonal" (hidden layers with gain sqrt 2, biases 0) or "uniform" (weights and biases within
            1 / sqrt(inputs), as torch's own layers start).
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    init: Literal["orthogonal", "uniform"] = "orthogonal"

    def __call__(
        self, inputs: int, outputs: int, generator: torch.Generator, head_gain: float = 1.0
    ) -> torch.nn.Sequential:
        """The network; `head_gain` scales an orthogonal last layer."""
        widths = (inputs, *self.hidden, outputs)
        layers: list[torch.nn.Module] = []
        for i in range(len(widths) - 1):
            last = i == len(widths) - 2
            layer = torch.nn.utils.skip_init(torch.nn.Linear, widths[i], widths[i + 1])
            self._start(layer, head_gain if last else math.sqrt(2), generator)
            layers.append(layer)
            if not last:
                layers.append(torch.nn.Tanh() if self.activation == "tanh" else torch.nn.ReLU())
        return torch.nn.Sequential(*layers)

    def _start(self, layer: torch.nn.Linear, gain: float, generator: torch.Generator) -> None:
        if self.init == "orthogonal":
            torch.nn.init.orthogonal_(layer.weight, gain, generator=generator)
            torch.nn.init.zeros_(layer.bias)
        else:
            bound = 1 / math.sqrt(layer.in_features)
            torch.nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            torch.nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


class NetworkPolicy:
    """A policy over observation vectors: an actor network and, once it is needed, a value network of its own.

    What `melior.policies.policy.Policy` asks of a policy stands here; a kind of action adds `_score`, `noise`, `act`
    and `best`.
    """

    likelihood: Literal["exact", "surrogate", "none"] = "exact"
    kind: ClassVar[str]

    def __init__(self, observation: int, outputs: int, body: MLP, seed: int = 0) -> None:
        self.observation, self.outputs, self.body, self.seed = observation, outputs, body, seed
        self.temperature = 1.0
        actor = body(observation, outputs, torch.Generator().manual_seed(seed), head_gain=0.01)
        self.networks = torch.nn.ModuleDict({"actor": actor})

    @property
    def device(self) -> torch.device:
        """Where its parameters lie."""
        return next(self.networks.parameters()).device

    def to(self, device: torch.device) -> NetworkPolicy:
        """Move it, before its optimizer is made."""
        self.networks.to(device)
        return self

    # ---- scoring

    def evaluate(
        self, batch: Trajectories, needs: Needs = frozenset(), others: Mapping[str, Any] | None = None
    ) -> Evaluation:
        """See `Policy.evaluate`. `batch.prompt` holds the observations [B,T,d] and `batch.tokens` the actions."""
        assert batch.tokens is not None
        output = self.networks["actor"](batch.prompt)
        logp = self._logp(output, batch.tokens)
        extra: dict[str, torch.Tensor] = {}
        for need in sorted(needs, key=lambda need: need.on != "policy"):
            if need.quantity in extra or need.quantity == "logp":
                continue
            with torch.set_grad_enabled(torch.is_grad_enabled() and need.on == "policy"):
                if need.quantity == "value":
                    extra["value"] = self.values(batch.prompt)
                else:
                    extra[need.quantity] = self._quantity(need, output, batch, others or {})
        return Evaluation(logp, extra)

    @property
    def has_values(self) -> bool:
        """Whether it has a value network."""
        return "value" in self.networks

    def values(self, observation: Float[torch.Tensor, "*S d"]) -> Float[torch.Tensor, "*S"]:
        """The value of each observation."""
        if not self.has_values:
            raise RunError("this policy has no value network; prepare() makes one when a part needs values")
        return self.networks["value"](observation).squeeze(-1)

    def prepare(self, needs: Needs) -> None:
        """Adds a value network when one is needed."""
        if any(need.quantity == "value" for need in needs):
            self.add_values()

    def add_values(self) -> None:
        """Adds the value network, unless it is there."""
        if not self.has_values:
            generator = torch.Generator().manual_seed(self.seed + 1)
            self.networks["value"] = self.body(self.observation, 1, generator).to(self.device)

    def rows_at_once(self, width: int) -> int:
        """Rows of `width` actions whose activations take about a quarter of a gigabyte."""
        return max(1, 2**26 // (width * (self.observation + 4 * sum(self.body.hidden) + self.outputs)))

    # ---- remembering

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trainable parameters, always in the same order."""
        yield from self.networks.named_parameters()

    def state(self) -> dict[str, torch.Tensor]:
        """Name -> live tensor."""
        return {name: p.detach() for name, p in self.named_parameters()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts tensors of the same names back."""
        mine = self.state()
        if set(state) != set(mine):
            odd = sorted(set(state) ^ set(mine))
            raise RunError(f"the saved networks and this policy's differ in {', '.join(odd[:4])}")
        for name, value in mine.items():
            if state[name].shape != value.shape:
                raise RunError(f"{name} has shape {tuple(value.shape)}, but {tuple(state[name].shape)} was saved")
            value.copy_(state[name])

    def frozen(self) -> NetworkPolicy:
        """A copy that does not change."""
        other = copy.deepcopy(self)
        other.networks.requires_grad_(False)
        return other

    def save(self, folder: Path) -> None:
        """Writes `policy.safetensors` (the state dict of plain torch layers) and `policy.json` (how to build them)."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state().items()}, folder / "policy.safetensors")
        (folder / "policy.json").write_text(json.dumps(self.description(), indent=2) + "\n")

    def load(self, folder: Path) -> None:
        """Takes the weights that `save` wrote."""
        from safetensors.torch import load_file

        self.load_state(load_file(folder / "policy.safetensors"))

    def description(self) -> dict[str, Any]:
        """What is needed to build it again."""
        return {
            "kind": self.kind,
            "observation": self.observation,
            "actions": self.outputs,
            "hidden": list(self.body.hidden),
            "activation": self.body.activation,
            "value": self.has_values,
        }

    # ---- what a kind of action adds

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Random numbers from which `act` draws `shape` actions."""
        raise NotImplementedError("a subclass draws, acts and scores: write noise(shape, generator)")

    def act(self, observation: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(actions, their log-probabilities [N]) for observations [N,d], a function of the noise; no gradient."""
        raise NotImplementedError("a subclass draws, acts and scores: write act(observation, noise)")

    def best(self, observation: torch.Tensor) -> torch.Tensor:
        """The mode of the distribution for observations [N,d]; no gradient."""
        raise NotImplementedError("a subclass draws, acts and scores: write best(observation)")

    def _logp(self, output: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a subclass draws, acts and scores: write _logp(output, action)")

    def _quantity(
        self, need: Need, output: torch.Tensor, batch: Trajectories, others: Mapping[str, Any]
    ) -> torch.Tensor:
        raise UserError(f"a {self.kind} policy does not know the quantity '{need.quantity}'")

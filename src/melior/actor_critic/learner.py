"""The networks of an actor-critic run, their targets and optimizers, and one update of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from melior.actor_critic.replay import Transitions
from melior.errors import RunError, UserError, near
from melior.frames import ActorCritic, Polyak, Step
from melior.optimizers import make_optimizer, optimizer_state, rate, restore_optimizer
from melior.settings import RunSettings


class NetLearner:
    """Trains the networks of an `ActorCritic` record.

    Attributes:
        nets: name -> network, and NAME_target -> its slow copy.
        updates: updates made.
        step: of the run; the schedule of the learning rate follows it.
    """

    def __init__(
        self, method: ActorCritic, settings: RunSettings, observation: int, action: int, rng: torch.Generator
    ) -> None:
        self.method, self.settings, self.rng = method, settings, rng
        self.updates = self.step = 0
        self.nets: dict[str, torch.nn.Module] = {
            name: part(observation, action, rng) for name, part in method.nets.items()
        }
        for name in (*method.targets(), *(step.trains for _, step in self._steps())):
            if name not in self.nets:
                raise UserError(f"'{method.name}' trains '{name}', none of its networks{near(name, self.nets)}")
        for name in method.targets():
            self.nets[f"{name}_target"] = copy.deepcopy(self.nets[name]).requires_grad_(False)
        self._parameters = {name: list(net.parameters()) for name, net in self.nets.items()}
        self._optimizers = {
            key: make_optimizer(self._trained(step), replace(settings, lr=step.lr or settings.lr))
            for key, step in self._steps()
        }

    def to(self, device: torch.device) -> NetLearner:
        """Move the networks, before the first update."""
        for net in self.nets.values():
            net.to(device)
        return self

    def update(self, batch: Transitions) -> dict[str, float]:
        """The steps of the phase that are due, in their order, all on the same transitions; their figures."""
        self.updates += 1
        number, phase = self.method.phase(self.updates)
        figures: dict[str, float] = {}
        for place, step in enumerate(phase.steps):
            if self.updates % step.every:
                continue
            if isinstance(step, Polyak):
                self._follow(step)
            else:
                figures |= self._descend(step, self._optimizers[f"{number}-{place}"], batch)
        return figures

    def _descend(self, step: Step, optimizer: torch.optim.Optimizer, batch: Transitions) -> dict[str, float]:
        loss = step.loss(self.nets, batch, self.rng)
        parameters = self._parameters[step.trains]
        gradients = torch.autograd.grad(loss.value, parameters, allow_unused=True)
        norm = torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
        if not (bool(torch.isfinite(loss.value)) and bool(torch.isfinite(norm))):
            raise RunError(f"{step.loss!r} or its gradient is not finite at update {self.updates}; no step was made")
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        if self.settings.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.clip_grad, norm)
        for group in optimizer.param_groups:
            group["lr"] = (step.lr or self.settings.lr) * rate(self.settings, self.step)
        optimizer.step()
        figures = {name: float(value) for name, value in loss.metrics.items()}
        return {**figures, f"{step.trains}_grad_norm": float(norm)}

    @torch.no_grad()
    def _follow(self, step: Polyak) -> None:
        for name in step.nets:
            for target, p in zip(self._parameters[f"{name}_target"], self._parameters[name], strict=True):
                target.lerp_(p, step.tau)

    # ---- remembering

    def state(self) -> dict[str, Any]:
        """Networks, targets, optimizers and counts, as a tree of live tensors."""
        return {
            "updates": self.updates,
            "step": self.step,
            "nets": {name: dict(net.state_dict()) for name, net in self.nets.items()},
            "optimizers": {
                key: optimizer_state(self._optimizers[key], self._trained(step)) for key, step in self._steps()
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put such a state back, bit for bit."""
        if set(state["nets"]) != set(self.nets):
            odd = ", ".join(sorted(set(state["nets"]) ^ set(self.nets)))
            raise RunError(f"the networks of the checkpoint and of '{self.method.name}' differ in {odd}")
        self.updates, self.step = int(state["updates"]), int(state["step"])
        for name, net in self.nets.items():
            net.load_state_dict(state["nets"][name])
        for key, step in self._steps():
            restore_optimizer(self._optimizers[key], self._trained(step), state["optimizers"][key])

    # ---- inside

    def _steps(self) -> list[tuple[str, Step]]:
        """Every training step of every phase, by a name that is the same in every run."""
        return [
            (f"{number}-{place}", step)
            for number, phase in enumerate(self.method.phases)
            for place, step in enumerate(phase.steps)
            if isinstance(step, Step)
        ]

    def _trained(self, step: Step) -> dict[str, torch.Tensor]:
        return dict(self.nets[step.trains].named_parameters())

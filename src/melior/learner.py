"""The handle on what is trained: evaluate, take an exact gradient, step, snapshot and restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from melior.coefficients import Coefficients, busy, check_finite, differentiate, evaluation, foreseen, missing
from melior.curvature import hessian_vector_product
from melior.diagnostics import MONITORS, diagnostics
from melior.errors import RunError
from melior.microbatches import Gathered, accumulate, evaluate, rows_that_fit, slices
from melior.optimizers import optimizer_state, restore_optimizer
from melior.parts import Aggregate, Evaluation, Loss, Needs, Objective, Stats
from melior.policies.policy import GivesLogits, Policy
from melior.trajectories import Trajectories

Tree = dict[str, Any]


class Learner:
    """A policy, its optimizer, and the objective's view of both.

    The objective always sees the whole minibatch: it is evaluated on detached leaves (log-probabilities and whatever
    else it needs, [B,T] each), differentiated with respect to them, and micro-batches only carry the chain rule
    through the network. Whole-batch statistics are therefore exact for every micro-batch size, and rows whose
    coefficients are all zero are never sent backward.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        aggregate: Aggregate,
        *,
        averages: Sequence[tuple[Policy, float]] = (),
        rows_per_micro: int = 0,
        clip_grad: float = 0.0,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.aggregate = aggregate
        self.averages = tuple(averages)
        self.rows_per_micro = rows_per_micro
        self.clip_grad = clip_grad
        # The number of the last change of the weights; `restore` brings the snapshot's back. Equal: nothing has moved.
        self.moves = self._made = 0
        self.rate = 1.0  # the schedule's factor on the learning rate, set by the loop at each step
        self.readers: Callable[[str], GivesLogits] | None = None  # scorer -> its logits, for heads; the run sets it
        # Told of every minibatch whose gradient is asked for, and of what the policy said of it; the loop sets it.
        self.watch: Callable[[Trajectories, Evaluation], None] | None = None
        self._base_rates = [group["lr"] for group in optimizer.param_groups]

    # ---- looking

    def evaluate(self, batch: Trajectories, needs: Needs = frozenset()) -> Evaluation:
        """Score the batch without gradient, in micro-batches: `logp` [B,T] and every needed quantity."""
        return evaluate(self.policy, batch, needs, self._others(needs), self._rows(batch))

    def record(self, batch: Trajectories) -> Trajectories:
        """The batch with `proximal_logp` of the policy as it is now, unless it is there already."""
        if batch.proximal_logp is not None:
            return batch
        return batch.with_(proximal_logp=self.evaluate(batch).logp)

    def micro(self, batch: Trajectories) -> Iterator[tuple[Trajectories, torch.Tensor]]:
        """Micro-batches of similar length, trimmed of padding, with the index of their rows."""
        for index in slices(batch, self._rows(batch)):
            yield batch.rows(index).trimmed(), index

    def minibatches(
        self, batch: Trajectories, count: int, generator: torch.Generator | None = None, whole_groups: bool = False
    ) -> Iterator[Trajectories]:
        """The batch itself for a count of 1, else `count` shuffled parts whose sizes differ by at most one row.

        With `whole_groups` it is groups that are shuffled and counted, and each part keeps its rows in their order.
        """
        if count <= 1:
            yield batch
            return
        units = batch.group.unique() if whole_groups else torch.arange(len(batch), device=batch.group.device)
        for index in units[torch.randperm(len(units), generator=generator).to(units.device)].tensor_split(count):
            if len(index):
                yield batch.rows(torch.isin(batch.group, index) if whole_groups else index)

    # ---- gradients

    def gradient(self, objective: Objective, batch: Trajectories) -> Loss:
        """Adds the exact gradient of the objective on the whole minibatch to `.grad`; returns the loss.

        Its `logp` are those of the policy as it is now, so that a first pass gives the proximal ones for nothing.
        When no row has anything to say, nothing is sent backward and `.grad` stays as it was.

        A batch that is cut into micro-batches takes two forward passes, the first to evaluate the objective; but only
        one where the derivatives do not depend on what the policy says, as on a first pass with the plain ratio.

        Raises RunError naming the rows when the loss or its gradient is not finite.
        """
        ahead: Coefficients | None = None
        if len(batch) > self._rows(batch):
            known = {need.quantity for need in self._differentiable(objective)}
            ahead = foreseen(objective, known, batch, self.aggregate, self.parameters()[0].dtype)
        if ahead is not None:
            whole = self._sent_backward(objective, batch, ahead)
            loss, coefficients = self._judged(objective, batch, whole)
            self._send_backward(objective, batch, missing(coefficients, ahead))
        else:
            loss, coefficients, ready = self._coefficients(objective, batch)
            if ready is None:
                self._send_backward(objective, batch, coefficients)
            elif len(busy(coefficients, len(batch))):
                accumulate(ready, coefficients, torch.arange(len(batch), device=batch.group.device))
        skipped = torch.tensor(float(len(batch) - len(busy(coefficients, len(batch)))))
        return Loss(loss.value.detach(), {**loss.metrics, "rows_skipped": skipped}, loss.logp)

    def row_gradients(self, objective: Objective, batch: Trajectories) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """(row, its share of the gradient) for each row that has one; the shares add up to the whole gradient."""
        _, coefficients, _ = self._coefficients(objective, batch)
        parameters = self.parameters()
        for row in busy(coefficients, len(batch)).tolist():
            index = torch.tensor([row], device=batch.group.device)
            micro = batch.rows(index).trimmed()
            now = self.policy.evaluate(micro, self._differentiable(objective), self._others(objective.needs()))
            pulled = [
                (now[name], c[index][:, : now[name].shape[1]]) for name, c in coefficients.items() if c is not None
            ]
            grads = torch.autograd.grad(
                [value for value, _ in pulled], parameters, [c.to(v.dtype) for v, c in pulled], allow_unused=True
            )
            yield row, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]

    def hvp(self, objective: Objective, batch: Trajectories, vector: torch.Tensor) -> torch.Tensor:
        """The Hessian of the objective on the whole minibatch times a flat vector, for every micro-batch size."""
        needs, others = self._differentiable(objective), self._others(objective.needs())
        product = hessian_vector_product(
            lambda leaves: objective(evaluation(leaves), batch, self.aggregate).value,
            self.evaluate(batch, needs),
            list(self.micro(batch)),
            lambda micro: self.policy.evaluate(micro, needs, others),
            self.parameters(),
            self._split(vector),
        )
        return torch.cat([part.reshape(-1) for part in product])

    def zero_grad(self) -> None:
        """Forget the accumulated gradient."""
        self.optimizer.zero_grad(set_to_none=True)

    def grad_vector(self) -> torch.Tensor:
        """The accumulated gradient as one flat vector, zeros where there is none."""
        return torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in self.parameters()]
        )

    # ---- moving

    def step(self, scale: float = 1.0) -> Stats:
        """Clip the gradient, step at `scale` times the scheduled rate, clear the gradient, update the averages.

        Returns the gradient norm before clipping, the norm of the change, and the learning rate. Raises RunError when
        the gradient is not finite; nothing has moved then.
        """
        parameters, norm = self._moving()
        if not bool(torch.isfinite(norm)):
            bad = [n for n, p in self.policy.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            self.zero_grad()
            raise RunError(f"the gradient is not finite in {', '.join(bad[:3])}; no step was made")
        if not parameters:  # nothing was learnt, so nothing follows, the averages neither
            return {"grad_norm": 0.0, "update_norm": 0.0, "lr": self._base_rates[0] * self.rate * scale}
        before = [p.detach().clone() for p in parameters]
        self._moves_on()
        self._optimize(parameters, norm, scale)
        self.zero_grad()
        self._average()
        change = [(p.detach() - b).norm() for p, b in zip(parameters, before, strict=True)]
        moved = torch.stack(change).norm()
        return {"grad_norm": float(norm), "update_norm": float(moved), "lr": self.optimizer.param_groups[0]["lr"]}

    def proposed(self) -> Mapping[str, torch.Tensor]:
        """The change that `step` would make from the accumulated gradient, clipping included; nothing is changed."""
        before = self.snapshot()
        kept = {name: None if p.grad is None else p.grad.clone() for name, p in self.policy.named_parameters()}
        rates = [group["lr"] for group in self.optimizer.param_groups]
        start = {name: p.detach().clone() for name, p in self.policy.named_parameters()}
        try:
            self._optimize(*self._moving())
            return {name: p.detach() - start[name] for name, p in self.policy.named_parameters()}
        finally:
            self.restore(before)
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            for name, p in self.policy.named_parameters():
                p.grad = kept[name]

    def parameters(self) -> list[torch.Tensor]:
        """The trainable parameters, always in the same order."""
        return [p for _, p in self.policy.named_parameters()]

    def vector(self) -> torch.Tensor:
        """A flat copy of the trainable parameters."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()])

    def assign(self, vector: torch.Tensor, where: Callable[[str], bool] = lambda name: True) -> None:
        """Write a flat vector (of all parameters) into those whose name passes `where`."""
        self._moves_on()
        with torch.no_grad():
            for (name, p), part in zip(self.policy.named_parameters(), self._split(vector), strict=True):
                if where(name):
                    p.copy_(part)

    # ---- remembering

    def state(self) -> Tree:
        """All that training changes, as a tree of live tensors: policy, optimizer, averages."""
        return {
            "policy": self.policy.state(),
            "optimizer": optimizer_state(self.optimizer, dict(self.policy.named_parameters())),
            "averages": [average.state() for average, _ in self.averages],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put such a tree back, bit for bit; without "policy" the weights stay as they are."""
        self._moves_on()
        if "policy" in state:
            self.policy.load_state(state["policy"])
        restore_optimizer(self.optimizer, dict(self.policy.named_parameters()), state["optimizer"])
        for (average, _), saved in zip(self.averages, state["averages"], strict=True):
            average.load_state(saved)

    def snapshot(self) -> Tree:
        """A copy of the state, for `restore`."""
        return {**_copied(self.state()), "moves": self.moves}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Back to a snapshot: weights, optimizer and averages are bit for bit what they were."""
        self.load_state(_copied(snapshot))
        self.moves = snapshot["moves"]

    # ---- inside

    def _moves_on(self) -> None:
        """Numbers a change of the weights, before it is made: one that fails half-way counts."""
        self._made += 1
        self.moves = self._made

    def _moving(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The parameters that have a gradient, and its norm."""
        parameters = [p for p in self.parameters() if p.grad is not None]
        return parameters, torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def _optimize(self, parameters: list[torch.Tensor], norm: torch.Tensor, scale: float = 1.0) -> None:
        """One step of the optimizer on the clipped gradient."""
        if self.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip_grad, norm)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * self.rate * scale
        self.optimizer.step()

    def _others(self, needs: Needs) -> dict[str, GivesLogits]:
        names = {scorer for need in needs if need.head is not None for scorer in need.head.scorers}
        if names and self.readers is None:
            raise RunError(f"no scorer is known here, but {sorted(names)} is needed")
        return {name: self.readers(name) for name in sorted(names)} if self.readers is not None else {}

    @staticmethod
    def _differentiable(objective: Objective) -> Needs:
        return frozenset(need for need in objective.needs() if need.on == "policy")

    def _rows(self, batch: Trajectories) -> int:
        return self.rows_per_micro or rows_that_fit(self.policy, batch)

    def _wanted(self, objective: Objective) -> Needs:
        """What a pass computes: the objective's needs, and figures worth watching."""
        needs = self._differentiable(objective)
        known = {need.quantity for need in needs}
        monitors = MONITORS if self.policy.likelihood == "exact" else frozenset()  # entropy is of a distribution
        return needs | {need for need in monitors if need.quantity not in known}

    def _coefficients(self, objective: Objective, batch: Trajectories) -> tuple[Loss, Coefficients, Evaluation | None]:
        """The loss, its derivative for each leaf, and the evaluation with its graph when one micro-batch was enough."""
        wanted = self._wanted(objective)
        single = len(batch) <= self._rows(batch)
        others = self._others(objective.needs())
        whole = self.policy.evaluate(batch, wanted, others) if single else self.evaluate(batch, wanted)
        return (*self._judged(objective, batch, whole), whole if single else None)

    def _judged(self, objective: Objective, batch: Trajectories, whole: Evaluation) -> tuple[Loss, Coefficients]:
        """The loss with its figures, and its derivative for each leaf, checked to be finite."""
        if self.watch is not None:
            self.watch(batch, whole)
        known = {need.quantity for need in self._differentiable(objective)}
        loss, leaves, coefficients = differentiate(objective, whole, known, batch, self.aggregate)
        check_finite(loss, leaves, coefficients, batch)
        return Loss(loss.value, {**diagnostics(whole, batch), **loss.metrics}, whole.logp.detach()), coefficients

    def _send_backward(self, objective: Objective, batch: Trajectories, coefficients: Coefficients) -> None:
        """Adds the gradient of sum of coefficient * leaf; rows whose coefficients are all zero are left out."""
        rows = busy(coefficients, len(batch))
        needs, others = self._differentiable(objective), self._others(objective.needs())
        for micro, index in self.micro(batch.rows(rows)) if len(rows) else ():
            accumulate(self.policy.evaluate(micro, needs, others), coefficients, rows.to(index.device)[index])

    def _sent_backward(self, objective: Objective, batch: Trajectories, coefficients: Coefficients) -> Evaluation:
        """The same for coefficients known beforehand, and on the way the evaluation of the whole batch.

        Nothing is sent backward any more once the policy is not finite; the caller finds out and says so.
        """
        wanted, others = self._wanted(objective), self._others(objective.needs())
        rows = busy(coefficients, len(batch))
        idle = torch.ones(len(batch), dtype=torch.bool, device=rows.device).index_fill(0, rows, False)
        gathered = Gathered(batch)
        for learns, chosen in ((True, rows), (False, idle.nonzero().squeeze(-1))):
            chosen = chosen.to(batch.group.device)
            for micro, index in self.micro(batch.rows(chosen)) if len(chosen) else ():
                with torch.set_grad_enabled(learns):
                    now = self.policy.evaluate(micro, wanted, others)
                if learns and bool(torch.isfinite(now.logp.detach()[micro.mask]).all()):
                    accumulate(now, coefficients, chosen[index])
                gathered.add(now, chosen[index])
        return gathered.whole()

    def _split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        parameters = self.parameters()
        sizes = [p.numel() for p in parameters]
        return [part.view_as(p).to(p.dtype) for part, p in zip(vector.split(sizes), parameters, strict=True)]

    def _average(self) -> None:
        with torch.no_grad():
            current = self.policy.state()
            for average, decay in self.averages:
                for name, value in average.state().items():
                    value.lerp_(current[name], 1 - decay)


def _copied(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_copied(value) for value in tree]
    return tree

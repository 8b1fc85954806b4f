"""The algebra: what a part is, how parts combine, and what each stage of the line is called with.

A part is a frozen dataclass with `__call__`. Its fields are its hyper-parameters, its repr is its documentation, and
two parts are equal when their fields are. Pure parts (`Transform`, `Term`, `Ratio`, `Aggregate`) are functions of the
batch; acting parts (`Rollout`, `Update`, `Curriculum`, `Memory`) are handed the `Run` or the `Learner`, import no loop
and hide no state: what outlives a step is that of a `Memory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch

from melior.trajectories import Trajectories

if TYPE_CHECKING:
    from melior.learner import Learner
    from melior.prompts import Prompts
    from melior.run import Run

S = TypeVar("S")
Stats = dict[str, float]


@runtime_checkable
class Head(Protocol):
    """A functional of the next-action distribution, evaluated chunk by chunk so that no [B,T,V] tensor is ever held.

    `scorers` names the other policies whose logits it reads.
    """

    @property
    def scorers(self) -> tuple[str, ...]: ...

    def __call__(
        self, logits: torch.Tensor, tokens: torch.Tensor, others: Mapping[str, torch.Tensor], hidden: torch.Tensor
    ) -> torch.Tensor:
        """[N,V] logits (after temperature), [N] tokens, scorer -> [N,V] logits, [N,d] hidden -> [N]."""
        ...


@dataclass(frozen=True)
class Need:
    """One quantity that a part reads, by what it is and not by who wants it.

    Attributes:
        quantity: "logp", "entropy", "value", "hidden", or the name under which `head` is filed.
        on: "policy": computed in every forward pass, with gradient. "batch": computed once before credit is assigned,
            without gradient, and stored in the batch (`columns`, `features` or `scores`).
        scorer: whose opinion: "policy", "proximal", "reference", "teacher" or any name in `Method.scorers`.
        head: how to compute it from the logits, when the policy does not know it by name.
    """

    quantity: str
    on: Literal["batch", "policy"] = "policy"
    scorer: str = "policy"
    head: Head | None = None


Needs = frozenset[Need]
POOLED = frozenset({"hidden"})  # quantities of a whole row, [B,d]; all others follow the action axis, [B,T]


class Part:
    """Base of all parts: a frozen dataclass that says what it reads.

    A subclass lists its own reads in `reads`; a composite needs what its fields need. A part that is meaningful only
    for a policy whose likelihood is exact sets `exact_likelihood`; one whose result for a row depends on the row's
    siblings, so that it must never see part of a group, sets `whole_groups`.
    """

    reads: ClassVar[tuple[Need, ...]] = ()
    exact_likelihood: ClassVar[bool] = False
    whole_groups: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # keeps @dataclass from writing its own

    def needs(self) -> Needs:
        """Everything that must be known before this part is called."""
        return frozenset(self.reads).union(*(child.needs() for child in self.children()))

    def children(self) -> Iterator[Part]:
        """The parts among the fields of this one, tuples and mappings included."""
        if is_dataclass(self):
            for f in fields(self):
                yield from _parts(getattr(self, f.name))

    def walk(self) -> Iterator[Part]:
        """This part and all parts within it."""
        yield self
        for child in self.children():
            yield from child.walk()

    def __repr__(self) -> str:
        shown: list[str] = []
        members: tuple[Any, ...] = fields(self) if is_dataclass(self) else ()
        for f in members:
            value = getattr(self, f.name)
            plain = isinstance(value, bool | int | float) or (isinstance(value, str) and value)
            empty = isinstance(value, Mapping | tuple) and not value
            if plain or not (value == f.default or empty):
                shown.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _parts(value: Any) -> Iterator[Part]:
    if isinstance(value, Part):
        yield value
    elif isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(inner)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a policy says of a batch: `logp` [B,T] and further quantities by name, [B,T] each.

    `logp` is any differentiable score whose difference from the recorded one is the log-ratio.
    """

    logp: torch.Tensor
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __getitem__(self, quantity: str) -> torch.Tensor:
        return self.logp if quantity == "logp" else self.extra[quantity]


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to minimize, and named figures about it (detached scalars).

    Attributes:
        value: the scalar.
        metrics: the figures.
        logp: [B,T] without gradient, the log-probabilities it was computed from, where a learner computed it.
    """

    value: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    logp: torch.Tensor | None = None


class Transform(Part):
    """Reward, teacher and advantage stages: batch -> batch.

    `A | B` chains two, `0.7 * A + 0.3 * B` mixes their advantages. One that teaches nothing to a row without siblings
    says so by `needs_siblings`.
    """

    @property
    def needs_siblings(self) -> bool:
        """Whether a group of one has nothing to learn from."""
        return False

    def __call__(self, batch: Trajectories) -> Trajectories:
        raise NotImplementedError("a Transform is a part of its own: write __call__(batch) -> batch")

    def __or__(self, other: Transform) -> Transform:
        return Chain((*_chained(self), *_chained(other)))

    def __rmul__(self, weight: float) -> Transform:
        return Mix(((float(weight), self),))

    def __add__(self, other: Transform) -> Transform:
        return Mix((*_mixed(self), *_mixed(other)))


@dataclass(frozen=True)
class AsIs(Transform):
    """Changes nothing."""

    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch


@dataclass(frozen=True)
class Chain(Transform):
    """One transform after another: `A | B`."""

    parts: tuple[Transform, ...]

    def __call__(self, batch: Trajectories) -> Trajectories:
        for part in self.parts:
            batch = part(batch)
        return batch

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


@dataclass(frozen=True)
class Mix(Transform):
    """A weighted sum of advantages: `0.7 * A + 0.3 * B`.

    Only `advantage` is mixed. Columns that the parts add are merged; two different values for one column are an error.
    """

    parts: tuple[tuple[float, Transform], ...]

    def __call__(self, batch: Trajectories) -> Trajectories:
        results = [(weight, part(batch)) for weight, part in self.parts]
        if any(result.advantage is None for _, result in results):
            raise ValueError(f"{self!r} mixes advantages, but one of its parts computes none")
        total = sum((weight * result.advantage for weight, result in results), torch.zeros(()))  # type: ignore[operator]
        written: dict[str, torch.Tensor] = {}
        for name, value in (column for _, result in results for column in result.columns.items()):
            if name in batch.columns and _same(value, batch.columns[name]):
                continue
            if not _same(written.setdefault(name, value), value):
                raise ValueError(f"the parts of {self!r} write different values into column '{name}'")
        return batch.with_(advantage=total).column(**written)

    def __rmul__(self, weight: float) -> Mix:
        return Mix(tuple((float(weight) * mine, part) for mine, part in self.parts))

    def __repr__(self) -> str:
        shown = [(weight, f"({part!r})" if isinstance(part, Chain) else repr(part)) for weight, part in self.parts]
        return " + ".join(text if weight == 1 else f"{weight:g} * {text}" for weight, text in shown)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _chained(part: Transform) -> tuple[Transform, ...]:
    return part.parts if isinstance(part, Chain) else (part,)


def _mixed(part: Transform) -> tuple[tuple[float, Transform], ...]:
    return part.parts if isinstance(part, Mix) else ((1.0, part),)


class Ratio(Part):
    """How the log-ratio of the current to the proximal policy is formed: (now, batch) -> [B,T], zero where masked."""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        raise NotImplementedError("a Ratio is a part of its own: write __call__(now, batch) -> [B,T]")


class Aggregate(Part):
    """An unreduced loss, [B,T] or [B], and the batch's mask -> scalar. Independent of padding and of micro-batches."""

    def __call__(self, loss: torch.Tensor, batch: Trajectories) -> torch.Tensor:
        raise NotImplementedError("an Aggregate is a part of its own: write __call__(loss, batch) -> scalar")


class Term(Part):
    """One term of the objective: an unreduced loss [B,T], or [B] for whole-row losses. Lower is better.

    It always sees the whole minibatch, however small the micro-batches are. `0.5 * A + B` adds terms;
    `A.over(TokenMean())` gives a term an aggregate of its own.
    """

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        raise NotImplementedError("a Term is a part of its own: write __call__(now, batch) -> [B,T]")

    def metrics(self, now: Evaluation, batch: Trajectories) -> Mapping[str, torch.Tensor]:
        """Figures worth logging about this term; called without gradient."""
        return {}

    def __add__(self, other: Term | Objective) -> Objective:
        return Objective((Weighted(1.0, self),)) + other

    def __rmul__(self, weight: float) -> Objective:
        return Objective((Weighted(float(weight), self),))

    def over(self, aggregate: Aggregate) -> Objective:
        """This term, reduced by its own aggregate instead of the method's."""
        return Objective((Weighted(1.0, self, aggregate),))


@dataclass(frozen=True)
class Weighted(Part):
    """A term, its weight, and its aggregate (None: the method's)."""

    weight: float
    term: Term
    aggregate: Aggregate | None = None

    def __repr__(self) -> str:
        text = repr(self.term) if self.weight == 1 else f"{self.weight:g} * {self.term!r}"
        return text if self.aggregate is None else f"{text}.over({self.aggregate!r})"


@dataclass(frozen=True)
class Objective(Part):
    """A weighted sum of terms."""

    terms: tuple[Weighted, ...]

    def __add__(self, other: Objective | Term) -> Objective:
        more = other.terms if isinstance(other, Objective) else (Weighted(1.0, other),)
        return Objective(self.terms + more)

    def __rmul__(self, weight: float) -> Objective:
        return Objective(tuple(Weighted(weight * w.weight, w.term, w.aggregate) for w in self.terms))

    def __call__(self, now: Evaluation, batch: Trajectories, default: Aggregate) -> Loss:
        value = now.logp.new_zeros(())
        metrics: dict[str, torch.Tensor] = {}
        for w in self.terms:
            value = value + w.weight * (w.aggregate or default)(w.term(now, batch), batch)
            with torch.no_grad():
                metrics.update(w.term.metrics(now, batch))
        return Loss(value, metrics)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms)) or "Objective()"


class Rollout(Part):
    """How trajectories come about: (run, prompts) -> one batch for each learner."""

    world: ClassVar[str] = "language"

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        raise NotImplementedError("a Rollout is a part of its own: write __call__(run, prompts) -> {learner: batch}")


class Update(Part):
    """How the parameters move on one batch of credited trajectories."""

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> Stats:
        raise NotImplementedError("an Update is a part of its own: write __call__(learner, batch, objective, run)")

    def check(self, objective: Part, aggregate: Aggregate) -> None:
        """Before a run: raises UserError when it cannot serve this objective. By default any will do."""


@dataclass(frozen=True)
class Curriculum(Part):
    """What is tried next and what is kept. The loop samples further prompts for what was not kept, `refill` times."""

    refill: int = 0

    def select(self, run: Run) -> Prompts:
        """The prompts of the next round."""
        return run.next_prompts()

    def keep(self, batch: Trajectories) -> torch.Tensor:
        """[B] bool: which rows of a scored batch are trained on. A group is kept whole or not at all."""
        return torch.ones(len(batch), dtype=torch.bool, device=batch.group.device)


class Memory(Part, Generic[S]):
    """Whatever outlives a step: a critic, a probe, a tracker, a replay buffer, a controller.

    The state is a tree of mappings, sequences, tensors and plain numbers or strings (or a `Learner`); the run keeps it
    under the memory's name and checkpoints save it. After a resume its tensors lie on the CPU and its tuples are lists.
    """

    def init(self, run: Run) -> S:
        """The state before the first step."""
        raise NotImplementedError("a Memory is a part of its own: write init(run) -> state")

    def recall(self, state: S, batch: Trajectories) -> Trajectories:
        """Before the advantage: adds what is remembered (columns, baselines) to the batch."""
        return batch

    def observe(self, state: S, batch: Trajectories, stats: Stats) -> S:
        """After the update: the next state."""
        return state


@dataclass(frozen=True)
class Scorer(Part):
    """Another opinion on the same actions: whose weights, and under which context.

    Attributes:
        weights: "initial" (the policy at the start of the run), "live", "average" (exponential, see `decay`),
            "snapshot" (refreshed by an update), or the path of a model.
        context: "trained" or "sampled" (the two prompts of a row), or the name of an object column that holds
            another prompt's token ids.
        decay: of the average, when `weights` is "average".
    """

    weights: str = "initial"
    context: str = "trained"
    decay: float = 0.99


class Blend(Part):
    """A hook in the sampler: the log-distributions [N,V] of the policy and of other scorers -> the one sampled from,
    under which `behaviour_logp` is recorded. `scorers` names the others; "policy" is always there."""

    scorers: ClassVar[tuple[str, ...]] = ()

    def active(self, run: Run) -> bool:
        """Whether this step's rollouts are blended at all; otherwise the policy is sampled and no scorer is asked."""
        return True

    def __call__(self, logp: Mapping[str, torch.Tensor], run: Run) -> torch.Tensor:
        raise NotImplementedError("a Blend is a part of its own: write __call__(logp, run) -> [N,V]")

"""A method is a value: a frozen record of parts, one for each stage of the line, and its row in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from melior.parts import (
    Aggregate,
    AsIs,
    Curriculum,
    Memory,
    Needs,
    Objective,
    Part,
    Rollout,
    Scorer,
    Term,
    Transform,
    Update,
    Weighted,
)


@dataclass(frozen=True)
class Method(Part):
    """The line as a record: rollout, reward, teacher, advantage, objective, update, curriculum.

    Attributes:
        name: what it is called.
        rollout, reward, teacher, advantage, objective, aggregate, update, curriculum: the stages, in this order.
        memory: name -> what outlives a step.
        scorers: further named opinions besides "policy", "proximal" and "reference".
        others: further learners, each with a record of its own; a rollout returns one batch for each.
        pins: settings that belong to the method and win over the user's defaults (two-grpo pins n = 2).
    """

    name: str
    advantage: Transform
    objective: Objective | Term
    aggregate: Aggregate
    update: Update
    rollout: Rollout
    reward: Transform
    teacher: Transform = AsIs()
    curriculum: Curriculum = Curriculum()
    memory: Mapping[str, Memory[Any]] = field(default_factory=dict)
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    others: Mapping[str, Method] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.objective, Term):
            object.__setattr__(self, "objective", Objective((Weighted(1.0, self.objective),)))

    def but(self, name: str, **changes: Any) -> Method:
        """A new method that differs from this one in the named fields."""
        return replace(self, name=name, **changes)

    @property
    def world(self) -> str:
        """Where its rollout acts: "language" or "environments"."""
        return self.rollout.world

    def of(self, learner: str) -> Method:
        """The record that trains this learner."""
        return self.others.get(learner, self)

    def batch_needs(self) -> Needs:
        """What this record's own learner must know of a batch before credit is assigned."""
        own = (self.reward, self.teacher, self.advantage, self.objective, self.aggregate, self.update)
        parts = (*own, self.curriculum, *self.memory.values())
        return frozenset(need for part in parts for need in part.needs() if need.on == "batch")


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    url: str = ""

    def __str__(self) -> str:
        where = f", arXiv {self.arxiv}" if self.arxiv else (f", {self.url}" if self.url else "")
        return f"{self.authors} {self.year}, “{self.title}”{where}"


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue, whatever its frame: the record, the paper, the evidence, and words for a newcomer.

    Attributes:
        record: a `Method`, `ActorCritic`, `Solver`, `Estimator`, `Adapter`, `Analysis` or another part.
        paper: where it comes from.
        track: the family of the catalogue.
        evidence: what was read (code, paper text), or that it is reconstructed from the abstract.
        problem, move, formula: what was wrong before, what the method does about it, and how that is written.
        use_when, beware: when to choose it and when not, and known pitfalls.
        settings: the paper's own settings, adopted by `--paper-settings`.
        tuned: environment -> (values for fields of the record and of the settings, where they come from), adopted by
            `--tuned`.
        also: other things that bear the same name.
        alias: the catalogue name, when it is not the record's own (dialects such as "trl:grpo").
    """

    record: Any
    paper: Paper
    track: str
    evidence: str
    problem: str = ""
    move: str = ""
    formula: str = ""
    use_when: str = ""
    beware: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, tuple[Mapping[str, Any], str]] = field(default_factory=dict)
    also: str = ""
    alias: str = ""

    @property
    def name(self) -> str:
        """The name under which the catalogue files it."""
        return self.alias or self.record.name

    @property
    def frame(self) -> str:
        """The kind of record: "Method", "ActorCritic", "Solver", ..."""
        for kind in type(self.record).__mro__:
            if kind.__module__ in ("melior.method", "melior.frames"):
                return kind.__name__
        return "Part"

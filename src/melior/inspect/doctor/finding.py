"""What the doctor says, and what a check is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from melior.inspect.logs.log import RunLog

# "critical": the run cannot learn like this. "warning": it learns worse than it could, or not what was meant.
# "note": looks odd and is healthy. "unknown": there is too little to tell by.
Severity = Literal["critical", "warning", "note", "unknown"]
Sure = Literal["certain", "likely", "possible"]
ILL: tuple[Severity, ...] = ("critical", "warning")


@dataclass(frozen=True)
class Evidence:
    """One observation: in words, over which steps (first, last), and the numbers behind the words."""

    says: str
    steps: tuple[int, int]
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """The picture that shows it: names of figures (docs/metrics.md), and the first and last step."""

    series: tuple[str, ...]
    steps: tuple[int, int]


@dataclass(frozen=True)
class Finding:
    """Something that the doctor found.

    Attributes:
        name: of the check, such as "entropy-collapse".
        severity: "critical", "warning", "note" or "unknown".
        sure: "certain", "likely" or "possible"; see `sureness`.
        says: what it is, in plain words.
        evidence: what it was seen by.
        plot: what to look at.
        try_: what may help; names of methods, parts and fields of the catalogue stand in backticks.
    """

    name: str
    severity: Severity
    sure: Sure
    says: str
    evidence: tuple[Evidence, ...]
    plot: Plot
    try_: tuple[str, ...]

    @property
    def ill(self) -> bool:
        """Whether it counts as an illness."""
        return self.severity in ILL

    def as_dict(self) -> dict[str, Any]:
        """As plain data for JSON; numbers that JSON has no word for become None."""
        evidence = [
            {"says": each.says, "steps": list(each.steps), "numbers": {k: _plain(v) for k, v in each.numbers.items()}}
            for each in self.evidence
        ]
        return {
            "name": self.name,
            "severity": self.severity,
            "sure": self.sure,
            "says": self.says,
            "evidence": evidence,
            "plot": {"series": list(self.plot.series), "steps": list(self.plot.steps)},
            "try": list(self.try_),
        }


class Check:
    """Base of all checks: a frozen dataclass whose fields are its thresholds and whose docstring is its definition.

    Calling it with a `RunLog` gives a `Finding` or None.

    Attributes:
        name: of what it finds.
        needs: what it looks at: figures by name, alternatives joined by "|"; "completions", or one thing that is known
            of them, such as "completions.advantage".
        explained_by: findings of which this one is but a consequence; where one of them is there, this one is not told
            as an illness of its own.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    explained_by: ClassVar[tuple[str, ...]] = ()

    def __call__(self, log: RunLog) -> Finding | None:
        raise NotImplementedError(f"{type(self).__name__} is abstract: a subclass looks at the log")

    def missing(self, log: RunLog) -> tuple[str, ...]:
        """What of `needs` the run does not have."""
        return tuple(need for need in self.needs if not any(_has(log, name) for name in need.split("|")))


def _has(log: RunLog, name: str) -> bool:
    if name == "completions":
        return bool(log.rollouts.steps)
    if name.startswith("completions."):
        last = log.rollouts.rows(log.rollouts.steps[-1]) if log.rollouts.steps else ()
        return any(getattr(row, name.partition(".")[2]) is not None for row in last)
    return any(math.isfinite(value) for value in log.metric(name))


def sureness(margin: float, support: float) -> Sure:
    """How sure a finding is.

    Args:
        margin: how many times beyond its threshold the figure is.
        support: how many times as many steps show it as the definition asks for.

    Returns:
        "certain" when both are at least 2, "likely" when one is, else "possible".
    """
    return ("possible", "likely", "certain")[int(margin >= 2) + int(support >= 2)]  # type: ignore[return-value]


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

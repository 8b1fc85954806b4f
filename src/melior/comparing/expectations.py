"""What an experiment expects, stated before it is run, and what the runs say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from melior.comparing.statistics import area, mean_over_seeds, paired_difference
from melior.intervals import Interval

AS_EXPECTED, NOT_AS_EXPECTED, NOT_SETTLED = "as expected", "not as expected", "not settled"
Figure = Literal["final", "area"]  # the last held-out score, or its mean along the curve


@dataclass(frozen=True)
class Judged:
    """What the runs say of one expectation: what was found, with its interval, and the verdict."""

    expected: str
    found: str
    verdict: str


@runtime_checkable
class Expectation(Protocol):
    """A prediction about a comparison."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it speaks of."""
        ...

    def says(self) -> str:
        """The prediction in words."""
        ...

    def judge(self, data: Mapping[str, Any]) -> Judged:
        """Whether it holds in what `comparison.json` holds."""
        ...


@dataclass(frozen=True)
class Better:
    """A method's score is above another's: settled when the 95 % interval of the paired difference excludes 0."""

    method: str
    than: str
    by: Figure = "final"

    @property
    def methods(self) -> tuple[str, ...]:
        """Both."""
        return self.method, self.than

    def says(self) -> str:
        """The prediction in words."""
        return f"{self.method} > {self.than} ({self.by})"

    def judge(self, data: Mapping[str, Any]) -> Judged:
        """By the mean difference over the seeds that both have."""
        interval = _difference(data, self.method, self.than, self.by)
        _, low, high = interval
        verdict = AS_EXPECTED if low > 0 else NOT_AS_EXPECTED if high < 0 else NOT_SETTLED
        return Judged(self.says(), f"{self.method} - {self.than} {_text(interval, signed=True)}", verdict)


@dataclass(frozen=True)
class Within:
    """A method's score is no further than `margin` from another's: settled when the interval lies within or without."""

    method: str
    of: str
    margin: float
    by: Figure = "final"

    @property
    def methods(self) -> tuple[str, ...]:
        """Both."""
        return self.method, self.of

    def says(self) -> str:
        """The prediction in words."""
        return f"{self.method} within {self.margin:g} of {self.of} ({self.by})"

    def judge(self, data: Mapping[str, Any]) -> Judged:
        """By the mean difference over the seeds that both have."""
        interval = _difference(data, self.method, self.of, self.by)
        _, low, high = interval
        inside = -self.margin <= low and high <= self.margin
        outside = low > self.margin or high < -self.margin
        verdict = AS_EXPECTED if inside else NOT_AS_EXPECTED if outside else NOT_SETTLED
        return Judged(self.says(), f"{self.method} - {self.of} {_text(interval, signed=True)}", verdict)


@dataclass(frozen=True)
class Reaches:
    """A method's mean score is at least this: settled when its 95 % interval lies on one side."""

    method: str
    score: float
    by: Figure = "final"

    @property
    def methods(self) -> tuple[str, ...]:
        """The one."""
        return (self.method,)

    def says(self) -> str:
        """The prediction in words."""
        return f"{self.method} ≥ {self.score:g} ({self.by})"

    def judge(self, data: Mapping[str, Any]) -> Judged:
        """By the mean over seeds."""
        interval = mean_over_seeds(list(_scores(data, self.method, self.by).values()))
        _, low, high = interval
        verdict = AS_EXPECTED if low >= self.score else NOT_AS_EXPECTED if high < self.score else NOT_SETTLED
        return Judged(self.says(), f"{self.method} {_text(interval)}", verdict)


def overall(verdicts: list[str]) -> str:
    """One word for several: what failed decides, then what is open."""
    for word in (NOT_AS_EXPECTED, NOT_SETTLED):
        if word in verdicts:
            return word
    return AS_EXPECTED


# ---- inside


def _scores(data: Mapping[str, Any], label: str, by: Figure) -> dict[int, float]:
    """Seed -> score of the runs that finished."""
    runs = [cell for cell in data["cells"] if cell["label"] == label and cell["status"] == "finished"]
    if by == "final":
        return {run["seed"]: _number(run["final"]) for run in runs}
    column = {"step": 0, "tokens": 1, "seconds": 2}[data["axis"]]
    end = math.inf if data["end"] is None else float(data["end"])
    return {run["seed"]: area([(point[column], point[3]) for point in run["curve"]], end) for run in runs}


def _difference(data: Mapping[str, Any], left: str, right: str, by: Figure) -> Interval:
    return paired_difference(_scores(data, left, by), _scores(data, right, by))[0]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _text(interval: Interval, signed: bool = False) -> str:
    """ "+0.042 [+0.010, +0.081]"; "-" for what is not known."""
    if math.isnan(interval[0]):
        return "-"
    value, low, high = (f"{number:{'+' if signed else ''}.3f}" for number in interval)
    return value if math.isnan(interval[1]) else f"{value} [{low}, {high}]"

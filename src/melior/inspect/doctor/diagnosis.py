"""A run examined by all checks, and what comes of it as text and as data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from melior.inspect.doctor.catalogue import CHECKS
from melior.inspect.doctor.finding import Check, Finding
from melior.inspect.logs.log import RunLog

Verdict = Literal["healthy", "ill", "cannot tell"]
# Of the command. 2 and 3 are those of all commands: the user's mistake, and a failure.
EXIT_CODES: Mapping[Verdict, int] = {"healthy": 0, "ill": 1, "cannot tell": 4}
ORDER = ("critical", "warning", "unknown", "note")
WIDTH = 100


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a run.

    Attributes:
        source: where the run was read from.
        trainer: who trained it.
        steps: first and last step with figures; None without any.
        findings: the gravest first.
        consequences: findings that another one explains: name -> what explains it.
        unseen: checks that could not be made -> what the run has not got for them.
        unread: what the log holds and no reader understood.
    """

    source: str
    trainer: str
    steps: tuple[int, int] | None
    findings: tuple[Finding, ...]
    consequences: Mapping[str, str]
    unseen: Mapping[str, str]
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """ "ill" with any critical finding or warning, else "cannot tell" where there is too little, else "healthy"."""
        if any(finding.ill for finding in self.findings):
            return "ill"
        return "cannot tell" if any(finding.severity == "unknown" for finding in self.findings) else "healthy"

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 ill, 4 cannot tell."""
        return EXIT_CODES[self.verdict]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the findings."""
        return tuple(finding.name for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "source": self.source,
            "trainer": self.trainer,
            "steps": None if self.steps is None else list(self.steps),
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
            "consequences": dict(self.consequences),
            "unseen": dict(self.unseen),
            "unread": list(self.unread),
        }

    def headline(self) -> str:
        """One line: the run, its steps, the verdict."""
        steps = "no steps yet" if self.steps is None else f"steps {self.steps[0]} to {self.steps[1]}"
        ill = [finding.name for finding in self.findings if finding.ill]
        return f"{self.source} ({self.trainer}, {steps}): {self.verdict}{': ' + ', '.join(ill) if ill else ''}"

    def text(self) -> str:
        """For a terminal, readable without color."""
        parts = [self.headline(), *map(finding_text, self.findings)]
        if self.consequences:
            told = [f"{name} (explained by {cause})" for name, cause in self.consequences.items()]
            parts.append(_wrapped("also seen: " + ", ".join(told)))
        if self.unseen:
            causes: dict[str, list[str]] = {}
            for name, needs in self.unseen.items():
                causes.setdefault(needs, []).append(name)
            told = [f"{', '.join(names)} (no {needs})" for needs, names in causes.items()]
            parts.append(_wrapped("not looked at: " + "; ".join(told)))
        if self.unread:
            parts.append(_wrapped("not understood: " + ", ".join(self.unread)))
        return "\n\n".join(parts)


def examine(log: RunLog, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """Make all checks on a run. A finding that another explains is listed as its consequence."""
    found: dict[str, Finding] = {}
    explained_by: dict[str, tuple[str, ...]] = {}
    unseen: dict[str, str] = {}
    for check in checks:
        missing = check.missing(log)
        if missing:
            unseen[check.name] = ", ".join(need.replace("|", " or ") for need in missing)
            continue
        finding = check(log)
        if finding is not None:
            found[check.name], explained_by[check.name] = finding, check.explained_by
    consequences = {name: cause for name in found if (cause := _cause(name, explained_by)) != name}
    kept = [finding for name, finding in found.items() if name not in consequences]
    taken = log.steps[log.steps > 0]
    return Diagnosis(
        source=str(log.source),
        trainer=log.trainer,
        steps=(int(np.min(taken)), int(np.max(taken))) if len(taken) else None,
        findings=tuple(sorted(kept, key=lambda finding: ORDER.index(finding.severity))),
        consequences=consequences,
        unseen=unseen,
        unread=log.unread,
    )


def finding_text(finding: Finding) -> str:
    """A finding for a terminal."""
    mark = "NOTE" if finding.severity == "note" else "OPEN" if finding.severity == "unknown" else "ILL"
    grave = f"{finding.severity}, " if finding.ill else ""
    lines = [f"{mark:<5}{finding.name} ({grave}{finding.sure})", _wrapped(finding.says, "     ")]
    for evidence in finding.evidence:
        first, last = evidence.steps
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        lines.append(_wrapped(f"seen: {evidence.says} [{when}]", "     "))
    lines.append(_wrapped(f"look at: {', '.join(finding.plot.series)}", "     "))
    lines += [_wrapped(f"try: {advice.replace('`', '')}", "     ") for advice in finding.try_]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _cause(name: str, explained_by: Mapping[str, tuple[str, ...]]) -> str:
    """The finding at the end of the chain of what explains it, of those that are there; itself where nothing does."""
    nearer = next((each for each in explained_by[name] if each in explained_by), None)
    return name if nearer is None else _cause(nearer, explained_by)

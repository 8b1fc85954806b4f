"""What the doctor says of a run, made ready for its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from melior.errors import UserError
from melior.inspect.doctor import Diagnosis, Finding, examine
from melior.inspect.logs import read

Piece = tuple[str, bool]  # text, and whether it is a name from the catalogue
KINDS = {"critical": "bad", "warning": "bad", "unknown": "open", "note": "none"}
WORDS = {"healthy": "Healthy", "ill": "Ill", "cannot tell": "Cannot tell"}


@dataclass(frozen=True)
class Told:
    """One finding on the page: how it is marked, and its advice with names apart from words."""

    finding: Finding
    kind: str
    advice: Sequence[Sequence[Piece]]


@dataclass(frozen=True)
class Section:
    """The section of a page.

    Attributes:
        word, text: the verdict, and what it means.
        kind: how the page marks it.
        told: the findings.
        diagnosis: all of it.
    """

    word: str
    text: str
    kind: str
    told: Sequence[Told]
    diagnosis: Diagnosis


def section(run: Path) -> Section | None:
    """What a page says of the health of a run; None where no log can be read."""
    try:
        found = examine(read(run))
    except UserError:
        return None
    told = [Told(each, KINDS[each.severity], [_pieces(text) for text in each.try_]) for each in found.findings]
    ill = sum(finding.ill for finding in found.findings)
    text = {
        "healthy": "No check found anything wrong.",
        "ill": "One finding." if ill == 1 else f"{ill} findings, the gravest first.",
        "cannot tell": "No check found anything wrong, and there is too little to find it by.",
    }[found.verdict]
    kind = {"healthy": "good", "ill": "bad", "cannot tell": "open"}[found.verdict]
    return Section(WORDS[found.verdict], text, kind, told, found)


def _pieces(text: str) -> list[Piece]:
    """The text cut at its backticks; every other piece is a name."""
    return [(piece, bool(place % 2)) for place, piece in enumerate(text.split("`")) if piece]

"""One line on what a run achieved, no bolder than its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from melior.loops.summary import is_interval, number_text


@dataclass(frozen=True)
class Verdict:
    """A word, its sentence, and the kind by which a page marks it: good, bad, open or none."""

    word: str
    text: str
    kind: str


def verdict(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """What the held-out figures say; that nothing was learnt or that the run is not at its end comes first."""
    if not summary:
        return Verdict("Not finished", f"{len(rows)} steps so far; the run has written no summary.", "none")
    if rows and all(row.get("skipped") == 1 for row in rows):
        text = (
            f"All {len(rows)} steps were skipped: no rollout carried any credit, as when all answers to a prompt earn "
            "the same. Easier prompts, more completions of each or a finer reward would help."
        )
        return Verdict("Nothing was learnt", text, "bad")
    if summary.get("interrupted"):
        text = f"Stopped after {summary.get('steps', len(rows))} steps, before the final evaluation."
        return Verdict("Interrupted", text, "none")
    return _compared(summary.get("before") or {}, summary.get("after") or {})


def _compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Verdict:
    names = [name for name in before if is_interval(before[name]) and is_interval(after.get(name))]
    certain = [name for name in names if None not in before[name] and None not in after[name]]
    if not certain:
        return Verdict("Not measured", "There is no held-out score with an interval before and after.", "none")
    name = certain[0]
    (old, old_low, old_high), (new, new_low, new_high) = before[name], after[name]
    went = f"{name} went from {number_text(old)} to {number_text(new)}"
    if new_low > old_high:
        return Verdict("Better", f"{went}; the 95 % intervals do not overlap.", "good")
    if new_high < old_low:
        return Verdict("Worse", f"{went}; the 95 % intervals do not overlap.", "bad")
    if new == old:
        return Verdict("No change", f"{name} is {number_text(new)} before and after.", "open")
    return Verdict("Not settled", f"{went}, but the 95 % intervals overlap: measure on more prompts.", "open")

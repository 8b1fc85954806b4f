"""The two kinds of failure that a user meets, and the near-miss hint both use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MeliorError(Exception):
    """Base of every error that Melior raises on purpose; its text is one clear sentence for the user."""

    exit_code = 3


class UserError(MeliorError):
    """A mistake in the request, found before anything ran (exit code 2)."""

    exit_code = 2


class RunError(MeliorError):
    """A failure during a run: a raising reward, a non-finite loss, a full disk (exit code 3)."""

    exit_code = 3


def near(word: str, options: Iterable[str]) -> str:
    """A hint for an unknown name: `; did you mean 'x' or 'y'?`, or the options themselves when they are few."""
    known = sorted(set(options))
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(name) for name in close) + "?"
    return f"; choose from {', '.join(known)}" if 0 < len(known) <= 30 else ""

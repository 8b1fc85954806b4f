"""What a user should know although it stops nothing."""

from __future__ import annotations

import warnings


class Note(UserWarning):
    """A warning whose text is one sentence for the user; the command prints it without the place in the code."""


def note(text: str) -> None:
    """Warn the user."""
    warnings.warn(text, Note, stacklevel=3)

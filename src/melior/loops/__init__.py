"""Loops: one for each world that a record can be trained in. Each module has `SETTINGS` and `trainee`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from melior.errors import UserError

LOOPS = {
    "language": "melior.loops.language",
    "environments": "melior.loops.control",
    "actor-critic": "melior.loops.actor_critic",
    "solver": "melior.loops.solver",
}


def loop_of(record: Any) -> ModuleType:
    """The loop that trains this record: it has `SETTINGS` and `trainee(record, settings, given)`."""
    world = getattr(record, "world", None)
    if world not in LOOPS:
        name = getattr(record, "name", type(record).__name__)
        raise UserError(f"'{name}' is a record which is not trained but called, as melior.get(NAME)(...)")
    return importlib.import_module(LOOPS[world])

"""The type checker of the test suite: shapes as annotated, and whole numbers where floats are wanted (PEP 484)."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""The type checker of the test suite: shapes as annotated, and whole numbers where floats are wanted, as PEP 484 has it."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""Why a run does not learn: what its figures and completions show, and what to try.

>>> from melior.inspect import doctor, logs
>>> diagnosis = doctor.examine(logs.read("runs/grpo-20260101-120000"))
>>> print(diagnosis.text())
"""

from __future__ import annotations

from melior.inspect.doctor.catalogue import CHECKS, checks_with
from melior.inspect.doctor.diagnosis import Diagnosis, examine
from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot

__all__ = ["CHECKS", "Check", "Diagnosis", "Evidence", "Finding", "Plot", "checks_with", "examine"]

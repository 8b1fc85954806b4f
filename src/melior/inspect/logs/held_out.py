"""The held-out score of a run along its steps, whoever trained it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from melior.inspect.logs.log import RunLog

# In the order of preference; the first that a run has is its score.
SCORES = (r"eval/score", r"eval/pass@1", r"eval/mean@\d+", r"eval/reward", r"eval/return")


class HeldOut(NamedTuple):
    """A curve of held-out scores.

    Attributes:
        name: which figure it is, by our name; curves of different names are not of one kind.
        steps: [E] the steps that were evaluated.
        scores: [E] the score at each.
    """

    name: str
    steps: np.ndarray
    scores: np.ndarray


def held_out_curve(log: RunLog) -> HeldOut | None:
    """The held-out score at every step that evaluated; None for a run that has none."""
    for pattern in SCORES:
        for name in sorted(log.metrics):
            there = np.isfinite(log.metrics[name])
            if re.fullmatch(pattern, name) and there.any():
                return HeldOut(name, log.steps[there], log.metrics[name][there])
    return None

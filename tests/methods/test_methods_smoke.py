"""Every method of the catalogue that acts on text: a few real steps, put away, taken up again, the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from melior.loops.language import LanguageTrainee, build
from melior.method import Method
from melior.parts import Scorer
from melior.records.catalogue import entries
from melior.settings import LanguageSettings
from runs import put_away

TEXT = [
    name for name, entry in entries().items() if isinstance(entry.record, Method) and entry.record.world == "language"
]
SETTINGS = LanguageSettings(
    model="table",
    task="lock:P=4,L=2,V=3",
    dtype="float64",
    steps=4,
    prompts=4,
    n=8,
    max_tokens=2,
    lr=0.1,
)


def playable(method: Method) -> Method:
    """The method with stand-ins for the models it asks for, and memories that speak from the second step on."""
    absent = {name: Scorer(weights="initial") for name, scorer in method.scorers.items() if not scorer.weights}
    memory = {
        name: replace(part, bootstrap=1) if hasattr(part, "bootstrap") else part for name, part in method.memory.items()
    }
    return method.but(method.name, scorers={**method.scorers, **absent}, memory=memory)


def start(name: str) -> LanguageTrainee:
    method: Method = entries()[name].record
    run = build(playable(method), replace(SETTINGS, **method.pins))
    generator = torch.Generator().manual_seed(1)
    for scorer, record in method.scorers.items():
        if not record.weights:  # a model that the user brings knows something else than the policy
            stand_in: Any = run.scorer(scorer)
            stand_in.logits.copy_(torch.randn(stand_in.logits.shape, generator=generator))
    return LanguageTrainee(run)


def weights(trainee: LanguageTrainee) -> torch.Tensor:
    return trainee.run.learner().vector()


def finite(figures: Mapping[str, float]) -> bool:
    return all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize("name", TEXT)
def test_a_method_steps_moves_and_resumes(name: str, tmp_path: Path):
    first = start(name)
    before = weights(first).clone()
    figures = [first.advance() for _ in range(2)]
    assert all(map(finite, figures))
    assert any(0 < row["pass_rate"] < 1 for row in figures)
    assert weights(first).isfinite().all()
    assert not torch.equal(weights(first), before)

    take_up = put_away(first, tmp_path)
    expected = [first.advance() for _ in range(2)]
    second = start(name)
    take_up(second)
    assert [second.advance() for _ in range(2)] == expected
    assert torch.equal(weights(second), weights(first))
    assert second.step == 4


def test_the_methods_are_there():
    assert {"grpo", "seeupo", "poise", "trb", "ppo-lm", "dapo"} <= set(TEXT)

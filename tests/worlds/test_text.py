"""Prompts and groups of a text run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import melior
from melior.loops.iteration import gather
from melior.loops.language import build
from melior.parts import Curriculum
from melior.request import resolve_request


@dataclass(frozen=True)
class Generous(Curriculum):
    """Tries twice as many prompts as a batch holds."""

    refill: int = 2

    def select(self, run):
        return run.next_prompts(2 * run.settings.prompts)

    def keep(self, batch):
        return torch.zeros(len(batch), dtype=torch.bool)


def test_groups_of_several_rounds_never_merge_however_many_prompts_a_round_tries():
    method = melior.get("grpo").but("mine", curriculum=Generous())
    given = {"model": "table", "task": "lock", "prompts": 4, "n": 2, "max_tokens": 6}
    sampled, _ = gather(build(method, resolve_request(method, given).settings))
    _, sizes = sampled["policy"].group.unique(return_counts=True)
    assert sizes.tolist() == [2] * (3 * 8)

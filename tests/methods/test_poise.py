"""POISE as a record, and its variance against the baselines it replaces."""

from __future__ import annotations

import pytest
import torch

from melior.advantages.groups import leave_one_out_mean
from melior.memories.ridge_probe import ridge
from melior.methods.group_relative import GRPO
from melior.methods.memories import POISE


def test_it_differs_from_grpo_in_what_the_paper_changes():
    mine, theirs = POISE.record, GRPO.record
    assert mine.pins == {"n": 2}
    assert mine.rollout == theirs.rollout
    assert mine.update == theirs.update
    assert {(need.quantity, need.on) for need in mine.batch_needs()} == {("hidden", "batch"), ("entropy", "batch")}


def mean_square(baseline: str, seed: int, prompts: int = 32, arms: int = 8) -> float:
    """Mean squared advantage over steps 10 to 60 of softmax bandits, two pulls a prompt, under a baseline."""
    g = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(prompts, arms, generator=g, dtype=torch.float64)
    right = torch.randint(arms, (prompts,), generator=g)
    group, memory, squares = torch.arange(prompts).repeat_interleave(2), [], []
    for step in range(61):
        logp = logits.log_softmax(-1)
        pulled = torch.multinomial(logp.exp(), 2, replacement=True, generator=g).flatten()
        reward = (pulled == right[group]).double()
        success = logp.exp().gather(1, right[:, None]).squeeze(1)[group]
        noisy = success + 0.1 * torch.randn(2 * prompts, generator=g, dtype=torch.float64)
        entropy = -(logp.exp() * logp).sum(-1)[group]
        features = torch.stack([noisy, entropy, logp[group, pulled]], 1)
        if baseline == "none":
            advantage = reward
        elif baseline == "rloo" or not memory:
            advantage = reward - leave_one_out_mean(reward, group)
        else:
            weights, intercept = ridge(*(torch.cat(part) for part in zip(*memory[-8:], strict=True)), 0.1)
            advantage = reward - leave_one_out_mean((features @ weights + intercept).clamp(0, 1), group)
        memory.append((features, leave_one_out_mean(reward, group)))
        if step >= 10:
            squares.append(float(advantage.square().mean()))
        score = torch.nn.functional.one_hot(pulled, arms) - logp.exp()[group]
        logits += 0.3 * torch.zeros_like(logits).index_add(0, group, advantage[:, None] * score) / 2
    return sum(squares) / len(squares)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_probes_advantages_vary_least(seed):
    poise, rloo, none = (mean_square(baseline, seed) for baseline in ("probe", "rloo", "none"))
    assert poise < 0.7 * rloo < rloo < none

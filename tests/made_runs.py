"""Runs made of numbers: one that learns as it should, and the same with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from melior.inspect.logs import Rollouts, Row, RunLog

WORDS = ("so", "the", "sum", "of", "both", "is", "not", "even", "but", "we", "carry", "one", "then", "it", "must", "be")
POOL = np.random.default_rng(0).choice(WORDS, 20_000).tolist()  # words in no order, of which completions are pieces
PROMPTS, SIBLINGS = 8, 8


@dataclass
class Made:
    """A run as arrays, to be changed before it is made into a log.

    Attributes:
        metrics: [S] by name.
        held_out: step -> figures of an evaluation.
        rows: (step, its rows) -> rows, what becomes of each step's completions; None keeps none.
    """

    metrics: dict[str, np.ndarray]
    seed: int
    settings: dict[str, Any]
    held_out: dict[int, dict[str, float]] = field(default_factory=dict)
    rows: Callable[[int, list[Row]], Sequence[Row]] | None = lambda step, rows: rows

    @property
    def count(self) -> int:
        """Steps."""
        return len(self.metrics["reward"])

    @property
    def part(self) -> np.ndarray:
        """[S] from 0 to 1 along the run."""
        return np.linspace(0, 1, self.count)

    def noise(self, size: float, name: str = "") -> np.ndarray:
        """[S] normal noise of its own for each name."""
        return np.random.default_rng([self.seed, *name.encode()]).normal(0, size, self.count)

    def log(self) -> RunLog:
        """As the doctor reads it."""
        evaluated = sorted(self.held_out)
        steps = np.array(sorted({*range(1, self.count + 1), *evaluated}))
        metrics: dict[str, np.ndarray] = {}
        for name, values in self.metrics.items():
            metrics[name] = np.full(len(steps), np.nan)
            metrics[name][steps > 0] = values
        for name in dict.fromkeys(name for each in self.held_out.values() for name in each):
            metrics[name] = np.array([self.held_out.get(int(step), {}).get(name, np.nan) for step in steps])
        rollouts = Rollouts() if self.rows is None else Rollouts(range(1, self.count + 1), self._rows)
        return RunLog(Path("made"), "melior", steps, metrics, self.settings, rollouts)

    def _rows(self, step: int) -> Sequence[Row]:
        assert self.rows is not None
        return self.rows(step, completions(self.seed, step, {name: v[step - 1] for name, v in self.metrics.items()}))


def healthy(count: int = 120, seed: int = 0, begins: float = 0.2, ends: float = 0.75) -> Made:
    """A run of GRPO that learns: the pass rate rises with the noise of 64 completions, all else is as it should be."""
    rng = np.random.default_rng([seed, count])
    part = np.linspace(0, 1, count)
    level = begins + (ends - begins) / (1 + np.exp(-8 * (part - 0.4)))
    # Prompts are of different difficulty, so a step's pass rate varies more than that of a binomial.
    rate = np.array([np.mean(rng.binomial(SIBLINGS, rng.beta(4 * p, 4 * (1 - p), PROMPTS)) / SIBLINGS) for p in level])

    def drift(start: float, end: float, spread: float) -> np.ndarray:
        walk = np.cumsum(rng.normal(0, spread / 4, count))
        walk = (walk - part * walk[-1]) * min(1, 8 / np.sqrt(count))  # slow wandering, as of prompts that come and go
        return np.maximum(
            start + (end - start) * part + walk * min(1, 8 / np.sqrt(count)) + rng.normal(0, spread, count), 0
        )

    lengths = np.maximum(drift(100, 110, 5), 8)
    metrics = {
        "reward": rate, "pass_rate": rate, "reward/correct": rate, "reward_std": np.sqrt(rate * (1 - rate)),
        "mixed_share": np.clip(rng.binomial(PROMPTS, 0.75, count) / PROMPTS, 0, 1),
        "length_mean": lengths, "length_max": lengths * 2, "truncated_share": np.clip(drift(0.03, 0.03, 0.01), 0, 1),
        "entropy": drift(0.8, 0.5, 0.03), "kl_reference": drift(0.005, 0.15, 0.01) + 0.002,
        "kl_proximal": np.zeros(count),
        "kl_sampler": rng.uniform(0, 1e-4, count), "ess": rng.uniform(0.95, 1, count),
        "gap_mean": rng.uniform(0.005, 0.02, count), "gap_outside": rng.uniform(0, 0.02, count),
        "clip_low": rng.uniform(0, 0.01, count), "clip_high": rng.uniform(0, 0.02, count),
        "grad_norm": np.exp(rng.normal(0, 0.4, count)), "update_norm": np.exp(rng.normal(-3, 0.1, count)),
        "loss": rng.normal(0.005, 0.01, count), "lr": np.full(count, 1e-5), "updates": np.ones(count),
        "rows": np.full(count, 64.0), "explained_variance": np.clip(drift(0.1, 0.5, 0.05), -1, 1),
    }  # fmt: skip
    settings = {"n": SIBLINGS, "prompts": PROMPTS, "max_tokens": 256, "lr": 1e-5, "pass_at": 1.0, "steps": count}
    made = Made(metrics, seed, settings)
    for step in range(0, count + 1, max(count // 6, 1)):
        score = float(level[max(step - 1, 0)] + rng.normal(0, 0.02))
        made.held_out[step] = evaluation(score, {4: min(0.98, score + 0.2)})
    return made


def evaluation(score: float, more: Mapping[int, float], half: float = 0.05) -> dict[str, float]:
    """Held-out figures with intervals: pass@1 and pass@k."""
    figures = {"eval/score": score}
    for k, value in {1: score, **more}.items():
        figures |= {f"eval/pass@{k}": value, f"eval/pass@{k}_low": value - half, f"eval/pass@{k}_high": value + half}
    return figures


def completions(seed: int, step: int, figures: Mapping[str, float]) -> list[Row]:
    """64 completions of 8 prompts: words in no order, lengths apart from rewards, advantages standardized by group."""
    rng = np.random.default_rng([seed, step, 7])
    rate, shape = figures["pass_rate"], (PROMPTS, SIBLINGS)
    chance = rng.beta(4 * rate + 0.01, 4 * (1 - rate) + 0.01, (PROMPTS, 1))
    passed = (rng.random(shape) < chance).astype(float)
    lengths = rng.poisson(max(figures["length_mean"], 1), shape) + 1
    begins, cut = rng.integers(0, len(POOL) - 100, shape), rng.random(shape) < figures["truncated_share"]
    rows = []
    for group, sibling in np.ndindex(shape):
        reward, length, begin = float(passed[group, sibling]), int(lengths[group, sibling]), int(begins[group, sibling])
        row = Row(
            prompt=f"prompt {step} {group}",
            text=" ".join(POOL[begin : begin + min(length, 60)]),
            reward=reward,
            components={"correct": reward},
            length=length,
            truncated=bool(cut[group, sibling]),
            group=group,
            outcome=reward,
            version=step - 1,
        )
        rows.append(row)
    return standardized(rows)


def standardized(rows: Sequence[Row]) -> list[Row]:
    """The rows, sorted by group and equally many of each, with GRPO's advantages of their rewards."""
    rewards = np.array([row.reward for row in rows], dtype=float).reshape(PROMPTS, -1)
    advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-6)
    return [replace(row, advantage=float(a)) for row, a in zip(rows, advantages.ravel(), strict=True)]

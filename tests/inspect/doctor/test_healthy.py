"""Real runs that learn: five methods by two seeds, and the doctor has nothing to say against any."""

from __future__ import annotations

from pathlib import Path

import pytest

import melior
from melior.inspect import doctor, logs

METHODS = ("grpo", "rloo", "dapo", "tempo", "ppo-lm")
SEEDS = (0, 1)
LOCK = {"model": "table", "task": "lock:P=24,L=2,V=4", "prompts": 8, "n": 16, "lr": 0.07, "max_tokens": 2}


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[tuple[str, int], Path]:
    """Run folders by method and seed."""
    root = tmp_path_factory.mktemp("healthy")
    made = {}
    for method in METHODS:
        for seed in SEEDS:
            made[method, seed] = root / f"{method}-{seed}"
            melior.train(
                method, out=made[method, seed], seed=seed, steps=30, log_to="", report=False, quiet=True, **LOCK
            )
    return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_learns_is_healthy(runs, method, seed):
    diagnosis = doctor.examine(logs.read(runs[method, seed]))
    assert diagnosis.verdict == "healthy", diagnosis.text()
    assert set(diagnosis.names) <= {"loss-near-zero"}


def test_they_did_learn(runs):
    """Silence about runs that learn nothing would be worth nothing."""
    for path in runs.values():
        reward = logs.read(path).metric("reward")
        assert reward[-5:].mean() > reward[1:6].mean() + 0.1

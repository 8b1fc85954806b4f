"""Comparisons as they stand in `comparison.json`, made of scores without running anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from melior.comparing.outcomes import Outcome, Point
from melior.comparing.result import as_dicts, pairs_of, table_of
from melior.comparing.running import FILE
from melior.comparing.statistics import cautions
from melior.storage.writing import json_text

STEPS = (0, 8, 16, 24, 32, 40)


def outcome(label: str, seed: int, scores: Sequence[float], folder: Path, **more: Any) -> Outcome:
    """A run that finished with these held-out scores."""
    curve = tuple(Point(step, 100.0 * step, float(step), s) for step, s in zip(STEPS, scores, strict=False))
    return Outcome(
        label, seed, folder / "cells" / label / f"seed-{seed}", "finished", curve=curve, steps=40, tokens=4000.0,
        seconds=12.5, step_norm=0.4 + 0.1 * len(label), rows=128.0, **more,
    )  # fmt: skip


def made_outcomes(labels: Sequence[str], folder: Path, seeds: int = 5) -> dict[str, list[Outcome]]:
    """Runs whose scores rise, those of later labels further; what is random has a fixed seed."""
    rng = random.Random(0)
    found = {}
    for k, label in enumerate(labels):
        found[label] = []
        for seed in range(seeds):
            top = 0.5 + 0.03 * k + rng.uniform(-0.06, 0.06)
            found[label].append(outcome(label, seed, [top * step / 40 for step in STEPS], folder))
    return found


def made_data(outcomes: dict[str, list[Outcome]], **more: Any) -> dict[str, Any]:
    """What `comparison.json` holds of these runs."""
    seeds = [run.seed for run in next(iter(outcomes.values()))]
    request = {
        "methods": list(outcomes), "settings": {"model": "table", "task": "lock:L=3"}, "overrides": [], "seeds": seeds,
        "steps": 40, "budget": None, "grid": {}, "cross": [], "of": [], "tune": {}, "tune_seeds": 2,
        "equal_step_norm": False, "paper_settings": False,
    }  # fmt: skip
    return {
        "melior": "0.1.0", "written": "2026-01-02T03:04:05+00:00", "command": "melior compare grpo dapo",
        "request": request, "resumable": True, "axis": "step", "end": 40.0, "sampled": "tokens", "contenders": [],
        "held_equal": ["within a seed: weights"], "not_equal": ["n: grpo 8, two-grpo 2"],
        "notes": ["'two-grpo' pins n"],
        "cautions": cautions(len(seeds), len(outcomes) - 1), "tuning": {},
        "table": as_dicts(table_of(outcomes, "step", 40.0, {})), "pairs": as_dicts(pairs_of(outcomes)),
        "cells": [run.as_dict() for runs in outcomes.values() for run in runs], **more,
    }  # fmt: skip


def write_comparison(folder: Path, data: dict[str, Any]) -> Path:
    """The folder of a comparison that holds this."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json_text(data, indent=1))
    return folder

"""Melior's own run folders."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from melior.errors import UserError
from melior.inspect.logs.log import Rollouts, Row, RunLog, by_step
from melior.records.yaml_text import load_yaml
from melior.storage.folder import CONFIG, RunFolder
from melior.storage.rollouts import read_rollouts, rollout_steps

LOOKS_FOR = f"a run folder of Melior ({CONFIG}, metrics.jsonl)"


def read(path: Path) -> RunLog | None:
    """The run of a folder that has a `config.yaml` with a record and settings; it may be going on."""
    if not (path / CONFIG).is_file():
        return None
    folder = RunFolder.view(path)
    raw = load_yaml(folder.config)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("settings"), Mapping) or "record" not in raw:
        return None
    rows = [(int(row["step"]), {k: v for k, v in row.items() if k != "step"}) for row in folder.read_metrics()]
    summary = folder.read_summary() or {}
    if summary.get("before"):
        rows.insert(0, (0, _evaluated(summary["before"])))
    if summary.get("after"):
        rows.append((int(summary.get("steps", rows[-1][0])), _evaluated(summary["after"])))
    steps, metrics = by_step(rows)
    readable = importlib.util.find_spec("pyarrow") is not None
    kept = rollout_steps(path)
    return RunLog(
        source=path,
        trainer="melior",
        steps=steps,
        metrics=metrics,
        settings={"method": _method(raw["record"]), **raw["settings"]},
        rollouts=Rollouts(kept if readable else (), lambda step: _rows(path, step)),
        unread=() if readable or not kept else ("rollouts (reading them needs pyarrow: pip install 'melior[lm]')",),
    )


def _rows(path: Path, step: int) -> list[Row]:
    try:
        return [_row(row) for row in read_rollouts(path, step)]
    except UserError:  # a run that goes on has removed them since, as `keep_rollouts` asks
        return []


def _method(record: Any) -> str:
    if isinstance(record, Mapping):
        return str(record.get("method") or record.get("name") or record.get("part") or "")
    return str(record or "")


def _evaluated(figures: Mapping[str, Any]) -> dict[str, Any]:
    """A held-out evaluation of `summary.json` by the names of `metrics.jsonl`."""
    found: dict[str, Any] = {}
    for name, figure in figures.items():
        value, *bounds = figure if isinstance(figure, list) else (figure,)
        found[f"eval/{name}"] = value
        found |= {f"eval/{name}_{end}": bound for end, bound in zip(("low", "high"), bounds, strict=False)}
    return found


def _row(row: Mapping[str, Any]) -> Row:
    advantage, versions = row.get("advantage"), row.get("version")
    if isinstance(advantage, list):
        mask = row.get("mask") or [True] * len(advantage)
        trained = [a for a, m in zip(advantage, mask, strict=False) if m and a is not None]
        advantage = float(np.mean(trained)) if trained else 0.0
    components = {
        key[7:]: float(value) for key, value in row.items() if key.startswith("reward/") and value is not None
    }
    text, prompt = row.get("text"), row.get("prompt_text") or row.get("row_prompt")
    truncated, length, group = row.get("truncated"), row.get("length"), row.get("group")
    return Row(
        prompt=None if prompt is None else str(prompt),
        text=None if text is None else str(text),
        reward=row.get("reward"),
        components=components,
        advantage=advantage,
        length=None if length is None else int(length),
        truncated=None if truncated is None else bool(truncated),
        group=None if group is None else int(group),
        outcome=row.get("outcome"),
        version=min(versions) if isinstance(versions, list) and versions else None,
    )

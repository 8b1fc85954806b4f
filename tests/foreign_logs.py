"""Small logs in the formats of other trainers, as their code writes them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def trl_entry(step: int, reward: float, functions: Mapping[str, float], zero_std: float = 0.25) -> dict[str, Any]:
    """One entry of log_history, with the names that GRPOTrainer of TRL 1.16.0 logs on one CPU, `beta` not 0."""
    return {
        "clip_ratio/high_max": 0.3,
        "clip_ratio/high_mean": 0.02,
        "clip_ratio/low_mean": 0.01,
        "clip_ratio/low_min": 0.0,
        "clip_ratio/region_mean": 0.03,
        "completions/clipped_ratio": 0.125,
        "completions/max_length": 64.0,
        "completions/max_terminated_length": 60.0,
        "completions/mean_length": 40.0,
        "completions/mean_terminated_length": 36.5,
        "completions/min_length": 3.0,
        "completions/min_terminated_length": 3.0,
        "entropy": 0.5 - 0.01 * step,
        "epoch": 0.25 * step,
        "frac_reward_zero_std": zero_std,
        "grad_norm": 1.5,
        "kl": 0.001 * step,
        "learning_rate": 1e-5,
        "loss": 0.01,
        "num_tokens": 192.0 * step,
        "reward": reward,
        "reward_std": 0.4,
        **{f"rewards/{name}/{what}": value for name, mean in functions.items() for what, value in _both(mean)},
        "step": step,
        "step_time": 2.5,
    }


def trl_evaluation(step: int, reward: float) -> dict[str, Any]:
    """The entry that an evaluation adds."""
    return {
        "epoch": 0.25 * step,
        "eval_completions/clipped_ratio": 0.5,
        "eval_completions/mean_length": 30.0,
        "eval_loss": 0.0,
        "eval_reward": reward,
        "eval_rewards/correct/mean": reward,
        "eval_rewards/correct/std": 0.1,
        "eval_runtime": 0.2359,
        "step": step,
    }


def trl_state(file: Path, history: Sequence[Mapping[str, Any]], max_steps: int = 8) -> Path:
    """A trainer_state.json as the Transformers trainer writes it (undefined numbers as NaN)."""
    state = {
        "best_global_step": None,
        "epoch": 1.0,
        "eval_steps": 2,
        "global_step": max((entry.get("step", 0) for entry in history), default=0),
        "is_world_process_zero": True,
        "log_history": list(history),
        "logging_steps": 1,
        "max_steps": max_steps,
        "stateful_callbacks": {"TrainerControl": {"args": {"should_log": False}, "attributes": {}}},
        "train_batch_size": 8,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    return file


def trl_completions(folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """completions/completions_STEP.parquet: step, prompt, completion, one column a reward, extras, advantage."""
    import pyarrow
    import pyarrow.parquet

    file = folder / "completions" / f"completions_{step:05d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"step": step, **row} for row in rows]), file)
    return file


def events(folder: Path, rows: Sequence[tuple[int, Mapping[str, float]]], texts: Mapping[str, str] = {}) -> Path:
    """TensorBoard events by torch's writer, which both trainers use; returns the file."""
    with SummaryWriter(str(folder)) as writer:
        for name, text in texts.items():
            writer.add_text(name, text, 0)
        for step, figures in rows:
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
    return max(folder.glob("events.out.tfevents.*"))


def verl_figures(step: int, **more: float) -> dict[str, Any]:
    """One step of verl's PPO trainer with a critic, an excerpt: names of core_algos, metric_utils, rollout_corr."""
    return {
        "training/global_step": step,
        "training/epoch": 0,
        "critic/score/mean": 0.5,
        "critic/score/max": 1.0,
        "critic/rewards/mean": 0.45,
        "critic/advantages/mean": 0.0,
        "critic/vf_loss": 0.2,
        "critic/vf_explained_var": 0.3,
        "actor/entropy": 0.4,
        "actor/pg_loss": 0.01,
        "actor/kl_loss": 0.002,
        "actor/kl_coef": 0.001,
        "actor/pg_clipfrac": 0.03,
        "actor/pg_clipfrac_lower": 0.01,
        "actor/ppo_kl": -0.0001,
        "actor/grad_norm": 0.8,
        "actor/lr": 1e-6,
        "response_length/mean": 120.0,
        "response_length/max": 256.0,
        "response_length/clip_ratio": 0.25,
        "rollout_corr/kl": 0.001,
        "rollout_corr/k3_kl": 0.0012,
        "rollout_corr/chi2_token": 0.25,
        "training/rollout_probs_diff_mean": 0.004,
        "training/rollout_probs_diff_max": 0.2,
        "perf/time_per_step": 30.0,
        "perf/throughput": 1000.0,
        **{f"timing_s/{name}": 1.0 for name in ("gen", "reward", "adv", "update_actor")},
        **more,
    }


def verl_validation(mean: float, data: str = "openai/gsm8k") -> dict[str, float]:
    """What a validation of four samples a prompt adds."""
    return {
        f"val-core/{data}/acc/mean@4": mean,
        f"val-core/{data}/acc/best@4/mean": mean + 0.2,
        f"val-aux/{data}/acc/best@2/mean": mean + 0.1,
        f"val-aux/{data}/acc/std@4": 0.1,
        f"val-aux/{data}/acc/worst@4/mean": mean - 0.1,
        f"val-aux/{data}/format/mean@4": 0.9,
        "val-aux/num_turns/mean": 2.0,
    }


def verl_metrics(file: Path, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Path:
    """The file logger's lines; it writes undefined numbers as null."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"step": step, "data": {k: None if _undefined(v) else v for k, v in row.items()}} for step, row in rows]
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return file


def verl_dump(folder: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """`rollout_data_dir`/STEP.jsonl; each row has input, output, score and what the reward function returned."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{step}.jsonl"
    lines = [{"gts": None, "step": step, **row} for row in rows]
    file.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n")
    return file


def wandb_chart(file: Path, run: str, figure: str, points: Sequence[tuple[int, float]], axis: str = "Step") -> Path:
    """The CSV that "Export panel data" of a line plot downloads: all fields quoted, empty where a line has no point."""
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines, quoting=csv.QUOTE_ALL)
        name = f"{run} - {figure}"
        step = [f"{run} - _step{end}" for end in ("", "__MIN", "__MAX")]
        writer.writerow([axis, *step, name, f"{name}__MIN", f"{name}__MAX"])
        for place, value in points:
            writer.writerow([place, *[place] * 3, *([""] * 3 if math.isnan(value) else [value] * 3)])
    return file


def _both(mean: float) -> list[tuple[str, float]]:
    return [("mean", mean), ("std", 0.5)]


def _undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

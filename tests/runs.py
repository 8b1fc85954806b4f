"""Small runs that the tests of whole runs share."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import melior
from melior.storage.tree import load_tree, save_tree

# A run of a fifth of a second.
LOCK: dict[str, Any] = {
    "model": "table", "task": "lock:P=4,L=2,V=3", "prompts": 4, "n": 8, "lr": 0.1, "max_tokens": 2,
    "steps": 4, "log_to": "", "quiet": True,
}  # fmt: skip
# The bundled language model: a third of a second a step.
TEXT: dict[str, Any] = {
    "prompts": 2, "n": 4, "max_tokens": 24, "eval_prompts": 4, "lr": 1e-3, "steps": 3, "log_to": "", "quiet": True,
}  # fmt: skip
LOCK_OPTIONS = ["--model", "table", "--task", "lock:P=4,L=2,V=3", "--prompts", "4", "--lr", "0.1", "--max-tokens", "2"]
TEXT_OPTIONS = ["--prompts", "2", "-n", "4", "--max-tokens", "24", "--eval-prompts", "4", "--steps", "1"]


def lock_run(out: Path, method: Any = "rloo", **more: Any) -> melior.api.Result:
    """The tabular policy on a lock of four prompts."""
    return melior.train(method, out=out, **{**LOCK, **more})


def text_run(out: Path, method: Any = "rloo", **more: Any) -> melior.api.Result:
    """The bundled model on its arithmetic, or on the data that is given."""
    return melior.train(method, out=out, **{**TEXT, **more})


def sums(count: int = 8) -> list[dict[str, Any]]:
    """Rows in the bundled model's own form."""
    return [{"prompt": f"{10 + i}+{20 + i}=", "answer": str(30 + 2 * i), "pair": i} for i in range(count)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def every_row(path: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def rows(path: Path) -> list[dict[str, Any]]:
    """What of them is reproducible."""
    return [
        {key: value for key, value in row.items() if not key.endswith(("_seconds", "_per_second"))}
        for row in every_row(path)
    ]


def put_away(trainee: Any, folder: Path) -> Callable[[Any], None]:
    """Save what is trained and the rest of its state; what is returned takes both up again in another trainee."""
    trainee.save(folder / "model")
    save_tree(folder / "state", trainee.state())
    return lambda other: other.load(folder / "model", load_tree(folder / "state"))


def in_a_process(work: Callable[[], None]) -> int:
    """Run this in a process of its own, which may die of it; its exit code, -9 for a SIGKILL."""

    def child() -> None:
        # A forked process has lost torch's thread pool, which transformers' loading threads would ask for.
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode

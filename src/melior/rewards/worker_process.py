"""The inside of a worker process: load reward functions, then score what comes in as lines of JSON, until they end."""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, BinaryIO

from melior.errors import UserError
from melior.rewards.calling import RewardBatch, RewardFault, invoke
from melior.rewards.functions import RewardFunction, resolve
from melior.rewards.verifiers import math_equivalent

# Bounds for verifiers that parse what a model wrote: address space, open files, size of written files.
_MEMORY_BYTES = 4 << 30
_OPEN_FILES = 64
_PR_SET_PDEATHSIG = 1


def main(parent: int) -> None:
    """Answer `{"ready": true}` or `{"error": …}` first, then each job with its scores or its fault."""
    _die_with(parent)
    jobs, replies = _private_pipes()
    setup = json.loads(jobs.readline())
    try:
        functions = _load(setup)
    except UserError as error:
        _send(replies, {"error": str(error)})
        return
    if setup["limited"]:
        _limit_resources()
    _send(replies, {"ready": True})
    for line in jobs:
        job = json.loads(line)
        if setup["limited"]:
            _limit_cpu(job["limit_s"])
        _send(replies, _answer(functions[job["function"]], job))


def _answer(function: RewardFunction, job: Mapping[str, Any]) -> dict[str, Any]:
    state = job["trainer_state"]
    batch = RewardBatch(
        job["rows"],
        job["prompts"],
        job["completions"],
        job["completion_ids"],
        None if state is None else SimpleNamespace(**state),
    )
    try:
        scores = invoke(function, batch)
    except RewardFault as fault:
        exhausted = isinstance(fault.__cause__, (MemoryError, RecursionError))
        return {"fault": fault.how, "row": fault.row, "exhausted": exhausted}
    values = [None if math.isnan(value) else value for value in scores.values]
    return {"values": values, "extras": scores.extras, "columns": scores.columns}


def _load(setup: Mapping[str, Any]) -> list[RewardFunction]:
    sys.path.extend(entry for entry in setup["path"] if entry not in sys.path)
    functions = [resolve(one["spec"], name=one["name"], batch=one["batch"]) for one in setup["functions"]]
    if any(function.isolated for function in functions):
        math_equivalent("1", "1")  # imports and compiles what the first completion should not have to wait for
    return functions


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent, moved away from where a reward's `input()` and `print()` would find them."""
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return jobs, replies


def _send(replies: BinaryIO, message: Mapping[str, Any]) -> None:
    replies.write(json.dumps(message, default=repr).encode() + b"\n")
    replies.flush()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. (Elsewhere than on Linux it ends at its next read.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _limit_resources() -> None:
    import resource

    for kind, bound in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def _limit_cpu(seconds: float) -> None:
    """Processor time for one job, on top of what was used so far: ends a loop even if the parent cannot."""
    import resource

    if math.isinf(seconds):
        return

    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + seconds) + 1, hard))

"""Worker processes for reward functions: killable, one job at a time, JSON lines over pipes (nothing is pickled)."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from melior.errors import RunError
from melior.rewards import worker_start
from melior.rewards.functions import RewardFunction

# Loading the user's module, with whatever it imports, may take this long.
_STARTUP_S = 120.0
# A worker that was found dead before it got its job is replaced so many times in a row.
_REPLACEMENTS = 3


@dataclass(frozen=True)
class Reply:
    """How a job ended: scored or faulted, out of time, or with the death of its process; `content` says more."""

    status: Literal["done", "timeout", "died"]
    content: Mapping[str, Any] = field(default_factory=dict)


class WorkerPool:
    """Up to `size` processes that have loaded `functions`; they start at the first job and are replaced when killed.

    limited: with bounds on memory, processor time, open files and written files, for text that is not trusted.
    Use it from one thread at a time. The processes die with this one, however it ends.
    """

    def __init__(self, functions: Sequence[RewardFunction], size: int, limited: bool) -> None:
        self.functions = list(functions)
        self._setup = {
            "functions": [{"spec": f.spec, "name": f.name, "batch": f.batch} for f in functions],
            "path": [entry or os.getcwd() for entry in sys.path],
            "limited": limited,
        }
        self._workers = [_Worker(self._setup) for _ in range(size)]

    def run(self, jobs: Sequence[Mapping[str, Any]], limit_s: float) -> list[Reply]:
        """Do all jobs, in any order; the replies are in the order of the jobs.

        Each may take `limit_s` seconds from the moment a worker begins it; one that takes longer is killed with all
        that it started. Raises `RunError` when a worker cannot load its functions.
        """
        replies: list[Reply | None] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        workers = self._workers[: max(len(jobs), 1)]
        try:
            while any(reply is None for reply in replies):
                for worker in workers:
                    if waiting and worker.job is None:
                        if worker.ready and worker.begin(waiting[0], jobs[waiting[0]], limit_s):
                            waiting.popleft()
                        elif not worker.alive:
                            worker.start()
                for worker in _with_news([w for w in workers if w.alive and (w.job is not None or not w.ready)]):
                    job, reply = worker.job, worker.news()
                    if reply is not None and job is not None:
                        replies[job] = reply
        finally:
            # Interrupted: an answer to an old job must not be taken for one to the next.
            for worker in workers:
                if worker.job is not None:
                    worker.kill()
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        """Kill the processes. A later `run` starts new ones."""
        for worker in self._workers:
            worker.kill()


def _with_news(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until some of the workers have written, ended, or run out of time; those."""
    until = min((worker.deadline for worker in workers), default=time.monotonic())
    readable = _readable([worker.output for worker in workers], until - time.monotonic())
    now = time.monotonic()
    return [worker for worker in workers if worker.output in readable or worker.deadline <= now]


def _readable(descriptors: Sequence[int], wait_s: float) -> set[int]:
    """Those of the file descriptors that have something to read, or have ended; waits for one at most `wait_s`."""
    poller = select.poll()  # not select.select, which fails from the 1,024th open file on
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    wait_ms = None if math.isinf(wait_s) else max(0, math.ceil(wait_s * 1000))
    return {descriptor for descriptor, _ in poller.poll(wait_ms)}


class _Worker:
    """One process: not started, loading, ready, or busy with a job."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.setup = setup
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.job: int | None = None
        self.deadline = math.inf
        self._read = b""
        self._replaced = 0

    @property
    def alive(self) -> bool:
        return self.process is not None

    @property
    def output(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout.fileno()

    def start(self) -> None:
        # -P keeps the current folder out of the module path, where a user's random.py would break the start.
        command = [sys.executable, "-P", worker_start.__file__, str(os.getpid())]
        # A session of its own: Ctrl-C is for the parent, and killing the group reaches what a reward has started.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        self.ready, self.job, self._read = False, None, b""
        self.deadline = time.monotonic() + _STARTUP_S
        self._write(self.setup)

    def begin(self, index: int, job: Mapping[str, Any], limit_s: float) -> bool:
        """Hand over a job; False if the process had died meanwhile (it is then replaced, and the job given again)."""
        assert self.process is not None
        if self.process.poll() is None and self._write(job):
            self.job, self.deadline, self._replaced = index, time.monotonic() + limit_s, 0
            return True
        self.kill()
        self._replaced += 1
        if self._replaced > _REPLACEMENTS:
            raise RunError("the reward worker processes die before they begin; is this machine out of memory?")
        return False

    def news(self) -> Reply | None:
        """Take what the process wrote, or its end, or the end of its time; the reply to its job, once there is one."""
        if not _readable([self.output], 0.0):
            return self._out_of_time()
        piece = os.read(self.output, 1 << 16)
        if not piece:
            return self._ended()
        self._read += piece
        if not self._read.endswith(b"\n"):
            return None
        message, self._read = json.loads(self._read), b""
        self.deadline = math.inf
        if self.ready:
            self.job = None
            return Reply("done", message)
        if "error" in message:
            self.kill()
            raise RunError(f"a reward worker process could not start: {message['error']}")
        self.ready = True
        return None

    def kill(self) -> None:
        """Kill the process and everything that it started. Does nothing if there is none."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # all gone already
            self.process.poll()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process, self.ready, self.job, self.deadline = None, False, None, math.inf

    def _out_of_time(self) -> Reply:
        loading = not self.ready
        self.kill()
        if loading:
            raise RunError(f"a reward worker process took more than {_STARTUP_S:g} s to load its functions")
        return Reply("timeout")

    def _ended(self) -> Reply:
        assert self.process is not None
        code = self.process.wait()
        loading = not self.ready
        self.kill()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if loading:
            raise RunError(f"a reward worker process ended with {how} while it loaded its functions")
        if code == -signal.SIGXCPU:
            return Reply("timeout")
        return Reply("died", {"how": how})

    def _write(self, message: Mapping[str, Any]) -> bool:
        assert self.process is not None and self.process.stdin is not None
        left = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self.process.stdin.fileno(), left) :]
        except BrokenPipeError:
            return False
        return True

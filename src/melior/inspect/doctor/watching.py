"""A run followed while it goes on: what is found is told when it is first seen, and when it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from melior.inspect.doctor.catalogue import CHECKS
from melior.inspect.doctor.diagnosis import Diagnosis, examine, finding_text
from melior.inspect.doctor.finding import Check
from melior.inspect.logs import read
from melior.storage.lock import is_held
from melior.storage.metrics import NAME


def watch(
    run: Path,
    tell: Callable[[Diagnosis, Diagnosis | None], None],
    checks: Iterable[Check] = CHECKS,
    every: float = 5.0,
    wait: Callable[[float], None] = time.sleep,
) -> Diagnosis:
    """Examine a run again whenever its figures have changed, until it ends or Ctrl-C.

    A run folder of Melior has ended when no process holds it; other trainers' logs are followed until Ctrl-C.

    Args:
        run: as for `logs.read`.
        tell: called with a diagnosis and the one before it (None at first), whenever what is found has changed.
        checks: to be made.
        every: seconds between looks.
        wait: how to wait so long.

    Returns:
        The last diagnosis.
    """
    checks, last, shown, seen = tuple(checks), None, None, None
    try:
        while True:
            going = _goes_on(run)  # asked before reading, so that the last look misses nothing
            stamp = _stamp(run)
            if stamp != seen or last is None:
                last, seen = examine(read(run), checks), stamp
                if shown is None or _differs(last, shown):
                    tell(last, shown)
                    shown = last
            if not going:
                return last
            wait(every)
    except KeyboardInterrupt:
        if last is None:
            raise
        return last


def changes(now: Diagnosis, before: Diagnosis | None) -> str:
    """What is new in a diagnosis, as text: the verdict, findings first seen, and those that are gone."""
    if before is None:
        return now.text()
    new = [finding_text(finding) for finding in now.findings if finding.name not in before.names]
    gone = [name for name in before.names if name not in now.names]
    return "\n\n".join([now.headline(), *new, *([f"no longer seen: {', '.join(gone)}"] if gone else [])])


def _differs(now: Diagnosis, before: Diagnosis) -> bool:
    return now.verdict != before.verdict or set(now.names) != set(before.names)


def _goes_on(run: Path) -> bool:
    """Whether more is to come; a log without a lock of ours cannot say that it has ended."""
    ours = (run / "config.yaml").is_file()
    return is_held(run) if ours else True


def _stamp(run: Path) -> tuple[float, int]:
    """Changes whenever the log grows."""
    files = [run / NAME] if (run / NAME).is_file() else sorted(run.rglob("*")) if run.is_dir() else [run]
    stats = [file.stat() for file in files if file.is_file()]
    return max((stat.st_mtime for stat in stats), default=0.0), sum(stat.st_size for stat in stats)

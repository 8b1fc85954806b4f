"""Which sums a run on reasoning-gym's chain_sum learned: completions that were right, by the number of terms.

    python benchmarks/right_by_terms.py RUN…

Reads the rollouts of steps 1 to 5 and of the last ten.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

from melior.storage.rollouts import read_rollouts, rollout_steps


def main() -> None:
    """Prints a line a run and stretch of steps."""
    for run in map(Path, sys.argv[1:]):
        steps = rollout_steps(run)
        for stretch in (steps[:5], steps[-10:]):
            right: dict[int, list[float]] = defaultdict(list)
            for row in (row for step in stretch for row in read_rollouts(run, step)):
                right[len(re.findall(r"\d+", row["row_prompt"]))].append(row["outcome"])
            shares = ", ".join(f"{terms} terms {sum(hits) / len(hits):.2f}" for terms, hits in sorted(right.items()))
            print(f"{run} steps {stretch[0]} to {stretch[-1]}: {shares}")


if __name__ == "__main__":
    main()

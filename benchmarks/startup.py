"""How long the command takes to answer, and how much an installation weighs.

    python benchmarks/startup.py

Prints the median wall-clock time of some runs of each quick command, and the size of site-packages with and without
torch. Run it on a quiet machine, with the interpreter of the environment that Melior is installed in.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

COMMANDS = ("--help", "methods", "show tempo", "diff grpo dapo", "train --help")
RUNS = 7


def main() -> None:
    """Measure and print."""
    melior = Path(sys.executable).parent / "melior"
    for command in COMMANDS:
        seconds = statistics.median(once([str(melior), *command.split()]) for _ in range(RUNS))
        print(f"melior {command:<16} {seconds:.2f} s")
    packages = Path(sysconfig.get_paths()["purelib"])
    torch = sum(size(packages / name) for name in ("torch", "torchgen", "functorch")) / 1e6
    whole = size(packages) / 1e6
    print(f"site-packages {whole:,.0f} MB, of which torch {torch:,.0f} MB, the rest {whole - torch:,.0f} MB")


def once(command: list[str]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def size(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0


if __name__ == "__main__":
    main()

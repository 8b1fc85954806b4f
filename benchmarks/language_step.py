"""One step of GRPO on a language model beside TRL's: time, memory, and the share of the machine that is reached.

    python3 -m venv .venv-trl && .venv-trl/bin/pip install -c constraints.txt torch trl==1.16.0
    python benchmarks/language_step.py --trl-python .venv-trl/bin/python

Both sides take the same model, precision, prompts, group size, completion length (nothing ends a completion early),
objective (`trl:grpo`), optimizer and number of threads. They step in turn, only one of them computing at a time, so
that whatever else the machine does falls on both. Prints medians and ratios; "share" is the arithmetic that a step
needs at least (each prompt encoded once a group, nothing computed twice) over the time it took, as a share of the rate
of a large matrix product in the same precision, measured in between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).parent
PARTS = ("sampling", "learning", "whole")
STORY = (
    "{name} keeps {a} boxes of apples in the cellar and {b} boxes in the shed behind the house. Every box holds {c} "
    "apples. On Sunday {name} gives {d} apples to the neighbours and bakes a cake with six of them. How many apples "
    "are left at the end of the day? Think step by step and finish with the number.\nAnswer:"
)
NAMES = ("Ada", "Ben", "Eva", "Jan", "Kim", "Leo", "Mia", "Tom")


class Worker:
    """One side in a process of its own."""

    def __init__(self, python: str, script: str, config: dict[str, Any], log: TextIO) -> None:
        command = [python, str(HERE / script), json.dumps(config)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.facts = self._read()

    def ask(self, command: str) -> dict[str, Any]:
        """Its answer to a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with code {self.process.wait()}; its last words are in the log")
        return json.loads(line)


def prompts_of(model: str, count: int) -> list[str]:
    """Texts of about one length: two-digit sums for the bundled model, short word problems for others."""
    if model == "bundled":
        return [f"{11 + i}+{88 - i}=" for i in range(count)]
    numbers = [{"a": 3 + i % 5, "b": 2 + i % 7, "c": 12 + i, "d": 9 + i} for i in range(count)]
    return [STORY.format(name=NAMES[i % len(NAMES)], **value) for i, value in enumerate(numbers)]


def arithmetic(facts: dict[str, Any], figures: dict[str, Any], n: int) -> dict[str, float]:
    """Operations that a step needs at least, attention's own left out."""
    prompt, tokens, groups = sum(figures["prompt"]), figures["tokens"], len(figures["prompt"])
    inner = tokens - groups * n  # the last token of a completion is read by nobody
    forward = 2.0 * (facts["layers"] * (prompt + inner) + facts["head"] * tokens)
    return {"sampling": forward, "learning": 3 * forward, "whole": 4 * forward}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one step (and the steps before it) a side, in turn."""
    config = configuration(options)
    sides = {"melior": (sys.executable, "language_step_melior.py")}
    if options.trl_python:
        sides = {"trl": (options.trl_python, "language_step_trl.py"), **sides}
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    rates: list[float] = []
    live: dict[str, Worker] = {}
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, Path(options.log).open("w") as log:
        for _ in range(options.rounds):
            for name, (python, script) in sides.items():
                if name not in live:
                    live[name] = Worker(python, script, {**config, "scratch": scratch}, log)
                    for _ in range(options.warmup):
                        live[name].ask("step")
                figures[name].append(live[name].ask("step"))
                print(name, {part: round(figures[name][-1][part], 3) for part in PARTS}, file=sys.stderr, flush=True)
                if name == "melior":
                    rates.append(live[name].ask("rate")["rate"])
                    facts = live[name].facts
                if options.fresh:
                    live.pop(name).close()
        for worker in live.values():
            worker.close()
    return {"settings": {**vars(options), "model": Path(options.model).name}, "facts": facts, "rates": rates, **figures}


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """What both sides are told."""
    from melior.policies.gguf import converted
    from melior.tasks import bundled_model

    path = bundled_model() if options.model == "bundled" else Path(options.model)
    return {
        "model": str(converted(path) if path.suffix == ".gguf" else path),
        "method": options.method,
        "prompts": prompts_of(options.model, options.prompts),
        "n": options.n,
        "tokens": options.tokens,
        "dtype": options.dtype,
        "threads": options.threads,
        "trl_rows": options.trl_rows,
        "melior_rows": options.melior_rows,
    }


def summary(found: dict[str, Any], n: int) -> dict[str, Any]:
    """Medians, ratios TRL / Melior, and shares of the measured rate."""
    rate, table = statistics.median(found["rates"]), {}
    for name in [name for name in ("trl", "melior") if name in found]:
        runs = found[name]
        need = arithmetic(found["facts"], runs[-1], n)
        times = {part: statistics.median(run[part] for run in runs) for part in PARTS}
        share = {f"{part} share": need[part] / times[part] / rate for part in PARTS}
        table[name] = {**times, "peak GB": max(run["peak"] for run in runs) / 1e9, **share}
        table[name]["tokens"], table[name]["prompt"] = runs[-1]["tokens"], statistics.mean(runs[-1]["prompt"])
    if "trl" in table:
        table["ratio"] = {key: table["trl"][key] / table["melior"][key] for key in (*PARTS, "peak GB")}
    return {"rate": rate, **table}


def show(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The figures as lines of text."""
    print(
        f"{Path(options.model).name}, {options.dtype}: {options.prompts} prompts x {options.n} x {options.tokens} "
        f"tokens, prompts of {result['melior']['prompt']:.0f}, {options.threads} threads, "
        f"matrix products {result['rate'] / 1e9:.0f} GFLOP/s"
    )
    for name in [name for name in ("trl", "melior") if name in result]:
        row = result[name]
        cells = "  ".join(f"{part} {row[part]:8.3f} s ({row[f'{part} share']:4.0%})" for part in PARTS)
        print(f"{name:<8}{cells}  peak {row['peak GB']:.2f} GB")
    if "ratio" in result:
        cells = "  ".join(f"{part} {result['ratio'][part]:8.2f}         " for part in PARTS)
        print(f"{'ratio':<8}{cells}  peak {result['ratio']['peak GB']:.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default="", help="interpreter of TRL's environment; without it only Melior")
    parser.add_argument("--model", default="bundled", help='"bundled", a model folder or a GGUF file')
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--method", default="trl:grpo", help="the catalogue's record that Melior runs")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--n", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each completion")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="measured steps a side")
    parser.add_argument("--warmup", type=int, default=1, help="steps of a process before its first measured one")
    parser.add_argument("--fresh", action="store_true", help="end a side's process after its turn, to free its memory")
    parser.add_argument("--trl-rows", type=int, default=0, help="rows that TRL takes at once; 0: all")
    parser.add_argument("--melior-rows", type=int, default=0, help="rows that Melior takes at once; 0: its own choice")
    parser.add_argument("--log", default="/dev/null", help="where the sides' other output goes")
    parser.add_argument("--json", default="", help="also write everything measured to this file")
    options = parser.parse_args()
    found = measure(options)
    result = summary(found, options.n)
    show(options, result)
    if options.json:
        Path(options.json).write_text(json.dumps({**found, "summary": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()

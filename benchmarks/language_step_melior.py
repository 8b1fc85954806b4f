"""The Melior side of language_step.py: one process that makes a step whenever it is told to.

Reads a JSON configuration from its command line and commands from its input, one a line ("rate", "step", anything else
ends it), and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import torch

from melior.loops.given import Given
from melior.loops.iteration import iterate
from melior.loops.language import build
from melior.records.catalogue import get
from melior.run import Run
from melior.settings import LanguageSettings


def vowels(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Share of vowels: a reward in which siblings differ."""
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in completions]


def rate(dtype: str, side: int = 1024, tries: int = 7) -> float:
    """Operations a second of a matrix product in this type."""
    a, b = (torch.randn(side, side, dtype=getattr(torch, dtype)) for _ in range(2))
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        torch.mm(a, b.t())  # the layout of a linear layer
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds)


def weights(network: Any) -> dict[str, int]:
    """Multiplications of a token in the layers and in the head."""
    embeddings = {id(network.get_input_embeddings().weight), id(network.get_output_embeddings().weight)}
    layers = sum(p.numel() for p in network.parameters() if p.dim() == 2 and id(p) not in embeddings)
    return {"layers": layers, "head": network.get_output_embeddings().weight.numel()}


def make(config: dict[str, Any]) -> Run:
    """A prepared run of TRL's reading of GRPO whose completions all have full length."""
    settings = LanguageSettings(
        model=config["model"],
        chat="never",
        prompts=len(config["prompts"]),
        n=config["n"],
        max_tokens=config["tokens"],
        dtype=config["dtype"],
        lr=1e-6,
        steps=10**6,
        seed=0,
        device="cpu",
        rows_per_micro=config["melior_rows"],
    )
    rows = [{"prompt": text} for text in config["prompts"]]
    run = build(get(config["method"]), settings, Given(data=rows, eval_data=rows, reward=[vowels]))
    run.learner().policy.stop_ids = ()  # type: ignore[attr-defined]
    return run


def main() -> None:
    """Serve commands."""
    config = json.loads(sys.argv[1])
    torch.set_num_threads(config["threads"])
    run = make(config)
    sampling = [0.0]
    sample = run.world.sample

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return sample(*args, **kwargs)
        finally:
            sampling[0] += time.perf_counter() - start

    run.world.sample = timed  # type: ignore[method-assign]
    print(json.dumps(weights(run.learner().policy.network)), flush=True)  # type: ignore[attr-defined]
    for command in sys.stdin:
        if command.strip() == "rate":
            print(json.dumps({"rate": rate(config["dtype"])}), flush=True)
            continue
        if command.strip() != "step":
            break
        sampling[0], start = 0.0, time.perf_counter()
        iterate(run)
        whole = time.perf_counter() - start
        batch = run.batches["policy"]
        print(
            json.dumps(
                {
                    "sampling": sampling[0],
                    "learning": whole - sampling[0],
                    "whole": whole,
                    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    "tokens": int(batch.length.sum()),
                    "prompt": [len(prompt) for prompt in batch.prompt[:: config["n"]]],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

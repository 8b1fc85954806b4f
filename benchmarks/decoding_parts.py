"""What a decoded token is made of on this machine: rates of matrix products, and the draw.

    python benchmarks/decoding_parts.py [--threads 2]

Products have the shapes of a language model of width 576 with 64 rows. The draw is beside the plain one: softmax and
running sum over the whole vocabulary in float64. Medians of 9.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from melior.engines.sampler import Sampling

ROWS, WIDTH, INNER, VOCABULARY = 64, 576, 1536, 49_152


def seconds(call: Callable[[], object], times: int = 9) -> float:
    """The median time of a call."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def plain_draw(logits: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and log-probabilities from softmax and running sum over the whole vocabulary, in float64."""
    logp = logits.double().log_softmax(-1)
    token = torch.searchsorted(logp.exp().cumsum(-1), uniform[:, None], right=True).clamp(max=VOCABULARY - 1)
    return token, logp.gather(-1, token)


def main() -> None:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.randn(512, WIDTH, dtype=dtype), torch.randn(INNER, WIDTH, dtype=dtype)
        rate = 2 * 512 * WIDTH * INNER / seconds(lambda a=a, b=b: a @ b.T) / 1e9
        print(f"product of 512 rows, {str(dtype).removeprefix('torch.'):9} {rate:6.0f} GFLOP/s")
    states, weight = torch.randn(ROWS, WIDTH), torch.randn(INNER, WIDTH)
    flop = 2 * ROWS * WIDTH * INNER / 1e9
    print(f"states @ weight^T, 64 rows   {flop / seconds(lambda: states @ weight.T):6.0f} GFLOP/s")
    columns = states.T.contiguous()
    print(f"weight @ states, 64 rows     {flop / seconds(lambda: weight @ columns):6.0f} GFLOP/s")
    logits, uniform = torch.randn(ROWS, VOCABULARY) * 3, torch.rand(ROWS, dtype=torch.float64)
    plain = seconds(lambda: plain_draw(logits, uniform))
    ours = seconds(lambda: Sampling().draw({"policy": logits}, uniform))
    print(f"draw, in float64 throughout  {1e3 * plain:6.1f} ms a token")
    print(f"draw                         {1e3 * ours:6.1f} ms a token")


if __name__ == "__main__":
    main()

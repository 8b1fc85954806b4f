"""What it saves in the learning pass to encode a group's shared prompt once (the catalogue's `prefix-grouper`).

    python benchmarks/prefix_grouper.py --model SmolLM2-135M-Instruct.Q4_1.gguf

Times forward and backward pass of one group, once with its rows in one packed row and once with rows of their own, in
processes that take turns, and prints medians, peak memory and the ratio. Then trains the same model copy twice on the
same batches by GRPO, once in each layout, and prints how far the parameters have come apart and how far they moved.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from melior.learner import Learner
from melior.optimizers import make_optimizer
from melior.policies.causal_lm import CausalLM
from melior.policies.loading import load_causal_lm
from melior.policies.packing import PrefixGrouper, cost_ratios
from melior.records.catalogue import get
from melior.settings import LanguageSettings
from melior.tasks import bundled_model
from melior.trajectories import Trajectories

LAYOUTS = {"packed": PrefixGrouper(), "apart": None}


def policy_of(model: str, layout: str) -> CausalLM:
    """The model in float32 with that layout."""
    policy, _ = load_causal_lm(str(bundled_model()) if model == "bundled" else model, device="cpu")
    policy.packing = LAYOUTS[layout]
    return policy


def group_of(vocabulary: int, prompt: int, completion: int, size: int, seed: int = 0, groups: int = 1) -> Trajectories:
    """Random tokens: groups of equal prompts with different completions and advantages."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(vocabulary, (groups, prompt), generator=generator).tolist()
    rows = groups * size
    tokens = torch.randint(vocabulary, (rows, completion), generator=generator)
    return Trajectories(
        torch.ones(rows, completion, dtype=torch.bool),
        torch.arange(groups).repeat_interleave(size),
        prompt=tuple(tuple(prompts[row // size]) for row in range(rows)),
        tokens=tokens,
        advantage=torch.randn(rows, 1, generator=generator).expand(rows, completion).contiguous(),
        columns={"length": torch.full((rows,), completion)},
    )


def timed(options: argparse.Namespace, layout: str) -> dict[str, float]:
    """Seconds of forward and backward pass, the best of the rounds in this process, and its peak memory."""
    policy = policy_of(options.model, layout)
    batch = group_of(policy.vocabulary, options.prompt, options.completion, options.group)
    assert batch.advantage is not None
    seconds = []
    for _ in range(2):  # the first also finds out whether the model packs
        start = time.perf_counter()
        (policy.evaluate(batch).logp * batch.advantage).mean().backward()
        seconds.append(time.perf_counter() - start)
        for _, parameter in policy.named_parameters():
            parameter.grad = None
    return {"seconds": seconds[-1], "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def trajectory(options: argparse.Namespace, layout: str, optimizer: str, lr: float) -> tuple[torch.Tensor, float]:
    """The parameters after some GRPO steps on given batches, and how far the farthest of them moved."""
    policy = policy_of(options.train_model, layout)
    settings = LanguageSettings(optimizer=optimizer, lr=lr)  # type: ignore[arg-type]
    learner = Learner(
        policy, make_optimizer(dict(policy.named_parameters()), settings), get("grpo").aggregate, clip_grad=1.0
    )
    start = learner.vector()
    for step in range(options.steps):
        batch = group_of(policy.vocabulary, 60, 20, options.group, seed=step, groups=4)
        learner.gradient(get("trl:grpo").objective, batch)
        learner.step()
    return learner.vector(), float((learner.vector() - start).abs().max())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help='of the timing: "bundled", a model folder or a GGUF file')
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--completion", type=int, default=32, help="tokens of each completion")
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--rounds", type=int, default=3, help="processes a layout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train-model", default="bundled", help="of the GRPO steps")
    parser.add_argument("--steps", type=int, default=10, help="GRPO steps; 0 leaves them out")
    parser.add_argument("--layout", choices=tuple(LAYOUTS), help="time this layout only, and print JSON")
    options = parser.parse_args()
    if options.prompt + options.completion > 512 and options.model == "bundled":
        parser.error("the bundled model's context is 512 tokens; choose --prompt 480")
    torch.set_num_threads(options.threads)
    if options.layout:
        print(json.dumps(timed(options, options.layout)))
        return
    compare(options)
    for optimizer, lr in (("adamw", 1e-6), ("sgd", 1e-2)) if options.steps else ():
        (packed, moved), (apart, _) = (trajectory(options, layout, optimizer, lr) for layout in LAYOUTS)
        print(
            f"{options.steps} GRPO steps of {options.train_model} by {optimizer} at {lr:g}: parameters moved by up to "
            f"{moved:.1e}, and differ between the layouts by at most {float((packed - apart).abs().max()):.1e}"
        )


def compare(options: argparse.Namespace) -> None:
    """Both layouts in processes that take turns."""
    found: dict[str, list[dict[str, float]]] = {layout: [] for layout in LAYOUTS}
    for _ in range(options.rounds):
        for layout, runs in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--layout", layout]
            runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    seconds = {layout: statistics.median(run["seconds"] for run in runs) for layout, runs in found.items()}
    peak = {layout: max(run["peak"] for run in runs) for layout, runs in found.items()}
    attention, pointwise = cost_ratios(options.prompt, options.completion, options.group)
    print(
        f"prompt {options.prompt}, {options.group} completions of {options.completion}; expected cost: "
        f"attention {attention:.2f}, everything else {pointwise:.2f} of the plain layout"
    )
    for layout in LAYOUTS:
        print(f"{layout:<8}{seconds[layout]:8.2f} s   peak {peak[layout] / 1e9:.2f} GB")
    print(f"ratio   {seconds['apart'] / seconds['packed']:8.2f}     peak {peak['apart'] / peak['packed']:.2f}")


if __name__ == "__main__":
    main()

"""What a language run will take in tokens, memory and time, measured on a few completions; nothing of the run moves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from melior.loops.summary import time_text
from melior.policies.policy import TextPolicy
from melior.run import Run
from melior.trajectories import Trajectories

GIGA = 1e9
DECODED_ROWS = 32  # rows of the larger of the two decoded samples
DECODED_STEPS = 4
LEARNT_ROWS = 16  # rows of the larger of the two gradients
SOON = 0.5  # seconds under which a measurement is repeated, since a first call pays for what later ones find done


@dataclass(frozen=True)
class Pace:
    """Seconds of one thing, linear in how much of it there is: `fixed` each time, and `each` for every unit."""

    fixed: float
    each: float

    def __call__(self, times: float, units: float) -> float:
        return self.fixed * times + self.each * units


def estimate_lines(run: Run, batch: Trajectories, judged: float) -> list[str]:
    """The estimate as text.

    Args:
        run: the prepared run.
        batch: a few completions of its policy.
        judged: seconds that their rewards took.
    """
    s, policy = run.settings, run.learner().policy
    rows = s.prompts * int(run.method.pins.get("n", s.n))
    mean = float(batch.length.double().mean())
    longest = s.max_tokens if bool(batch.columns["truncated"].any()) else int(batch.length.max())
    width = max(map(len, batch.prompt)) + s.max_tokens
    micro = min(rows, s.rows_per_micro or policy.rows_at_once(width))
    forward, learning, kept = _gradient(policy, batch)
    if learning * len(batch) < SOON and micro > len(batch):  # so little that what a call costs counts most
        more = torch.arange(min(micro, LEARNT_ROWS)) % len(batch)
        forward, learning, kept = _gradient(policy, batch.rows(more))
    prefill, decode = _decoding(policy, batch, rows)  # type: ignore[arg-type]
    one_judged = judged / len(batch)

    def sampling(prompts: int, each: int) -> float:
        blocks = math.ceil(prompts * each / (8 * policy.rows_at_once(width)))
        return prefill * prompts + decode(blocks * longest, prompts * each * mean)

    epochs, scorers = getattr(run.method.update, "epochs", 1), len({id(p) for p in run.scorers.values()})
    passes = epochs * (learning + (forward if micro < rows else 0)) + scorers * forward
    times = (sampling(s.prompts, rows // s.prompts), one_judged * rows, passes * rows * len(run.learners))
    step, samples = sum(times), max(s.eval_k)
    held_out = min(s.eval_prompts, len(getattr(run.world, "held_out", ()))) or s.eval_prompts
    evaluations = 1 + bool(s.steps) + (max(s.steps - 1, 0) // s.eval_every if s.eval_every else 0)
    evaluation = sampling(held_out, samples) + one_judged * held_out * samples
    parts = ", ".join(f"{time_text(t)} {n}" for t, n in zip(times, ("sampling", "rewards", "learning"), strict=True))
    return [
        f"estimate: about {rows * mean:,.0f} completion tokens a step ({rows * s.max_tokens:,} at most), "
        f"{rows * mean * s.steps:,.0f} in all",
        _memory_line(run, kept * width * micro, micro),
        f"estimate: {time_text(step)} a step ({parts}); {time_text(s.steps * step + evaluations * evaluation)} for "
        f"{s.steps} steps and {evaluations} evaluation{'s' * (evaluations > 1)} of {time_text(evaluation)}",
        f"these are estimates, from {len(batch)} completions and one gradient on this machine; longer completions and "
        "prompts that are tried again take more",
    ]


def _memory_line(run: Run, activations: float, micro: int) -> str:
    policies = [*(learner.policy for learner in run.learners.values()), *run.scorers.values()]
    weights = _bytes(tensor for policy in policies for tensor in _tensors(policy))
    trained = _bytes(p for learner in run.learners.values() for p in learner.parameters())
    states = {"adamw": 2, "sgd": 0}[run.settings.optimizer]
    total = weights + trained * (1 + states) + activations
    models = len({id(policy) for policy in policies})
    return (
        f"estimate: {size_text(total)} of memory besides the program itself: {size_text(weights)} weights of {models} "
        f"model{'s' * (models > 1)}, {size_text(trained * (1 + states))} gradient and optimizer, "
        f"{size_text(activations)} activations of {micro} rows at once"
    )


def size_text(size: float) -> str:
    """Bytes in short: 3.27 MB, 12.5 GB."""
    return f"{size / GIGA:.3g} GB" if size >= 0.0995 * GIGA else f"{size / 1e6:.3g} MB"


def _decoding(policy: TextPolicy, batch: Trajectories, rows: int) -> tuple[float, Pace]:
    """(seconds to read a prompt, pace of decoding: each time for a step of all rows, each for a token)."""
    prompt = batch.prompt[0]
    few, many = 1, max(2, min(rows, DECODED_ROWS))
    room = max(1, min(DECODED_STEPS, policy.context - len(prompt) - 1))
    with torch.no_grad():
        read, slow = _walk(policy, prompt, few, room)
        _, fast = _walk(policy, prompt, many, room)
    each = max(0.0, (fast - slow) / (many - few))
    return read, Pace(max(0.0, slow - each * few), each)


def _walk(policy: TextPolicy, prompt: tuple[int, ...], rows: int, steps: int) -> tuple[float, float]:
    """(seconds to read the prompt, seconds of a step) with this many siblings."""
    began = time.perf_counter()
    decoder = policy.decoder([prompt], rows)
    token = decoder.start().argmax(-1).cpu()
    read, began = time.perf_counter() - began, time.perf_counter()
    for _ in range(steps):
        token = decoder.step(token).argmax(-1).cpu()  # which waits for the device
    return read, (time.perf_counter() - began) / steps


def _gradient(policy: Any, batch: Trajectories) -> tuple[float, float, float]:
    """(seconds of scoring a row, seconds of learning from it, bytes kept for the backward pass for each position).

    The gradient is handed back and dropped: nothing is accumulated, and no parameter moves.
    """
    parameters = [p for _, p in policy.named_parameters()]
    owned = {tensor.untyped_storage().data_ptr() for tensor in _tensors(policy)}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def learn() -> None:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            value = policy.evaluate(batch).logp[batch.mask].sum()
            torch.autograd.grad(value, parameters, allow_unused=True)

    def score() -> None:
        with torch.no_grad():
            policy.evaluate(batch)

    learning = _seconds(learn)
    positions = len(batch) * (max(map(len, batch.prompt)) + batch.mask.shape[1])
    return _seconds(score) / len(batch), learning / len(batch), sum(kept.values()) / positions


def _seconds(call: Callable[[], None]) -> float:
    for _ in range(2):
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        if took > SOON:
            break
    return took


def _tensors(policy: Any) -> Iterable[torch.Tensor]:
    """Everything that a policy holds: its own weights, and the network under an adapter."""
    network = getattr(policy, "network", None)
    return [*policy.state().values(), *(network.parameters() if network is not None else ())]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The memory of tensors, that which several share counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

"""Look before you spend: one prompt, one completion, its mask, its rewards, the sizes and an estimate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from melior.loops.estimate import estimate_lines
from melior.policies.policy import TextPolicy
from melior.prompts import Prompt
from melior.run import Run
from melior.trajectories import Trajectories


def language_preview(run: Run, short: bool) -> str:
    """What a language run is about to do; nothing of the run moves.

    `short` leaves out the sampled completion and the estimate, which cost some seconds on a large model.
    """
    position = run.world.state()
    prompts = run.next_prompts(2)
    run.world.load_state(position)
    policy: TextPolicy = run.learner().policy  # type: ignore[assignment]
    lines = [
        f"{run.method.name}: {_sizes(run)}",
        f"prompt ({len(prompts[0].ids)} tokens): {_prompt_text(prompts[0], policy)}",
    ]
    if short:
        return "\n".join(lines)
    batch = run.sample(prompts, 2)
    began = time.perf_counter()
    batch = run.world.judge(run, batch)
    judged = time.perf_counter() - began
    lines += [f"its ids: {_ids(prompts[0].ids)}", *_sample_lines(batch, policy), _reference_line(run, batch)]
    run.world.load_state(position)  # the next sample is the step's first again
    lines += [f"note: {note}" for note in run.notes]
    if run.world.sampler.elsewhere:  # type: ignore[attr-defined]
        lines.append("note: the estimate takes sampling to be done by this process")
    lines += estimate_lines(run, batch, judged)
    return "\n".join(line for line in lines if line)


def example_text(run: Run, batch: Trajectories) -> str:
    """The first completion of a batch that was judged, with its prompt, its mask and the rewards; nothing moves."""
    policy: TextPolicy = run.learner().policy  # type: ignore[assignment]
    position = run.world.state()
    prompt = _prompt_text(batch.objects["source"][0], policy)
    lines = [f"held-out prompt: {prompt}", *_sample_lines(batch, policy)]
    # A function of the user's may cost money or count its calls: only `melior check` asks it about the reference too.
    functions = run.world.rewards.functions  # type: ignore[attr-defined]
    if not run.settings.reward or all(function.style == "verifier" for function in functions):
        lines.append(_reference_line(run, batch))
    run.world.load_state(position)
    return "\n".join(line for line in lines if line)


def _sizes(run: Run) -> str:
    s = run.settings
    parameters = sum(p.numel() for p in run.learner().parameters())
    return (
        f"{s.steps} steps of {s.prompts} prompts x {run.method.pins.get('n', s.n)} completions of at most "
        f"{s.max_tokens} tokens; {parameters:,} trained parameters, {s.optimizer} at {s.lr:g}, "
        f"temperature {s.temperature:g}, {s.dtype} on {run.learner().policy.device}, seed {s.seed}"
    )


def _sample_lines(batch: Trajectories, policy: TextPolicy) -> list[str]:
    """A completion, token by token, with its mask drawn below: ^ is trained, . is not."""
    assert batch.tokens is not None
    length = int(batch.length[0])
    pieces = [_visible(_piece(policy, token)) for token in batch.tokens[0, :length].tolist()][:60]
    marks = [
        ("^" if trained else ".") * len(piece) for piece, trained in zip(pieces, batch.mask[0].tolist(), strict=False)
    ]
    ending = "cut off at the limit" if bool(batch.columns["truncated"][0]) else "ended by itself"
    rewards = ", ".join(f"{name} {float(value[0]):g}" for name, value in batch.components.items())
    more = " …" if length > len(pieces) else ""
    return [
        f"sample ({length} tokens, {ending}): {'|'.join(pieces)}{more}",
        f"trained tokens (^):{' ' * max(0, len(f'sample ({length} tokens, {ending}): ') - 19)}{'|'.join(marks)}",
        f"rewards on it: {rewards}",
    ]


def _reference_line(run: Run, batch: Trajectories) -> str:
    """The rewards of the row's own reference answer, as a completion."""
    source = batch.objects["source"][0]
    answer = source.row.get("answer")
    if not isinstance(answer, str):
        return ""
    whole = replace(source, prefill="")  # a reference is a whole answer, not the rest of a prefilled one
    one = batch.rows([0]).with_(components={}, outcome=None, objects=_first(batch, text=(answer,), source=(whole,)))
    judged = run.world.judge(run, one.column(length=torch.zeros_like(batch.length[:1])))
    rewards = ", ".join(f"{name} {float(value[0]):g}" for name, value in judged.components.items())
    return f"rewards on the reference answer {_shown(answer)}: {rewards}"


def _first(batch: Trajectories, **changes: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return {**{name: values[:1] for name, values in batch.objects.items()}, **changes}


def _prompt_text(prompt: Prompt, policy: TextPolicy) -> str:
    """The prompt as the policy reads it, its special tokens included."""
    tokenizer = getattr(policy, "tokenizer", None)
    return _shown(prompt.text if tokenizer is None else tokenizer.decode(list(prompt.ids), skip_special_tokens=False))


def _piece(policy: TextPolicy, token: int) -> str:
    """A token as text; a special one by the name that the tokenizer gives it."""
    text = policy.decode([token])
    if not text and hasattr(policy, "tokenizer"):
        text = policy.tokenizer.convert_ids_to_tokens(token)
    return text or f"<{token}>"


def _visible(text: str) -> str:
    return text.replace("\n", "\\n")


def _shown(text: Any, most: int = 400) -> str:
    plain = str(text)
    return repr(plain if len(plain) <= most else plain[: most // 2] + " … " + plain[-most // 2 :])[1:-1]


def _ids(ids: Sequence[int], most: int = 24) -> str:
    return " ".join(map(str, ids[:most])) + (f" … ({len(ids)} in all)" if len(ids) > most else "")

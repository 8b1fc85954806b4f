"""The batched sampler: completions of prompts by any text policy, with the log-probabilities they were drawn with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float, Int

from melior.engines.draw import inverse_cdf, truncate
from melior.errors import RunError, UserError
from melior.parts import Blend
from melior.policies.policy import Decoder, TextPolicy

if TYPE_CHECKING:
    from melior.run import Run

Ending = Literal["end", "string", "limit"]
ENDINGS: tuple[Ending, ...] = ("end", "string", "limit")
END, STRING, LIMIT = range(3)

# A row that is only decoded keeps keys and values; one that is learned from keeps every activation, about ten times as
# much (`rows_at_once` speaks of those).
DECODED_PER_LEARNED = 8
# Float64 numbers of one intermediate of the draw: 32 MB.
DRAW_ELEMENTS = 2**22


@dataclass(frozen=True, eq=False)
class Sampled:
    """B = prompts * n completions, the n siblings of a prompt together, on the CPU.

    Attributes:
        tokens: [B,T] token ids exactly as drawn, zeros past the end of a row.
        logp: [B,T] log-probability of each token under the distribution it was drawn from (float64 for a float64
            policy, otherwise float32), zeros past the end.
        length: [B] tokens of each completion; an end-of-sequence token counts.
        truncated: [B] True where the limit ended the completion and not the policy.
        stopped_by: for each row "end" (an end-of-sequence token), "string" (a stop string) or "limit".
    """

    tokens: Int[torch.Tensor, "B T"]
    logp: Float[torch.Tensor, "B T"]
    length: Int[torch.Tensor, "B"]
    truncated: Bool[torch.Tensor, "B"]
    stopped_by: tuple[Ending, ...]


@dataclass(frozen=True, eq=False)
class Sampling:
    """The distribution that is drawn from: temperature, then the blend, then top-k, then top-p.

    `greedy` takes the likeliest token; its recorded log-probability is that under the distribution above.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False
    blend: Blend | None = None
    run: Run | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(
                f"temperature is {self.temperature}, but must be above 0; top_k=1 takes the likeliest tokens"
            )
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise UserError(f"top_p={self.top_p}, top_k={self.top_k}: top_p lies in (0, 1], top_k is 0 (off) or more")

    def draw(
        self, logits: Mapping[str, Float[torch.Tensor, "N V"]], uniform: Float[torch.Tensor, "N"]
    ) -> tuple[Int[torch.Tensor, "N"], Float[torch.Tensor, "N"]]:
        """[N] tokens and their [N] log-probabilities, from each policy's raw logits."""
        n, v = logits["policy"].shape
        rows = max(1, DRAW_ELEMENTS // v)
        parts = [
            self._draw({name: value[at : at + rows] for name, value in logits.items()}, uniform[at : at + rows])
            for at in range(0, n, rows)
        ]
        return torch.cat([token for token, _ in parts]), torch.cat([logp for _, logp in parts])

    def _draw(self, logits: Mapping[str, torch.Tensor], uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.blend is None and self.top_p >= 1 and self.top_k == 0:
            logp = scaled(logits["policy"], self.temperature)
        else:
            logp = self._shaped(logits)
        top = logp.amax(-1, keepdim=True)
        if not bool(torch.isfinite(top).all()):
            raise RunError("the policy's logits are not finite while sampling; its weights have diverged")
        # The largest is subtracted so that nothing overflows; the sum of the weights is all of the normalization.
        weights = (logp - top).exp_()
        token, total = inverse_cdf(weights, uniform.to(weights.device))
        if self.greedy:
            token = logp.argmax(-1)
        return token, (weights.gather(-1, token[:, None]).squeeze(-1) / total).log()

    def _shaped(self, logits: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The log-distribution (float64) after the blend and the truncation."""
        logp = {name: scaled(value, self.temperature).double().log_softmax(-1) for name, value in logits.items()}
        mixed = logp["policy"]
        if self.blend is not None:
            mixed = self._blended(self.blend(logp, self.run), mixed)  # type: ignore[arg-type]
        return truncate(mixed, self.top_p, self.top_k)

    def _blended(self, result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if result.shape != like.shape:
            raise RunError(f"{self.blend!r} returned shape {tuple(result.shape)} instead of {tuple(like.shape)}")
        return result.to(like).log_softmax(-1)


def scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """The logits over the temperature in float32 or better, on the CPU where their device has no float64."""
    here = logits.cpu() if logits.device.type == "mps" else logits
    exact = here if here.dtype == torch.float64 else here.float()
    return exact if temperature == 1 else exact / temperature


@torch.no_grad()
def sample(
    policy: TextPolicy,
    prompts: Sequence[tuple[int, ...]],
    n: int,
    noise: Float[torch.Tensor, "B T"],
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    stop_strings: Sequence[str] = (),
    blend: Blend | None = None,
    others: Mapping[str, TextPolicy] | None = None,
    run: Run | None = None,
    greedy: bool = False,
    limits: Sequence[int] | None = None,
) -> Sampled:
    """n completions of each prompt, at most `noise.shape[1]` tokens long and never past the policy's context.

    Args:
        noise: [len(prompts) * n, max_tokens] uniform numbers; row b, position t decides token t of completion b.
        stop_strings: end a completion after the token that completes one of them; the tokens stay as drawn.
        blend: mixes the policy with the policies in `others` (those it names), which read the same tokens.
        run: handed to the blend.
        greedy: take the likeliest token instead of drawing.
        limits: for each prompt, the most tokens of its completions, where `noise` allows more.

    A large batch is decoded in blocks of prompts. In float64 the tokens do not depend on the blocks.
    """
    if noise.shape[0] != len(prompts) * n:
        raise ValueError(f"noise has {noise.shape[0]} rows for {len(prompts)} prompts with {n} completions each")
    sampling = Sampling(temperature, top_p, top_k, greedy, blend, run)
    walkers: dict[str, TextPolicy] = {"policy": policy}
    for name in blend.scorers if blend is not None else ():
        if name not in (others or {}):
            raise UserError(f"{blend!r} reads the scorer '{name}', which this run does not have")
        walkers[name] = others[name]  # type: ignore[index]
        if walkers[name].vocabulary != policy.vocabulary:
            raise UserError(f"the scorer '{name}' has another vocabulary than the policy, so {blend!r} cannot mix them")
    most = torch.tensor(token_limits(policy, prompts, noise.shape[1], limits)).repeat_interleave(n)
    ends, strings = stop_conditions(policy, stop_strings)
    out = _Completions.empty(len(prompts) * n, noise.shape[1])
    for block, siblings in _blocks(policy, prompts, n, noise.shape[1]):
        rows = torch.tensor([p * n + s for p in block for s in siblings])
        decoders = {name: w.decoder([prompts[p] for p in block], len(siblings)) for name, w in walkers.items()}
        _decode(policy, decoders, sampling, noise, rows, most, ends, strings, out)
    return out.sampled()


@dataclass(eq=False)
class _Completions:
    """What has been drawn so far, on the CPU, for all rows."""

    tokens: torch.Tensor
    logp: torch.Tensor
    length: torch.Tensor
    ending: torch.Tensor
    exact: bool = False

    @classmethod
    def empty(cls, rows: int, width: int) -> _Completions:
        tokens = torch.zeros(rows, width, dtype=torch.long)
        return cls(
            tokens, torch.zeros(rows, width, dtype=torch.float64), tokens.new_zeros(rows), tokens.new_zeros(rows)
        )

    def sampled(self) -> Sampled:
        width = max(1, int(self.length.max())) if len(self.length) else 1
        logp = self.logp[:, :width].to(torch.float64 if self.exact else torch.float32)
        return Sampled(
            self.tokens[:, :width],
            logp,
            self.length,
            self.ending == LIMIT,
            tuple(ENDINGS[code] for code in self.ending.tolist()),
        )


def _decode(
    policy: TextPolicy,
    decoders: Mapping[str, Decoder],
    sampling: Sampling,
    noise: torch.Tensor,
    rows: torch.Tensor,
    most: torch.Tensor,
    ends: torch.Tensor,
    strings: Sequence[str],
    out: _Completions,
) -> None:
    """Walk one block to its end. `rows` are the rows of the whole batch that are still in the decoders."""
    logits = {name: decoder.start() for name, decoder in decoders.items()}
    out.exact = logits["policy"].dtype == torch.float64
    running = torch.ones(len(rows), dtype=torch.bool)
    for t in range(int(most[rows].max())):
        drawn, logp = sampling.draw(logits, noise[rows, t])
        token, now = drawn.cpu(), rows[running]
        out.tokens[now, t], out.logp[now, t], out.length[now] = token[running], logp.cpu()[running], t + 1
        ended = running & torch.isin(token, ends)
        matched = running & ~ended & _complete(policy, out, rows, running & ~ended, t, strings)
        limited = running & ~ended & ~matched & (most[rows] == t + 1)
        out.ending[rows[matched]], out.ending[rows[limited]] = STRING, LIMIT
        running = running & ~(ended | matched | limited)
        if not bool(running.any()):
            return
        # Moving the cache costs about a step of an eighth of the rows; none may walk on past its context.
        if int(running.sum()) <= 0.875 * len(rows) or bool((~running & (most[rows] <= t + 1)).any()):
            index = running.nonzero().squeeze(-1)
            rows, running = rows[index], running[index]
            drawn = drawn[index.to(drawn.device)]
            for decoder in decoders.values():
                decoder.keep(index)
        logits = {name: decoder.step(drawn) for name, decoder in decoders.items()}


def _complete(
    policy: TextPolicy, out: _Completions, rows: torch.Tensor, asked: torch.Tensor, t: int, strings: Sequence[str]
) -> torch.Tensor:
    """[N] bool: which of the asked rows hold a stop string, now that token t is there."""
    found = torch.zeros_like(asked)
    if not strings:
        return found
    # A token is at least a byte of the text, but for special ones: a generous window first, then the whole text.
    window = max(len(text.encode()) for text in strings) + 8
    for i in asked.nonzero().squeeze(-1).tolist():
        tokens = out.tokens[rows[i], : t + 1].tolist()
        tail = policy.decode(tokens[-window:])
        if any(text in tail for text in strings):
            whole = policy.decode(tokens) if t + 1 > window else tail
            found[i] = any(text in whole for text in strings)
    return found


def stop_conditions(policy: TextPolicy, strings: Sequence[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Ids that end a completion, and the stop strings that are text. A special token as stop string is an id."""
    if any(not text for text in strings):
        raise UserError("a stop string is empty; it would end every completion at once")
    ids, texts = list(policy.stop_ids), []
    for text in strings:
        tokens = policy.render(text)
        if len(tokens) == 1 and not policy.decode(tokens):
            ids.append(tokens[0])
        else:
            texts.append(text)
    return torch.tensor(ids, dtype=torch.long), tuple(texts)


def token_limits(
    policy: TextPolicy, prompts: Sequence[tuple[int, ...]], most: int, limits: Sequence[int] | None
) -> list[int]:
    """For each prompt, how many tokens its completions may have."""
    allowed = []
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {i} is empty; give it at least one token")
        if len(prompt) >= policy.context:
            raise UserError(
                f"prompt {i} has {len(prompt)} tokens, which leaves no room in the model's context of {policy.context}"
            )
        own = most if limits is None else min(most, limits[i])
        allowed.append(min(own, policy.context - len(prompt)))
        if allowed[-1] < 1:
            raise UserError(f"the limit of prompt {i} is {own} tokens; a completion has at least one")
    return allowed


def _blocks(
    policy: TextPolicy, prompts: Sequence[tuple[int, ...]], n: int, most: int
) -> Iterator[tuple[list[int], range]]:
    """Blocks of prompts (and ranges of siblings) that fit in memory; prompts of similar length share one."""
    if not prompts or not n:
        return
    order = sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
    rows = DECODED_PER_LEARNED * policy.rows_at_once(len(prompts[order[-1]]) + most)
    if n > rows:
        for p in order:
            for first in range(0, n, rows):
                yield [p], range(first, min(n, first + rows))
        return
    if len(prompts) * n <= rows:
        order = sorted(order)
    for at in range(0, len(prompts), rows // n):
        yield order[at : at + rows // n], range(n)

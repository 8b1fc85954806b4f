"""A table of logits: the smallest policy, which runs in the language loop on token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int

from melior.errors import RunError, UserError, near
from melior.parts import Evaluation, Needs
from melior.policies.chunked import other_sources
from melior.policies.policy import GivesLogits, LogitSource
from melior.trajectories import Trajectories

INDEXES = ("prompt", "position", "previous")


class Table:
    """Independent softmax distributions, one for each combination of prompt, position and previous token.

    Attributes:
        logits: [P or 1, L or 1, V+1 or 1, V]; an axis has length 1 when the table does not look at it. The last row of
            the third axis stands for "no previous token".
    """

    likelihood: Literal["exact", "surrogate", "none"] = "exact"
    stop_ids: tuple[int, ...] = ()

    def __init__(
        self,
        prompts: int,
        length: int,
        vocabulary: int,
        index: Sequence[str] = INDEXES,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        for name in index:
            if name not in INDEXES:
                raise UserError(f"a table cannot be indexed by '{name}'{near(name, INDEXES)}")
        self.index = tuple(index)
        self.vocabulary, self.context, self.temperature = vocabulary, length + 1, temperature
        sizes = {"prompt": prompts, "position": length, "previous": vocabulary + 1}
        self._shape = tuple(sizes[name] if name in index else 1 for name in INDEXES)
        self.logits = torch.zeros(*self._shape, vocabulary, dtype=dtype, requires_grad=True)
        self.values: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the table lies."""
        return self.logits.device

    def evaluate(
        self, batch: Trajectories, needs: Needs = frozenset(), others: Mapping[str, GivesLogits] | None = None
    ) -> Evaluation:
        """See `Policy.evaluate`."""
        assert batch.tokens is not None
        where, sources = self._where(batch.prompt, batch.tokens), other_sources(needs, others or {}, batch)
        logits, present = self._logits(where), batch.present
        logp = logits.log_softmax(-1).gather(-1, batch.tokens[..., None]).squeeze(-1)
        extra: dict[str, torch.Tensor] = {}
        for need in sorted(needs, key=lambda need: need.on != "policy"):
            if need.quantity in extra or need.quantity == "logp":
                continue
            with torch.set_grad_enabled(torch.is_grad_enabled() and need.on == "policy"):
                if need.head is not None:
                    theirs = {name: sources[name](0, int(present.sum())) for name in need.head.scorers}
                    own = logits[present]
                    flat = need.head(own, batch.tokens[present], theirs, own)
                    extra[need.quantity] = torch.zeros_like(logp).masked_scatter(present, flat)
                elif need.quantity == "value":
                    assert self.values is not None, "prepare() makes the value table"
                    extra["value"] = self.values[where]
                elif need.quantity == "hidden":
                    weight = batch.mask / batch.mask.sum(-1, keepdim=True).clamp(min=1)
                    extra["hidden"] = (logits.softmax(-1) * weight[..., None]).sum(1)
                else:
                    raise UserError(f"a table does not know the quantity '{need.quantity}'")
        return Evaluation(logp, extra)

    @torch.no_grad()
    def logit_source(self, batch: Trajectories) -> LogitSource:
        """See `GivesLogits`."""
        assert batch.tokens is not None
        logits = self._logits(self._where(batch.prompt, batch.tokens))[batch.present]
        return lambda first, last: logits[first:last]

    def prepare(self, needs: Needs) -> None:
        """Adds a table of values when one is needed."""
        if self.values is None and any(need.quantity == "value" for need in needs):
            self.values = torch.zeros(self._shape, dtype=self.logits.dtype, device=self.device, requires_grad=True)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tables."""
        yield "logits", self.logits
        if self.values is not None:
            yield "values", self.values

    def state(self) -> dict[str, torch.Tensor]:
        """The tables, by name."""
        return {name: p.detach() for name, p in self.named_parameters()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts tables of the same names and shapes back."""
        mine = self.state()
        if set(state) != set(mine):
            raise RunError(f"a table holds {sorted(mine)}, but the saved state holds {sorted(state)}")
        for name, value in mine.items():
            value.copy_(state[name])

    def frozen(self) -> Table:
        """A copy that does not change."""
        copy = Table(*self._sizes(), self.vocabulary, self.index, self.temperature, self.logits.dtype)
        copy.logits = self.logits.detach().clone()
        copy.values = None if self.values is None else self.values.detach().clone()
        return copy

    def save(self, folder: Path) -> None:
        """Writes `table.safetensors`."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state().items()}, folder / "table.safetensors")

    def load(self, folder: Path) -> None:
        """Takes the tables that `save` wrote."""
        from safetensors.torch import load_file

        self.load_state(load_file(folder / "table.safetensors"))

    def rows_at_once(self, width: int) -> int:
        """Rows of `width` actions whose logits take about a quarter of a gigabyte."""
        return max(1, 2**26 // (width * self.vocabulary))

    # ---- as a text policy

    def decoder(self, prompts: Sequence[tuple[int, ...]], n: int) -> TableDecoder:
        """See `TextPolicy.decoder`."""
        rows = torch.tensor([ids[0] for ids in prompts for _ in range(n)], dtype=torch.long)
        return TableDecoder(self, rows)

    def render(self, prompt: object) -> tuple[int, ...]:
        """A prompt is its number."""
        return (int(str(prompt)),)

    def decode(self, tokens: Sequence[int]) -> str:
        """Symbols as letters."""
        return "".join(chr(ord("a") + token) if token < 26 else f"<{token}>" for token in tokens)

    # ---- inside

    def _sizes(self) -> tuple[int, int]:
        return self._shape[0], self.context - 1

    def _where(self, prompts: Sequence[tuple[int, ...]], tokens: Int[torch.Tensor, "B T"]) -> tuple[torch.Tensor, ...]:
        b, t = tokens.shape
        prompt = torch.tensor([ids[0] for ids in prompts], dtype=torch.long)[:, None].expand(b, t)
        position = torch.arange(t).expand(b, t)
        previous = torch.cat([torch.full((b, 1), self.vocabulary), tokens[:, :-1]], 1)
        return self._cut((prompt, position, previous))

    def _cut(self, index: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Axes that the table does not look at are indexed by zero."""
        return tuple(
            i if size > 1 or name in self.index else torch.zeros_like(i)
            for i, size, name in zip(index, self._shape, INDEXES, strict=True)
        )

    def _logits(self, where: tuple[torch.Tensor, ...]) -> Float[torch.Tensor, "*S V"]:
        return self.logits[where] / self.temperature


class TableDecoder:
    """Walks a table through growing sequences."""

    def __init__(self, table: Table, prompts: Int[torch.Tensor, "N"]) -> None:
        self._table, self._prompts, self._position = table, prompts, 0

    def start(self) -> torch.Tensor:
        """See `Decoder.start`."""
        return self._raw(torch.full_like(self._prompts, self._table.vocabulary))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Decoder.step`."""
        self._position += 1
        return self._raw(tokens)

    def keep(self, index: torch.Tensor) -> None:
        """See `Decoder.keep`."""
        self._prompts = self._prompts[index]

    def _raw(self, previous: torch.Tensor) -> torch.Tensor:
        position = torch.full_like(self._prompts, self._position)
        where = self._table._cut((self._prompts, position, previous))
        return self._table.logits.detach()[where]

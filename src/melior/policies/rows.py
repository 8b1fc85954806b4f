"""A micro-batch of prompts and completions as one rectangle of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from melior.trajectories import Trajectories


@dataclass(frozen=True, eq=False)
class Rows:
    """B prompts and completions in P rows of L token ids: each alone, or siblings behind their one prompt.

    Padding is on the right. Causal attention never looks there, so rows that stand alone need neither a mask nor a pad
    token; siblings in one row must not see each other, which takes a mask.

    Attributes:
        ids: [P,L] token ids.
        positions: [P,L] position ids; every completion begins at its prompt's length.
        segments: [P,L] 0 on the prompt, 1, 2, ... on the completions, -1 on padding; None when rows stand alone.
        before: [M] places in the flattened [P,L] whose logits predict the M actions that exist.
        tokens: [M] those actions.
        place: [M] their places in the flattened [B,T].
        shape: (B, T).
        start: [B] place of each completion's first token in the flattened [P,L].
        lengths: [B] completion lengths.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor | None
    before: torch.Tensor
    tokens: torch.Tensor
    place: torch.Tensor
    shape: tuple[int, int]
    start: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(
        cls,
        batch: Trajectories,
        device: torch.device,
        whole: bool = False,
        plan: Sequence[Sequence[int]] | None = None,
    ) -> Rows:
        """`whole` keeps each completion's last token too, whose logits predict nothing; `plan` packs siblings."""
        assert batch.tokens is not None
        tokens, lengths = batch.tokens.cpu().numpy(), batch.length.cpu().numpy().astype(np.int64)
        before = np.array([len(prompt) for prompt in batch.prompt], dtype=np.int64)
        if len(before) and before.min() < 1:
            raise ValueError(f"row {int(before.argmin())} has an empty prompt; it needs at least one token")
        b, t = tokens.shape
        kept = lengths if whole else np.maximum(lengths - 1, 0)
        packed = [[row] for row in range(b)] if plan is None else plan
        width = max((int(before[rows[0]] + kept[rows].sum()) for rows in map(list, packed)), default=1)
        ids = np.zeros((len(packed), width), dtype=np.int64)
        positions = np.zeros_like(ids) if plan is not None else np.tile(np.arange(width), (len(packed), 1))
        segments = np.full_like(ids, -1)
        first, start = np.zeros(b, dtype=np.int64), np.zeros(b, dtype=np.int64)
        for number, rows in enumerate(packed):
            at = int(before[rows[0]])
            ids[number, :at], positions[number, :at], segments[number, :at] = batch.prompt[rows[0]], np.arange(at), 0
            for segment, row in enumerate(rows, 1):
                part = slice(at, at + int(kept[row]))
                ids[number, part], segments[number, part] = tokens[row, : kept[row]], segment
                positions[number, part] = before[row] + np.arange(kept[row])
                first[row], start[row] = number * width + before[row] - 1, number * width + at
                at = part.stop
        row_of, column = np.nonzero(np.arange(t) < lengths[:, None])
        # A first token is predicted by the prompt's last, every other by the one before it.
        predicts = np.where(column == 0, first[row_of], start[row_of] + column - 1)
        flat = torch.from_numpy(np.stack([predicts, tokens[row_of, column], row_of * t + column])).to(device)
        grid = torch.from_numpy(np.stack([ids, positions, segments])).to(device)
        sizes = torch.from_numpy(np.stack([start, lengths])).to(device)
        return cls(
            ids=grid[0],
            positions=grid[1],
            segments=None if plan is None else grid[2],
            before=flat[0],
            tokens=flat[1],
            place=flat[2],
            shape=(b, t),
            start=sizes[0],
            lengths=sizes[1],
        )

    def mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """[P,1,L,L] what each token (third axis) sees: itself and what precedes it in its prompt and completion.

        True where it sees for the dtype bool, else 0 there and the most negative number elsewhere; None when rows stand
        alone. Padding sees the prompt and earlier padding, so that no row of the attention is empty.
        """
        if self.segments is None:
            return None
        seen, mine = self.segments[:, None, None, :], self.segments[:, None, :, None]
        allowed = ((seen == 0) | (seen == mine)).tril()
        if dtype == torch.bool:
            return allowed
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
            ~allowed, torch.finfo(dtype).min
        )

    def spread(self, values: Float[torch.Tensor, "M"]) -> Float[torch.Tensor, "B T"]:
        """Values of the actions in their places, zeros elsewhere."""
        b, t = self.shape
        return values.new_zeros(b * t).index_copy(0, self.place, values).view(b, t)

    def pool(self, states: Float[torch.Tensor, "P L d"], most: int) -> Float[torch.Tensor, "B d"]:
        """The mean over each completion's last `most` tokens; zero for an empty completion. Needs `whole` rows."""
        count: Int[torch.Tensor, "B 1"] = self.lengths.clamp(max=most)[:, None]
        back = torch.arange(most, device=states.device)
        there = back < count
        at = torch.where(there, (self.start + self.lengths)[:, None] - 1 - back, 0)
        return (states.flatten(0, 1)[at] * there[..., None]).sum(1) / count.clamp(min=1)

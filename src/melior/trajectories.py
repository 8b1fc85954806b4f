"""The batch that flows along the line: rollout -> reward -> teacher -> advantage -> objective -> update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from melior.errors import UserError, near


@dataclass(frozen=True, eq=False)
class Trajectories:
    """B rows of T actions each. The last axis of every per-action tensor is the axis of the ratio.

    For a language model a row is one completion and T counts its tokens; in control a row is one environment's
    segment and T counts its steps (after `steps()` a row is a single step); for a denoising policy T is the chain.
    A batch is never changed in place: parts return a new one through `with_`, `column`, `rows`, `only`.

    Attributes:
        mask: [B,T] bool. True where the learner acted: these actions are trained on. False on padding, on text that an
            environment wrote, and on everything that a filter excludes.
        group: [B] int. Rows with equal ids are siblings (one prompt). Groups have any size and any order.
        prompt: what a row is TRAINED under, one entry a row: a tuple of token-id tuples, or an observation tensor
            [B,T,...], or a mapping of those.
        sampled_prompt: what the row was SAMPLED under; None means the same as `prompt`.
        tokens: [B,T] token ids, or actions [B,T,...]. Anything past the end of a row is padding.
        behaviour_logp: [B,T] log-probability under the distribution that was truly sampled from.
        proximal_logp: [B,T] log-probability under the policy at the start of the update; None before any step, when it
            equals the current one and the ratio is 1 by construction.
        reward: [B] the combined, shaped reward; None until the batch is scored.
        outcome: [B] the raw reward before shaping: pass rate and mixed groups are judged on it.
        step_reward: [B,T] rewards that belong to single actions (control, process rewards).
        components: name -> [B] raw reward of each function; NaN means "does not apply" and is left out of statistics.
        weights: name -> weight of that component in the combined reward (1 where a name is missing).
        scores: scorer -> quantity -> [B,T]; for instance `scores["reference"]["logp"]`.
        columns: further tensors, [B] or [B,T,...]: "length" (actions before padding), "limit" (most actions allowed),
            "truncated", "turn", "value", "returns", "terminated", the user's own numeric columns, ...
        features: further tensors that have no action axis, [B,d]: pooled hidden states and the like. Never trimmed.
        objects: further Python values, B to a column: texts, answers, the user's own columns.
        advantage: [B,T], no gradient, zero where `mask` is False.
    """

    mask: torch.Tensor
    group: torch.Tensor
    prompt: Any = None
    sampled_prompt: Any = None
    tokens: torch.Tensor | None = None
    behaviour_logp: torch.Tensor | None = None
    proximal_logp: torch.Tensor | None = None
    reward: torch.Tensor | None = None
    outcome: torch.Tensor | None = None
    step_reward: torch.Tensor | None = None
    components: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    features: Mapping[str, torch.Tensor] = field(default_factory=dict)
    objects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    advantage: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.group)

    def with_(self, **changes: Any) -> Trajectories:
        """The same batch with some attributes replaced."""
        return replace(self, **changes)

    def column(self, **new: torch.Tensor) -> Trajectories:
        """The same batch with tensor columns added or replaced."""
        return replace(self, columns={**self.columns, **new})

    def scored(self, scorer: str, **quantities: torch.Tensor) -> Trajectories:
        """The same batch with another scorer's quantities ([B,T] each) added."""
        merged = {**self.scores.get(scorer, {}), **quantities}
        return replace(self, scores={**self.scores, scorer: merged})

    def only(self, mask: torch.Tensor) -> Trajectories:
        """The same batch, trained only where `mask` [B,T] or [B,1] is True as well."""
        return replace(self, mask=self.mask & mask)

    def rows(self, index: torch.Tensor | Sequence[int]) -> Trajectories:
        """The sub-batch of these rows (integer or boolean index), every column included."""
        where = torch.as_tensor(index, device=self.group.device)
        if where.dtype == torch.bool:
            where = where.nonzero().squeeze(-1)
        elif len(where) == 0:
            where = where.long()
        return self._map(lambda value: _pick(value, where))

    def trimmed(self) -> Trajectories:
        """The same batch without the trailing positions that are padding in every row."""
        width = self.mask.shape[1]
        if "length" in self.columns:
            longest = int(self.columns["length"].max()) if len(self) else 0
        else:
            used = self.mask.any(0).nonzero()
            longest = int(used.max()) + 1 if len(used) else 0
        longest = max(longest, 1)
        if longest >= width:
            return self
        return self._map(lambda value: _trim(value, width, longest)).with_(features=self.features)

    def steps(self) -> Trajectories:
        """[B,T] -> [B*T,1]: every action its own row, for memoryless policies that shuffle steps.

        Only after credit is assigned. Per-row values, objects included, are repeated; masked-out actions are dropped.
        """
        b, t = self.mask.shape
        flat = self._map(lambda value: _flatten(value, b, t)).with_(features=_repeat(self.features, t))
        if "length" in flat.columns:
            flat = flat.column(length=torch.ones_like(flat.columns["length"]))
        return flat.rows(self.mask.reshape(-1)) if not bool(self.mask.all()) else flat

    def to(self, device: torch.device | str) -> Trajectories:
        """The same batch with every tensor on `device`."""
        return self._map(lambda value: _move(value, device))

    def require(self, column: str) -> torch.Tensor:
        """The tensor column of this name, or a sentence that says which columns there are."""
        if column not in self.columns:
            raise UserError(f"this batch has no column '{column}'{near(column, self.columns)}")
        return self.columns[column]

    @property
    def length(self) -> torch.Tensor:
        """[B] number of actions before padding: the column "length", or the last masked position."""
        if "length" in self.columns:
            return self.columns["length"]
        position = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (self.mask * position).amax(-1)

    @property
    def present(self) -> torch.Tensor:
        """[B,T] bool: True on actions, trained or not; False on padding."""
        return torch.arange(self.mask.shape[1], device=self.mask.device) < self.length[:, None]

    def _map(self, change: Any) -> Trajectories:
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})


def concatenate(batches: Sequence[Trajectories]) -> Trajectories:
    """Stack batches row by row, padding the shorter ones on the right.

    Group ids are kept as they are: batches whose groups must not merge need distinct ids. Columns, components and
    scores that only some batches have are an error, since there is nothing honest to fill in.
    """
    if len(batches) == 1:
        return batches[0]
    width = max(batch.mask.shape[1] for batch in batches)
    padded = [
        batch._map(lambda value, t=batch.mask.shape[1]: _pad(value, t, width)).with_(features=batch.features)
        for batch in batches
    ]
    return replace(
        padded[0], **{f.name: _join(f.name, [getattr(batch, f.name) for batch in padded]) for f in fields(padded[0])}
    )


def _pick(value: Any, index: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return value[index.to(value.device)]
    if isinstance(value, Mapping):
        return {key: _pick(inner, index) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(value[i] for i in index.tolist())
    return value


def _trim(value: Any, width: int, longest: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[:, :longest] if value.dim() > 1 and value.shape[1] == width else value
    if isinstance(value, Mapping):
        return {key: _trim(inner, width, longest) for key, inner in value.items()}
    return value


def _pad(value: Any, width: int, wanted: int) -> Any:
    if isinstance(value, torch.Tensor):
        if width == wanted or value.dim() < 2 or value.shape[1] != width:
            return value
        extra = value.new_zeros((value.shape[0], wanted - width, *value.shape[2:]))
        return torch.cat([value, extra], 1)
    if isinstance(value, Mapping):
        return {key: _pad(inner, width, wanted) for key, inner in value.items()}
    return value


def _flatten(value: Any, b: int, t: int) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() > 1 and value.shape[1] == t:
            return value.reshape(b * t, 1, *value.shape[2:])
        return value.repeat_interleave(t, 0)
    if isinstance(value, Mapping):
        return {key: _flatten(inner, b, t) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(item for item in value for _ in range(t))
    return value


def _repeat(features: Mapping[str, torch.Tensor], t: int) -> dict[str, torch.Tensor]:
    return {name: value.repeat_interleave(t, 0) for name, value in features.items()}


def _move(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _move(inner, device) for key, inner in value.items()}
    return value


def _join(name: str, values: list[Any]) -> Any:
    first = values[0]
    if any((value is None) != (first is None) for value in values):
        raise ValueError(f"cannot join batches: '{name}' is known for some and not for others")
    if isinstance(first, torch.Tensor):
        return torch.cat(values)
    if isinstance(first, Mapping):
        if any(set(value) != set(first) for value in values):
            every = set().union(*values)
            lacking = sorted(key for key in every if any(key not in value for value in values))
            raise ValueError(f"cannot join batches: {name} {lacking} are known for some and not for others")
        return {key: _join(f"{name}.{key}", [value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(item for value in values for item in value)
    return first

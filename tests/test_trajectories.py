"""The batch: its columns survive every cut, padding and masked actions mean nothing, groups are ids."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from melior.errors import UserError
from melior.trajectories import Trajectories, concatenate
from toys import language_batch


def tensors(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor in a batch by its path."""
    if isinstance(value, Trajectories):
        return {k: v for f in fields(value) for k, v in tensors(getattr(value, f.name), f.name).items()}
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in tensors(inner, f"{path}.{key}").items()}
    return {}


def same(a: Trajectories, b: Trajectories) -> bool:
    mine, theirs = tensors(a), tensors(b)
    return (
        set(mine) == set(theirs)
        and all(torch.equal(mine[key], theirs[key]) for key in mine)
        and (a.objects, a.prompt) == (b.objects, b.prompt)
    )


def test_a_batch_is_never_changed_in_place():
    batch = language_batch()
    before = {key: value.clone() for key, value in tensors(batch).items()}
    batch.column(extra=torch.zeros(11)).scored("teacher", logp=torch.zeros(11, 6)).only(
        torch.zeros(11, 1, dtype=torch.bool)
    )
    batch.rows([0, 1]).trimmed()
    assert "extra" not in batch.columns and "teacher" not in batch.scores
    assert all(torch.equal(before[key], value) for key, value in tensors(batch).items())


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([7, 0, 3]),
        [7, 0, 3],
        torch.arange(11) % 3 == 0,
        [i % 3 == 0 for i in range(11)],
        torch.tensor([-1]),
    ],
)
def test_rows_take_every_column_along(index):
    batch = language_batch()
    part = batch.rows(index)
    chosen = torch.arange(11)[torch.as_tensor(index)]
    assert len(part) == len(chosen)
    for key, value in tensors(batch).items():
        assert torch.equal(tensors(part)[key], value[chosen]), key
    assert part.objects["text"] == tuple(batch.objects["text"][i] for i in chosen.tolist())
    assert part.prompt == tuple(batch.prompt[i] for i in chosen.tolist())


def test_no_rows_at_all_is_a_batch():
    empty = language_batch().rows([])
    assert len(empty) == 0 and empty.prompt == () and empty.mask.shape == (0, 6)
    assert len(empty.trimmed()) == 0


def test_trimmed_cuts_the_action_axis_and_nothing_else():
    batch = language_batch()
    batch = batch.column(pair=torch.zeros(11, 6, 2), flat=torch.arange(11.0))
    cut = batch.column(length=batch.length.clamp(max=4)).trimmed()
    assert cut.mask.shape == (11, 4) and cut.scores["reference"]["logp"].shape == (11, 4)
    assert cut.columns["pair"].shape == (11, 4, 2) and cut.columns["flat"].shape == (11,)
    assert cut.features["hidden"].shape == (11, 6)  # d equals T here, and must not be cut


def test_trimmed_keeps_what_an_environment_wrote_at_the_end():
    """The column "length" counts actions that are not trained on; without it the mask decides."""
    mask = torch.tensor([[1, 1, 0, 0, 0]]).bool()
    batch = Trajectories(mask=mask, group=torch.zeros(1, dtype=torch.long))
    assert batch.trimmed().mask.shape[1] == 2
    told = batch.column(length=torch.tensor([4])).trimmed()
    assert told.mask.shape[1] == 4 and told.present.tolist() == [[True] * 4]


def test_length_and_present_without_a_length_column():
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]]).bool()
    batch = Trajectories(mask=mask, group=torch.arange(2))
    assert batch.length.tolist() == [3, 0]
    assert batch.present.tolist() == [[True, True, True, False], [False] * 4]


def test_concatenate_undoes_a_split_of_the_rows():
    batch = language_batch()
    assert same(concatenate([batch.rows(range(4)), batch.rows(range(4, 11))]), batch)


def test_concatenate_pads_the_shorter_on_the_right_and_leaves_features_alone():
    batch = language_batch()
    short = batch.column(length=batch.length.clamp(max=3)).trimmed()
    both = concatenate([short, batch])
    assert both.mask.shape == (22, 6) and not both.mask[:11, 3:].any()
    assert torch.equal(both.features["hidden"][:11], batch.features["hidden"])
    assert both.objects["text"] == batch.objects["text"] * 2


@pytest.mark.parametrize(
    "lacking",
    [
        lambda b: b.with_(advantage=None),
        lambda b: b.with_(columns={k: v for k, v in b.columns.items() if k != "user"}),
        lambda b: b.with_(scores={}),
        lambda b: b.with_(objects={}),
    ],
)
def test_concatenate_refuses_what_only_some_know(lacking):
    batch = language_batch()
    with pytest.raises(ValueError, match="known for some and not for others"):
        concatenate([batch, lacking(batch)])


def test_steps_makes_every_action_a_row_and_keeps_all_columns():
    batch = language_batch()
    flat = batch.steps()
    n = int(batch.mask.sum())
    assert len(flat) == n and flat.mask.shape == (n, 1) and bool(flat.mask.all())
    assert torch.equal(flat.tokens[:, 0], batch.tokens[batch.mask])
    assert torch.equal(flat.advantage[:, 0], batch.advantage[batch.mask])
    row = torch.arange(11)[:, None].expand(11, 6)[batch.mask]
    assert torch.equal(flat.columns["user"], batch.columns["user"][row])
    assert torch.equal(flat.features["hidden"], batch.features["hidden"][row])
    assert flat.objects["text"] == tuple(batch.objects["text"][i] for i in row.tolist())
    assert flat.prompt == tuple(batch.prompt[i] for i in row.tolist())
    assert torch.equal(flat.length, torch.ones(n, dtype=torch.long))


def test_steps_of_observations():
    observation = {"image": torch.randn(2, 3, 4, 4), "goal": torch.randn(2, 3, 2)}
    batch = Trajectories(mask=torch.ones(2, 3, dtype=torch.bool), group=torch.arange(2), prompt=observation)
    flat = batch.steps()
    assert torch.equal(flat.prompt["image"], observation["image"].reshape(6, 1, 4, 4))
    assert flat.group.tolist() == [0, 0, 0, 1, 1, 1]


def test_rows_and_trims_reach_into_observations():
    observation = {"image": torch.randn(2, 3, 4), "goal": torch.randn(2, 3)}
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    part = Trajectories(mask=mask, group=torch.arange(2), prompt=observation).rows([1]).trimmed()
    assert torch.equal(part.prompt["image"], observation["image"][1:, :1])


def test_two_contexts_a_row_are_cut_together():
    batch = language_batch().with_(sampled_prompt=tuple((100 + i,) for i in range(11)))
    part = concatenate([batch.rows([5]), batch.rows([2, 3])])
    assert part.sampled_prompt == ((105,), (102,), (103,))
    assert part.prompt == tuple(batch.prompt[i] for i in (5, 2, 3))


def test_scored_merges_quantities_of_one_scorer():
    batch = language_batch().scored("teacher", logp=torch.zeros(11, 6)).scored("teacher", entropy=torch.ones(11, 6))
    assert set(batch.scores["teacher"]) == {"logp", "entropy"} and "reference" in batch.scores


def test_a_missing_column_proposes_the_near_one():
    with pytest.raises(UserError, match="did you mean 'returns'"):
        language_batch().require("return")


def test_only_narrows_the_mask():
    batch = language_batch()
    half = batch.only(batch.columns["right"])
    assert torch.equal(half.mask, batch.mask & batch.columns["right"])
    assert not batch.only(torch.zeros(11, 1, dtype=torch.bool)).mask.any()

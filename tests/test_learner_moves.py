"""The learner beyond the gradient: rows, curvature, steps, proposals, snapshots, and how batches are cut."""

from __future__ import annotations

import pytest
import torch

from melior.errors import RunError
from melior.learner import Learner
from melior.objectives import (
    NLL,
    Clip,
    ReferenceKL,
    Surrogate,
    TokenMean,
)
from melior.parts import Need
from melior.policies.table import Table
from objective_cases import OBJECTIVES
from toys import TinyNetwork, direct_gradient, direct_loss, language_batch, learner_of, random_table

# ---- row gradients and curvature


@pytest.mark.parametrize("name", OBJECTIVES)
def test_row_gradients_add_up(name):
    objective, aggregate = OBJECTIVES[name]
    batch, policy = language_batch(), TinyNetwork()
    learner = learner_of(policy, aggregate)
    rows = dict(learner.row_gradients(objective, batch))
    total = sum(torch.cat([g.flatten() for g in grads]) for grads in rows.values())
    torch.testing.assert_close(total, direct_gradient(policy, objective, batch, aggregate), rtol=1e-11, atol=1e-13)
    assert not learner.grad_vector().any()
    assert 4 not in rows  # the row that is masked out


def test_row_gradients_are_those_of_their_rows():
    batch, policy = language_batch(), random_table(4, 6, 5)
    objective = 1.0 * NLL()
    for row, (grads, *_) in learner_of(policy).row_gradients(objective, batch):
        alone = batch.with_(mask=batch.mask & (torch.arange(11) == row)[:, None])
        share = alone.mask.sum() / batch.mask.sum()
        torch.testing.assert_close(grads.flatten(), share * direct_gradient(policy, objective, alone, TokenMean()))


@pytest.mark.parametrize("rows", [1, 3, 0])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_hvp_is_the_dense_hessian_times_the_vector(name, rows):
    objective, aggregate = OBJECTIVES[name]
    batch, policy = language_batch(), TinyNetwork(width=3)
    learner = learner_of(policy, aggregate, rows)
    parameters = learner.parameters()
    loss = direct_loss(policy, objective, batch, aggregate)
    grads = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    flat = torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, parameters, strict=True)]
    )
    vector = torch.randn(len(flat), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense = torch.autograd.grad(flat @ vector, parameters, allow_unused=True)
    expected = torch.cat(
        [(torch.zeros_like(p) if h is None else h).flatten() for h, p in zip(dense, parameters, strict=True)]
    )
    product = learner.hvp(objective, batch, vector)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-11)
    assert not learner.grad_vector().any()


def test_hvp_equals_every_column_of_a_small_dense_hessian():
    table = random_table(2, 4, 3, index=("prompt",))
    learner = learner_of(table, rows=2)
    batch = language_batch(vocabulary=3, width=4).with_(prompt=tuple((i % 2,) for i in range(11)))
    objective = Surrogate() + 0.3 * ReferenceKL("k3")

    def loss(logits: torch.Tensor) -> torch.Tensor:
        copy = Table(2, 4, 3, index=("prompt",), dtype=torch.float64)
        copy.logits = logits.view_as(copy.logits)
        return direct_loss(copy, objective, batch, TokenMean())

    dense = torch.autograd.functional.hessian(loss, table.logits.detach().flatten())
    mine = torch.stack([learner.hvp(objective, batch, column) for column in torch.eye(6, dtype=torch.float64)], 1)
    torch.testing.assert_close(mine, dense, rtol=1e-10, atol=1e-12)


# ---- moving


def moved(learner: Learner) -> Learner:
    """The learner after one step, so that its optimizer has a state."""
    learner.gradient(1.0 * Clip(), language_batch())
    learner.step()
    return learner


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_snapshot_and_restore_are_bit_for_bit_with_the_optimizer(kind):
    learner = moved(learner_of(TinyNetwork(), kind=kind))
    average = learner.policy.frozen()
    learner.averages = ((average, 0.9),)
    snapshot = learner.snapshot()
    paths = []
    for _ in range(2):
        trail = []
        for seed in (1, 2):
            learner.gradient(Clip() + 0.1 * ReferenceKL(), language_batch(seed))
            learner.step()
            trail += [learner.vector(), torch.cat([v.flatten() for v in average.state().values()])]
        paths.append(trail)
        learner.restore(snapshot)
    assert all(torch.equal(a, b) for a, b in zip(*paths, strict=True))
    assert not torch.equal(paths[0][0], paths[0][2])


def test_a_snapshot_does_not_follow_later_steps_and_can_be_restored_twice():
    learner = moved(learner_of(TinyNetwork(), kind="adamw"))
    snapshot, before = learner.snapshot(), learner.vector()
    for _ in range(2):
        moved(learner)
        assert not torch.equal(learner.vector(), before)
        learner.restore(snapshot)
        assert torch.equal(learner.vector(), before)


def test_restoring_an_optimizer_of_unknown_parameters_is_an_error():
    learner = moved(learner_of(TinyNetwork(), kind="adamw"))
    snapshot = learner.snapshot()
    snapshot["optimizer"]["stranger"] = {}
    with pytest.raises(RunError, match="stranger"):
        learner.restore(snapshot)


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_proposed_changes_nothing_and_is_what_step_then_does(kind, clip):
    learner = moved(learner_of(TinyNetwork(), kind=kind, clip=clip))
    learner.rate = 0.5
    learner.gradient(1.0 * Clip(), language_batch(1))
    before, gradient, state = learner.vector(), learner.grad_vector(), learner.snapshot()
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    proposed = learner.proposed()
    assert torch.equal(learner.vector(), before) and torch.equal(learner.grad_vector(), gradient)
    after = learner.snapshot()["optimizer"]
    assert all(
        torch.equal(after[n][k], v) for n, s in state["optimizer"].items() for k, v in s.items() if v is not None
    )
    assert rates == [group["lr"] for group in learner.optimizer.param_groups]
    learner.step()
    assert torch.equal(learner.vector() - before, torch.cat([change.flatten() for change in proposed.values()]))


def test_proposed_before_the_first_step_leaves_a_fresh_optimizer():
    learner = learner_of(TinyNetwork(), kind="adamw")
    learner.gradient(1.0 * Clip(), language_batch())
    learner.proposed()
    assert learner.state()["optimizer"] == {}


def test_equal_move_numbers_mean_equal_weights():
    learner = learner_of(TinyNetwork(), kind="adamw")
    start, numbers = learner.snapshot(), [learner.moves]
    learner.gradient(1.0 * Clip(), language_batch())
    learner.proposed()
    assert learner.moves == numbers[0]
    for change in (learner.step, lambda: learner.assign(learner.vector() + 1), lambda: learner.load_state(start)):
        change()
        numbers.append(learner.moves)
    learner.restore(start)
    assert learner.moves == numbers[0] and len(set(numbers)) == 4
    moved(learner)
    assert learner.moves not in numbers  # another path from the same snapshot leads elsewhere
    learner.zero_grad()
    moves = learner.moves
    learner.step()  # nothing to learn, so nothing moves
    assert learner.moves == moves


def test_a_proposal_that_fails_leaves_everything_as_it_was(monkeypatch):
    learner = moved(learner_of(TinyNetwork(), kind="adamw"))
    learner.gradient(1.0 * Clip(), language_batch(1))
    before, gradient, moves, step = learner.vector(), learner.grad_vector(), learner.moves, learner.optimizer.step

    def fail() -> None:
        step()
        raise MemoryError

    monkeypatch.setattr(learner.optimizer, "step", fail)
    with pytest.raises(MemoryError):
        learner.proposed()
    assert torch.equal(learner.vector(), before) and torch.equal(learner.grad_vector(), gradient)
    assert learner.moves == moves


def test_step_clips_scales_and_reports():
    learner = learner_of(random_table(4, 6, 5), lr=0.5, clip=0.01)
    learner.gradient(1.0 * Clip(), language_batch())
    norm = float(learner.grad_vector().norm())
    assert norm > 0.01
    learner.rate = 0.5
    stats = learner.step(scale=3.0)
    assert stats["grad_norm"] == pytest.approx(norm) and stats["lr"] == pytest.approx(0.75)
    assert stats["update_norm"] == pytest.approx(0.75 * 0.01, rel=1e-4)
    learner.gradient(1.0 * Clip(), language_batch())
    assert learner.step()["lr"] == pytest.approx(0.25)


def test_averages_follow_exponentially():
    learner = learner_of(random_table(4, 6, 5))
    average = learner.policy.frozen()
    learner.averages = ((average, 0.75),)
    start = learner.vector()
    moved(learner)
    torch.testing.assert_close(average.logits.flatten(), 0.75 * start + 0.25 * learner.vector())


def test_assign_writes_where_it_is_told():
    learner = learner_of(TinyNetwork())
    ones, before = torch.ones_like(learner.vector()), learner.vector()
    learner.assign(ones, lambda name: name == "value")
    for name, p in learner.policy.named_parameters():
        assert bool((p == 1).all()) == (name == "value")
    learner.assign(before)
    assert torch.equal(learner.vector(), before)


# ---- cutting


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_micro_batches_hold_each_row_once_with_all_its_columns(rows):
    batch = language_batch()
    learner = learner_of(TinyNetwork(), rows=rows)
    seen = []
    for micro, index in learner.micro(batch):
        assert len(micro) == len(index) <= rows and micro.mask.shape[1] == max(int(micro.length.max()), 1)
        assert torch.equal(micro.columns["user"], batch.columns["user"][index])
        assert micro.objects["text"] == tuple(batch.objects["text"][i] for i in index.tolist())
        assert micro.features["hidden"].shape == (len(index), 6)
        seen += index.tolist()
    assert sorted(seen) == list(range(11))


def test_micro_batches_are_bucketed_by_length():
    widths = [micro.mask.shape[1] for micro, _ in learner_of(TinyNetwork(), rows=3).micro(language_batch())]
    assert widths == sorted(widths)


@pytest.mark.parametrize("count", [1, 2, 3, 11, 20])
def test_minibatches_split_every_row_evenly(count):
    batch = language_batch()
    generator = torch.Generator().manual_seed(0)
    parts = list(learner_of(TinyNetwork()).minibatches(batch, count, generator))
    sizes = [len(part) for part in parts]
    assert sum(sizes) == 11 and max(sizes) - min(sizes) <= 1 and len(parts) == min(count, 11)
    texts = [text for part in parts for text in part.objects["text"]]
    assert sorted(texts) == sorted(batch.objects["text"])
    assert (parts[0] is batch) if count == 1 else texts != list(batch.objects["text"])


@pytest.mark.parametrize("rows", [1, 3, 0])
def test_evaluate_puts_every_row_back_in_its_place(rows):
    policy, batch = TinyNetwork(), language_batch()
    needs = frozenset({Need("value"), Need("hidden", on="batch")})
    whole = policy.evaluate(batch, needs)
    policy.with_gradient.clear()
    mine = learner_of(policy, rows=rows).evaluate(batch, needs)
    assert not mine.logp.requires_grad and policy.with_gradient == []
    for name in ("logp", "value"):
        torch.testing.assert_close(mine[name][batch.present], whole[name].detach()[batch.present])
    torch.testing.assert_close(mine["hidden"], whole["hidden"].detach())

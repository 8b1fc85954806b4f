"""The learner: rule 3 (the objective sees the whole minibatch), exact skipping, snapshots, curvature, proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

from melior.errors import RunError
from melior.learner import Learner
from melior.objectives import (
    NLL,
    CappedWeight,
    Clip,
    ConstantLength,
    Divergence,
    EntropyBonus,
    PolicyGradient,
    Probe,
    PromptMean,
    ReferenceKL,
    SegmentRatio,
    SequenceMean,
    Surrogate,
    TargetMatching,
    TokenMean,
    ValueLoss,
)
from melior.objectives.ratios import log_ratio
from melior.parts import Evaluation, Need, Objective, Term
from melior.policies.table import Table
from melior.trajectories import Trajectories
from toys import TinyNetwork, direct_gradient, direct_loss, language_batch, learner_of, random_table


@dataclass(frozen=True)
class CappedSampleSize(Term):
    """An importance-weighted loss whose scale is the batch's effective sample size, differentiated through both."""

    cap: float = 0.9

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.advantage is not None
        weight = log_ratio(now, batch).sum(-1).exp() * batch.mask.any(-1)
        share = weight.sum().square() / (weight.square().sum() * len(batch))
        return -batch.advantage * weight[:, None] * torch.clamp(share, max=self.cap)


@dataclass(frozen=True)
class HiddenNorm(Term):
    """A whole-row loss of the pooled hidden state."""

    reads = (Need("hidden"),)

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return now["hidden"].square().sum(-1)


OBJECTIVES = {
    "effective sample size": (1.0 * CappedSampleSize(), TokenMean()),
    "softmax over a group": (1.0 * TargetMatching(), PromptMean()),
    "two denominators": (Clip() + 0.5 * NLL().over(TokenMean("right")), TokenMean()),
    "two quantities": (
        Clip(0.1) + 0.3 * ValueLoss(0.2) + 0.2 * EntropyBonus() + 0.04 * ReferenceKL("k3"),
        SequenceMean(),
    ),
    "ratio of a turn": (1.0 * Clip(0.1, 0.2, ratio=SegmentRatio("turn")), ConstantLength()),
    "ratio of a row": (1.0 * Surrogate(SegmentRatio("row", "sum")), Probe()),
    "detached weight": (CappedWeight(0.2) + 0.1 * ReferenceKL("k2"), TokenMean()),
    "pooled": (PolicyGradient() + 0.1 * HiddenNorm().over(PromptMean()), TokenMean()),
}


def policies(dtype: torch.dtype) -> dict[str, TinyNetwork | Table]:
    table = random_table(4, 6, 5, dtype=dtype)
    table.prepare(frozenset({Need("value")}))
    return {"network": TinyNetwork(dtype=dtype), "table": table}


@pytest.mark.parametrize("rows", [1, 3, 8, 0])
@pytest.mark.parametrize("which", ["network", "table"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_rule_3_the_gradient_is_the_direct_one_for_every_micro_batch(name, which, rows):
    objective, aggregate = OBJECTIVES[name]
    for dtype, rtol, atol in ((torch.float64, 1e-10, 1e-12), (torch.float32, 1e-5, 0.0)):
        batch, policy = language_batch(dtype=dtype), policies(dtype)[which]
        learner = learner_of(policy, aggregate, rows)
        loss = learner.gradient(objective, batch)
        direct = direct_gradient(policy, objective, batch, aggregate)
        assert direct.norm() > 0.01
        assert (learner.grad_vector() - direct).norm() <= rtol * direct.norm() + atol
        torch.testing.assert_close(loss.value, direct_loss(policy, objective, batch, aggregate).detach())


@pytest.mark.parametrize("rows", [1, 3, 0])
def test_rule_3_on_the_first_pass_the_ratio_is_one_by_construction(rows):
    policy, objective = TinyNetwork(), 1.0 * Clip()
    fresh = language_batch().with_(proximal_logp=None)
    learner = learner_of(policy, rows=rows)
    known = learner.record(fresh)
    assert torch.equal(known.proximal_logp, learner.evaluate(fresh).logp)
    assert learner.record(known) is known
    learner.gradient(objective, fresh)
    torch.testing.assert_close(
        learner.grad_vector(), direct_gradient(policy, objective, known, TokenMean()), rtol=1e-12, atol=1e-14
    )


def test_rule_3_a_micro_batch_mean_would_be_a_different_number():
    """The check above can fail: averaging per micro-batch is off by far more than its tolerance."""
    policy, batch = TinyNetwork(), language_batch()
    objective = 1.0 * CappedSampleSize()
    parts = [
        direct_gradient(policy, objective, batch.rows(i), TokenMean())
        for i in torch.arange(11).split(3)
        if batch.rows(i).mask.any()
    ]
    direct = direct_gradient(policy, objective, batch, TokenMean())
    assert (torch.stack(parts).mean(0) - direct).norm() > 0.05 * direct.norm()


def test_gradients_add_up_over_calls():
    policy, batch = TinyNetwork(), language_batch()
    learner = learner_of(policy)
    learner.gradient(1.0 * Clip(), batch)
    once = learner.grad_vector()
    learner.gradient(1.0 * Clip(), batch)
    torch.testing.assert_close(learner.grad_vector(), 2 * once)
    learner.zero_grad()
    assert not learner.grad_vector().any() and all(p.grad is None for p in learner.parameters())


# ---- rows are skipped exactly when all their coefficients are zero


def test_rule_3_rows_without_anything_to_say_are_never_sent_backward():
    batch, policy = language_batch(), TinyNetwork()
    learner = learner_of(policy, rows=2)
    loss = learner.gradient(1.0 * PolicyGradient(), batch)
    busy = int(((batch.advantage != 0) & batch.mask).any(-1).sum())
    assert busy == 8  # of eleven: one is masked out, two have no advantage
    assert sum(policy.with_gradient) == busy and float(loss.metrics["rows_skipped"]) == 3


def test_rule_3_a_row_with_a_divergence_term_is_not_skipped():
    policy, batch = TinyNetwork(), language_batch()
    learner = learner_of(policy, rows=2)
    learner.gradient(PolicyGradient() + 0.01 * ReferenceKL("k3"), batch)
    assert sum(policy.with_gradient) == 10  # all but the row that is masked out


def test_rule_3_a_clipped_row_is_skipped_with_its_gradient_exact():
    """Past the clip a row's coefficient is zero although its advantage is not."""
    policy = TinyNetwork()
    batch = learner_of(policy).record(language_batch().with_(proximal_logp=None))
    batch = batch.with_(proximal_logp=batch.proximal_logp - 1.0, advantage=batch.advantage.abs())  # ratios of e
    policy.with_gradient.clear()
    learner = learner_of(policy, rows=2)
    loss = learner.gradient(1.0 * Clip(), batch)
    assert policy.with_gradient == [] and float(loss.metrics["rows_skipped"]) == 11
    assert not learner.grad_vector().any()


@pytest.mark.parametrize("rows", [1, 0])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_nothing_to_learn_moves_nothing_for_every_micro_batch(kind, rows):
    """Momentum and weight decay must not act on a batch without any gradient, however the batch is cut."""
    policy, batch = TinyNetwork(), language_batch()
    learner = learner_of(policy, rows=rows, kind=kind)
    learner.gradient(1.0 * Clip(), batch)
    learner.step()
    before = learner.vector()
    learner.gradient(1.0 * Clip(), batch.with_(advantage=torch.zeros_like(batch.advantage)))
    stats = learner.step()
    assert torch.equal(learner.vector(), before)
    assert (stats["grad_norm"], stats["update_norm"]) == (0.0, 0.0)


def test_an_objective_of_nothing_has_no_gradient():
    learner = learner_of(TinyNetwork(), rows=2)
    loss = learner.gradient(Objective(()), language_batch())
    assert float(loss.value) == 0 and not learner.grad_vector().any()


# ---- masked actions never matter


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("junk", [50.0, float("nan")])
def test_trap_13_masked_actions_never_matter(name, junk):
    objective, aggregate = OBJECTIVES[name]
    batch = language_batch()
    spoiled = batch.with_(
        behaviour_logp=batch.behaviour_logp.masked_fill(~batch.mask, junk),
        proximal_logp=batch.proximal_logp.masked_fill(~batch.mask, junk),
        scores={"reference": {"logp": batch.scores["reference"]["logp"].masked_fill(~batch.mask, junk)}},
        tokens=torch.where(batch.present, batch.tokens, 4),
    ).column(
        returns=batch.columns["returns"].masked_fill(~batch.mask, junk),
        value=batch.columns["value"].masked_fill(~batch.mask, junk),
        right=torch.where(batch.mask, batch.columns["right"], True),
    )
    results = []
    for case in (batch, spoiled):
        learner = learner_of(TinyNetwork(), aggregate, rows=3)
        loss = learner.gradient(objective, case)
        results.append((float(loss.value), learner.grad_vector()))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])


def test_padding_never_matters():
    for objective, aggregate in OBJECTIVES.values():
        batch = language_batch()
        wide = language_batch(width=6)._map(lambda value: _widened(value)).with_(features=batch.features)
        results = []
        for case in (batch, wide):
            learner = learner_of(TinyNetwork(length=9), aggregate, rows=3)
            learner.gradient(objective, case)
            results.append(learner.grad_vector())
        torch.testing.assert_close(*results, rtol=1e-13, atol=1e-15)


def _widened(value):
    if isinstance(value, Mapping):
        return {key: _widened(inner) for key, inner in value.items()}
    if isinstance(value, torch.Tensor) and value.dim() == 2:
        return torch.cat([value, value.new_zeros(len(value), 3)], 1)
    return value


def test_shuffled_rows_give_the_same_gradient():
    order = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    for objective, aggregate in OBJECTIVES.values():
        results = []
        for batch in (language_batch(), language_batch().rows(order)):
            learner = learner_of(TinyNetwork(), aggregate, rows=3)
            learner.gradient(objective, batch)
            results.append(learner.grad_vector())
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


# ---- what is not finite is an error that names the rows


def test_a_policy_that_is_not_finite_is_named():
    table = random_table(4, 6, 5)
    with torch.no_grad():
        table.logits[1] = torch.nan
    batch = language_batch()
    bad = ((torch.tensor([p[0] for p in batch.prompt]) == 1) & batch.mask.any(-1)).nonzero().flatten()[:5].tolist()
    with pytest.raises(RunError, match=rf"logp is not finite in rows \[{', '.join(map(str, bad))}\]"):
        learner_of(table).gradient(1.0 * Clip(), batch)


def test_a_loss_that_is_not_finite_names_the_rows_and_moves_nothing():
    batch = language_batch()
    batch = batch.with_(
        advantage=batch.advantage.index_put((torch.tensor([3]), torch.tensor([0])), torch.tensor(torch.inf).double())
    )
    learner = learner_of(TinyNetwork(), rows=2)
    with pytest.raises(RunError, match=r"rows \[3\].*no step was made"):
        learner.gradient(1.0 * PolicyGradient(), batch)
    assert not learner.grad_vector().any()


def test_a_gradient_that_is_not_finite_is_not_stepped():
    learner = learner_of(TinyNetwork(), kind="adamw")
    before = learner.vector()
    learner.parameters()[0].grad = torch.full_like(learner.parameters()[0], torch.nan)
    with pytest.raises(RunError, match="not finite in prompt; no step was made"):
        learner.step()
    assert torch.equal(learner.vector(), before) and all(p.grad is None for p in learner.parameters())


def test_a_head_of_an_unknown_scorer_is_an_error():
    with pytest.raises(RunError, match="teacher"):
        learner_of(TinyNetwork()).gradient(1.0 * Divergence("teacher"), language_batch())


@pytest.mark.parametrize("rows", [2, 0])
def test_a_head_reads_another_policys_logits(rows):
    policy, teacher = random_table(4, 6, 5), random_table(1, 6, 5, seed=1, index=("position",))
    learner = learner_of(policy, rows=rows)
    learner.readers = {"teacher": teacher}.__getitem__
    learner.gradient(1.0 * Divergence("teacher"), language_batch())
    batch = language_batch()
    with torch.enable_grad():
        where = policy._where(batch.prompt, batch.tokens)
        p = policy.logits[where].log_softmax(-1)
        q = teacher.logits[teacher._where(batch.prompt, batch.tokens)].log_softmax(-1)
        loss = ((p.exp() * (p - q)).sum(-1) * batch.mask).sum() / batch.mask.sum()
    torch.testing.assert_close(learner.grad_vector(), torch.autograd.grad(loss, policy.logits)[0].flatten())


def test_rule_7_a_surrogate_likelihood_needs_no_entropy():
    """Any differentiable score serves the ratio; figures that need a distribution are not asked for."""

    class Flow(TinyNetwork):
        likelihood = "surrogate"

        def evaluate(self, batch, needs=frozenset(), others=None):
            assert not needs
            return Evaluation(-(super().evaluate(batch).logp ** 2))

    learner, batch = learner_of(Flow(), rows=2), language_batch()
    loss = learner.gradient(1.0 * Clip(), batch)
    torch.testing.assert_close(learner.grad_vector(), direct_gradient(Flow(), 1.0 * Clip(), batch, TokenMean()))
    assert "entropy" not in loss.metrics


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

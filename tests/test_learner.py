"""The learner: rule 3 (the objective sees the whole minibatch), exact skipping, snapshots, curvature, proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from melior.errors import RunError
from melior.microbatches import rows_that_fit
from melior.objectives import (
    Clip,
    Divergence,
    PolicyGradient,
    ReferenceKL,
    TokenMean,
)
from melior.parts import Evaluation, Need, Objective, Term
from melior.policies.table import Table
from melior.trajectories import Trajectories
from objective_cases import OBJECTIVES, CappedSampleSize
from toys import TinyNetwork, direct_gradient, direct_loss, language_batch, learner_of, random_table


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


@dataclass(frozen=True)
class Surprising(Term):
    """Linear in the log-probability wherever it is asked beforehand, and something else at the true values."""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        assert batch.behaviour_logp is not None and batch.advantage is not None
        told = (now.logp.detach() / batch.behaviour_logp).where(batch.mask, torch.zeros_like(now.logp))
        elsewhere = (((told - 1).abs() > 1e-9) & ((told - 0.5).abs() > 1e-9) & batch.mask).any(-1, keepdim=True)
        return -batch.advantage * torch.where(elsewhere, now.logp.exp(), now.logp)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("term", [Clip(), Surprising()])
def test_rule_3_derivatives_known_beforehand_spare_a_pass_and_wrong_ones_are_mended(rows, term):
    policy, fresh = TinyNetwork(), language_batch().with_(proximal_logp=None)
    learner, seen, evaluate = learner_of(policy, rows=rows), [], policy.evaluate

    def counted(batch: Trajectories, *rest: Any) -> Evaluation:
        seen.append(len(batch))
        return evaluate(batch, *rest)

    policy.evaluate = counted  # type: ignore[method-assign]
    loss = learner.gradient(1.0 * term, fresh)
    idle = int(loss.metrics["rows_skipped"])
    assert idle > 0 and sum(seen) == len(fresh) + (0 if isinstance(term, Clip) else len(fresh) - idle)
    objective, known = 1.0 * term, learner.evaluate(fresh).logp
    first = fresh.with_(proximal_logp=known) if isinstance(term, Clip) else fresh
    torch.testing.assert_close(loss.value, direct_loss(policy, objective, first, TokenMean()).detach())
    direct = direct_gradient(policy, objective, first, TokenMean())
    torch.testing.assert_close(learner.grad_vector(), direct, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loss.logp[fresh.mask], known[fresh.mask])


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


def test_long_prompts_count_in_what_fits_into_memory_at_once():
    widths = []

    class Narrow(Table):
        def rows_at_once(self, width: int) -> int:
            widths.append(width)
            return 1

    batch = language_batch()
    long = batch.with_(prompt=tuple((0,) * (i + 3) for i in range(len(batch))))
    rows_that_fit(Narrow(1, 1, 2), long)
    assert widths == [batch.mask.shape[1] + len(batch) + 2]
    rows_that_fit(Narrow(1, 1, 2), batch.with_(prompt=torch.zeros(len(batch), batch.mask.shape[1], 3)))
    assert widths[1:] == [batch.mask.shape[1]]

"""Epochs of minibatches: when the proximal policy is recorded, how often it steps, and when it stops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import melior
from melior.advantages import Whiten
from melior.errors import UserError
from melior.methods.policy_gradient import REINFORCE
from melior.objectives import Clip, PolicyGradient, Probe, SequenceMean
from melior.parts import Evaluation, Transform
from melior.trajectories import Trajectories
from melior.updates import Gradient
from melior.updates.gradient import mean_stats
from toys import TinyNetwork, language_batch, learner_of, random_table, run_of

SEEN: list[Trajectories] = []


@dataclass(frozen=True)
class Watch(Transform):
    def __call__(self, batch: Trajectories) -> Trajectories:
        SEEN.append(batch)
        return batch


def update(part: Gradient, **settings: Any) -> tuple[dict[str, float], Any]:
    SEEN.clear()
    run = run_of(REINFORCE.record, TinyNetwork(), **settings)
    batch = language_batch().with_(proximal_logp=None)
    return part(run.learner(), batch, 1.0 * Clip(), run), run


def test_one_step_needs_no_proximal_policy():
    stats, _ = update(Gradient(each=Watch()))
    assert stats["updates"] == 1 and SEEN[0].proximal_logp is None
    assert stats["clip_high"] == stats["clip_low"] == 0 and stats["kl_proximal"] == 0


@pytest.mark.parametrize(("epochs", "minibatches"), [(3, 1), (1, 3), (2, 2)])
def test_the_proximal_policy_is_that_before_the_first_step(epochs, minibatches):
    start = learner_of(TinyNetwork()).evaluate(language_batch()).logp
    stats, run = update(Gradient(epochs, minibatches, each=Watch()))
    assert stats["updates"] == epochs * minibatches == len(SEEN)
    known = {text: row for text, row in zip(language_batch().objects["text"], start, strict=True)}
    if minibatches == 1:  # the first pass, whose own log-probabilities they are
        assert SEEN.pop(0).proximal_logp is None
    for mini in SEEN:
        for text, row, present in zip(mini.objects["text"], mini.proximal_logp, mini.present, strict=True):
            torch.testing.assert_close(row[present], known[text][present])
    assert run.learner().optimizer.state[run.learner().parameters()[0]]["step"] == epochs * minibatches


@dataclass(frozen=True)
class Reversed(Transform):
    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch.rows(torch.arange(len(batch)).flip(0))


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("unit", ["row", "step"])
@pytest.mark.parametrize("each", [Watch(), Reversed(), Whiten()])
def test_the_first_pass_gives_the_proximal_policy_for_nothing(rows, unit, each, monkeypatch):
    """The same update, whether they are evaluated beforehand or are those of the first pass."""
    if unit == "step" and rows:
        pytest.skip("an action a row is one micro-batch's affair")

    def result(beforehand: bool) -> tuple[dict[str, float], torch.Tensor, int]:
        run = run_of(REINFORCE.record, TinyNetwork() if unit == "row" else random_table(4, 8, 5, index=("prompt",)))
        learner, batch, calls = run.learner(), language_batch().with_(proximal_logp=None), 0
        learner.rows_per_micro = rows
        evaluate = learner.policy.evaluate

        def counted(*arguments: Any) -> Evaluation:
            nonlocal calls
            calls += 1
            return evaluate(*arguments)

        monkeypatch.setattr(learner.policy, "evaluate", counted)
        if beforehand:
            batch = learner.record(batch)
        stats = Gradient(3, unit=unit, each=each)(learner, batch, 1.0 * Clip(), run)
        return stats, learner.vector(), calls

    before, first = result(True), result(False)
    assert before[0].keys() == first[0].keys() and before[0]["updates"] == 3
    assert first[0] == pytest.approx(before[0], rel=1e-12, abs=1e-12)
    torch.testing.assert_close(first[1], before[1], rtol=1e-12, atol=1e-12)
    forward = len(list(learner_of(TinyNetwork(), rows=rows).micro(language_batch())))
    saved = 0 if isinstance(each, Reversed) else forward
    # A first pass in micro-batches also knows its derivatives beforehand: busy rows pass through the network once.
    assert before[2] - first[2] == saved if rows == 0 else before[2] - first[2] > saved


def test_the_first_ratio_is_exactly_one_whatever_the_micro_batches():
    for rows in (0, 2):
        run = run_of(REINFORCE.record, TinyNetwork(dtype=torch.float32))
        run.learner().rows_per_micro = rows
        batch = language_batch(dtype=torch.float32).with_(proximal_logp=None)
        loss = run.learner().gradient(1.0 * Clip(), batch)
        assert loss.metrics["kl_proximal"] == 0 and loss.logp is not None and not loss.logp.requires_grad
        assert torch.equal(loss.logp[batch.present], run.learner().evaluate(batch).logp[batch.present])


def test_every_epoch_sees_every_row_in_an_order_of_its_own():
    update(Gradient(2, 3, each=Watch()))
    orders = [[t for mini in SEEN[i : i + 3] for t in mini.objects["text"]] for i in (0, 3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(language_batch().objects["text"])
    assert orders[0] != orders[1]


def test_the_order_is_keyed_by_seed_and_step():
    def order(**settings: Any) -> list[str]:
        update(Gradient(1, 3, each=Watch()), **settings)
        return [t for mini in SEEN for t in mini.objects["text"]]

    assert order(seed=1) == order(seed=1) != order(seed=2)


def test_single_actions_may_be_shuffled():
    update(Gradient(1, 4, unit="step", each=Watch()))
    assert sum(len(mini) for mini in SEEN) == int(language_batch().mask.sum())
    assert all(mini.mask.shape[1] == 1 for mini in SEEN)


@pytest.mark.parametrize("minibatches", [2, 3, 9])
def test_groups_may_be_shuffled_whole(minibatches):
    update(Gradient(2, minibatches, unit="group", each=Watch()))
    batch = language_batch()
    count = min(minibatches, 5)
    epochs = [SEEN[:count], SEEN[count:]]
    sizes = {int(g): int((batch.group == g).sum()) for g in batch.group.unique()}
    for minis in epochs:
        assert len(minis) == count
        groups = [mini.group.unique().tolist() for mini in minis]
        assert sorted(g for part in groups for g in part) == sorted(sizes)
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
        for mini in minis:
            assert all(int((mini.group == g).sum()) == sizes[int(g)] for g in mini.group.unique())
            place = [batch.objects["text"].index(text) for text in mini.objects["text"]]
            assert place == sorted(place)
    assert [m.objects["text"] for m in epochs[0]] != [m.objects["text"] for m in epochs[1]]


def test_what_needs_whole_groups_is_never_shown_a_part_of_one():
    tpo = melior.get("tpo")
    fits = [Gradient(), Gradient(epochs=4), Gradient(minibatches=2, unit="group")]
    for part in fits:
        run_of(tpo.but("fits", update=part), TinyNetwork())
    sentence = "TargetMatching and PromptMean must see whole groups, and an update with unit='{}' and {} minibatches"
    for part, told in [(Gradient(minibatches=2), ("row", 2)), (Gradient(unit="step"), ("step", 1))]:
        with pytest.raises(UserError, match=re.escape(sentence.format(*told)) + r".*update\.unit=group"):
            run_of(tpo.but("splits", update=part), TinyNetwork())
    own = (1.0 * Clip()) + Clip().over(Probe())
    with pytest.raises(UserError, match=r"^Probe must see whole groups"):
        run_of(REINFORCE.record.but("own", objective=own, update=Gradient(minibatches=2)), TinyNetwork())


def test_a_target_over_siblings_is_the_same_in_minibatches_of_whole_groups():
    """The parts' gradients, weighted by their share of the prompts, add up to the whole batch's."""
    tpo = melior.get("tpo")
    batch = language_batch().with_(proximal_logp=None)
    run = run_of(tpo, TinyNetwork())
    learner, prompts = run.learner(), len(batch.group[batch.mask.any(-1)].unique())
    learner.gradient(tpo.objective, batch)
    whole = learner.grad_vector()
    learner.zero_grad()
    for mini in learner.minibatches(batch, 3, run.rng("order"), whole_groups=True):
        share = len(mini.group[mini.mask.any(-1)].unique()) / prompts
        learner.gradient(share * tpo.objective, mini)
    assert whole.norm() > 1e-3
    torch.testing.assert_close(learner.grad_vector(), whole, rtol=1e-10, atol=1e-12)


def test_a_minibatch_transform_acts_on_each():
    update(Gradient(1, 2, each=Whiten(eps=0.0) | Watch()))
    for mini in SEEN:
        assert mini.advantage[mini.mask].mean().item() == pytest.approx(0, abs=1e-12)
        assert mini.advantage[mini.mask].std().item() == pytest.approx(1)


def test_an_update_stops_when_the_policy_has_moved_too_far():
    free, _ = update(Gradient(epochs=8))
    stats, run = update(Gradient(epochs=8, kl_stop=1e-9))
    assert free["updates"] == 8 and stats["updates"] == 1
    assert not run.learner().grad_vector().any()


def test_the_estimated_divergence_is_of_the_sampled_policy_from_the_current_one():
    """The batch comes from the older policy: exp(d) - d - 1 with d = log pi - log old is unbiased for KL(old || pi)."""
    from melior.diagnostics import diagnostics

    old, pi = torch.tensor([0.9, 0.1], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    counts = torch.tensor([0] * 9 + [1])  # samples from `old`, in exact proportion
    batch = Trajectories(
        mask=torch.ones(10, 1, dtype=torch.bool),
        group=torch.arange(10),
        proximal_logp=old.log()[counts][:, None],
        behaviour_logp=old.log()[counts][:, None],
    )
    figures = diagnostics(Evaluation(pi.log()[counts][:, None]), batch)
    truth = (old * (old / pi).log()).sum()
    torch.testing.assert_close(figures["kl_proximal"], truth)
    torch.testing.assert_close(figures["kl_sampler"], truth)
    weight = (pi / old)[counts]
    torch.testing.assert_close(figures["ess"], weight.sum() ** 2 / (10 * weight.square().sum()))


def test_figures_are_averaged_over_the_steps_that_report_them():
    assert mean_stats([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 2.0, "b": 2.0}
    assert mean_stats([]) == {}


def test_the_methods_own_aggregate_is_used():
    run = run_of(REINFORCE.record, TinyNetwork())
    batch = language_batch()
    loss = run.learner().gradient(1.0 * PolicyGradient(), batch)
    now = run.learner().evaluate(batch)
    torch.testing.assert_close(loss.value, SequenceMean()(PolicyGradient()(now, batch), batch))

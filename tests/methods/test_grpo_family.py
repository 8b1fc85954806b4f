"""GRPO and its near kin as `PARENTS` defines them: "grpo", "dr-grpo", "dapo", "gspo", "cispo", by numbers."""

from __future__ import annotations

import pytest
import torch

from melior.method import Method
from melior.objectives import Clip, TokenMean
from melior.parts import Evaluation
from melior.records.catalogue import get
from melior.trajectories import Trajectories
from toys import direct_gradient, language_batch, learner_of, random_table

LOG = torch.tensor([1.5, 0.5, 1.1, 0.7], dtype=torch.float64).log()  # the ratios of the first row's tokens


def case() -> tuple[Evaluation, Trajectories]:
    """Two siblings of three and one tokens; ratios 1.5, 0.5, 1.1 and 0.7."""
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    d = torch.zeros(2, 4, dtype=torch.float64)
    d[0, :3], d[1, 0] = LOG[:3], LOG[3]
    old = torch.full((2, 4), -1.0, dtype=torch.float64)
    batch = Trajectories(
        mask=mask,
        tokens=torch.zeros(2, 4, dtype=torch.long),
        group=torch.zeros(2, dtype=torch.long),
        reward=torch.tensor([1.0, 0.0], dtype=torch.float64),
        proximal_logp=old,
        scores={"reference": {"logp": old.clone()}},
        columns={"limit": torch.full((2,), 10)},
    )
    return Evaluation((old + d).requires_grad_()), batch


def loss_of(method: Method) -> torch.Tensor:
    now, batch = case()
    return method.objective(now, method.advantage(batch), method.aggregate).value


A = 0.5 / (0.5**0.5 + 1e-6)  # the z-score of rewards (1, 0) with ddof 1


def test_grpo():
    """min(rho A, clip(rho, 0.8, 1.2) A) - 0.04 k3, mean over tokens of each answer, then over answers."""
    surrogate = ((-1.2 * A - 0.5 * A - 1.1 * A) / 3 + 0.8 * A) / 2
    d = -LOG
    k3 = d.exp() - d - 1
    divergence = (k3[:3].mean() + k3[3]) / 2
    assert loss_of(get("grpo")).item() == pytest.approx(surrogate + 0.04 * divergence.item(), abs=1e-12)


def test_dr_grpo():
    """A = r - mean, no divergence, sum over tokens / (answers * longest length allowed)."""
    assert loss_of(get("dr-grpo")).item() == pytest.approx((-1.2 - 0.5 - 1.1 + 0.8) * 0.5 / (2 * 10), abs=1e-12)


def test_dapo():
    """Bounds 0.8 and 1.28, no divergence, mean over all tokens of the batch."""
    assert loss_of(get("dapo")).item() == pytest.approx((-1.28 - 0.5 - 1.1 + 0.8) * A / 4, abs=1e-12)
    record = get("dapo")
    assert (record.curriculum.refill, record.reward.parts[1].weight) == (10, 1.0)


def test_gspo():
    """One ratio an answer, exp of its mean log-ratio, within 1 - 3e-4 and 1 + 4e-4."""
    row = (LOG[:3].mean()).exp().item()
    assert row < 1  # inside the pessimistic side: a positive advantage is not clipped below
    assert loss_of(get("gspo")).item() == pytest.approx((-row * A + (1 - 3e-4) * A) / 2, abs=1e-12)
    assert "ReferenceKL" not in repr(get("gspo").objective)


def test_gspo_clips_whole_answers():
    now, batch = case()
    batch = get("gspo").advantage(batch.with_(reward=1 - batch.reward))  # the first row is the worse one now
    gradient = torch.autograd.grad(get("gspo").objective(now, batch, get("gspo").aggregate).value, now.logp)[0]
    assert not gradient[0].any()  # ratio below the band and A < 0: the whole answer stops
    assert gradient[1, 0] != 0


def test_cispo():
    """-sg(min(rho, 1 + high)) A log pi, no lower bound, mean over all tokens."""
    record = get("cispo")
    now, batch = case()
    loss = record.objective(now, record.advantage(batch), record.aggregate).value
    weight = torch.tensor([1.5, 0.5, 1.1, 0.7], dtype=torch.float64)
    signs = torch.tensor([A, A, A, -A], dtype=torch.float64)
    logp = -1 + LOG
    assert loss.item() == pytest.approx(float(-(weight * signs * logp).sum() / 4), abs=1e-12)
    gradient = torch.autograd.grad(loss, now.logp)[0]
    torch.testing.assert_close(gradient[batch.mask], -weight * signs / 4)


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "dapo", "gspo", "cispo", "rgra", "two-grpo", "gdpo", "tempo"])
def test_on_the_first_pass_clips_and_ratios_do_nothing(name):
    """All of them descend -A log pi then, up to their aggregate and their divergence."""
    method = get(name)
    policy = random_table(4, 6, 5)
    batch = learner_of(policy).record(language_batch().with_(proximal_logp=None))
    batch = batch.scored("reference", logp=batch.proximal_logp)
    plain = get("reinforce").objective
    gradient = direct_gradient(policy, method.objective, batch, method.aggregate)
    row = batch
    if name == "gspo":  # the mean log-ratio spreads a row's advantages evenly
        row = batch.with_(
            advantage=((batch.advantage * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1))[:, None] * batch.mask
        )
    torch.testing.assert_close(gradient, direct_gradient(policy, plain, row, method.aggregate), rtol=1e-9, atol=1e-12)


def test_trap_16_a_group_of_one_learns_nothing_in_group_relative_methods():
    _, batch = case()
    alone = batch.with_(group=torch.tensor([0, 1]))
    for name in ("grpo", "dr-grpo", "dapo", "gspo", "cispo", "rgra", "two-grpo", "tempo"):
        assert not get(name).advantage(alone).advantage.any(), name
        assert get(name).advantage.needs_siblings


def test_trap_16_micro_batches_may_split_groups_after_credit_is_assigned():
    policy = random_table(4, 6, 5)
    batch = get("grpo").advantage(language_batch())
    gradients = []
    for rows in (1, 3, 0):
        learner = learner_of(policy, get("grpo").aggregate, rows)
        learner.gradient(get("grpo").objective, batch)
        gradients.append(learner.grad_vector())
        learner.zero_grad()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-12, atol=1e-15)


def test_trap_9_masked_truncated_answers_stay_in_the_statistics_of_their_group():
    now, batch = case()
    kept = batch.with_(mask=batch.mask & torch.tensor([[True], [False]]))
    out = get("dapo").advantage(kept)
    assert out.advantage[0, 0].item() == pytest.approx(A) and not out.advantage[1].any()
    everything = batch.with_(mask=torch.zeros_like(batch.mask))
    loss = get("dapo").objective(now, get("dapo").advantage(everything), TokenMean()).value
    assert loss.item() == 0 and not torch.autograd.grad(loss, now.logp)[0].any()


def test_the_records_differ_where_they_say():
    grpo = get("grpo")
    assert get("gspo").advantage == get("cispo").advantage == get("dapo").advantage == grpo.advantage
    assert get("tempo").objective == get("gdpo").objective == get("dr-grpo").objective == 1.0 * Clip()
    assert get("paper:grpo") == grpo

"""From unreduced losses to one number: traps 1 to 3, every micro-batch split, masks of their own, empty rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from melior.objectives import ConstantLength, PolicyGradient, Probe, PromptMean, SequenceMean, SequenceSum, TokenMean
from melior.parts import Aggregate, Evaluation, Term
from melior.policies.policy import Policy
from melior.trajectories import Trajectories
from toys import learner_of


def batch_of(mask: list[list[int]], group: list[int] | None = None, **columns: Any) -> Trajectories:
    m = torch.tensor(mask).bool()
    columns = {name: torch.tensor(value) for name, value in columns.items()}
    return Trajectories(mask=m, group=torch.tensor(group or [0] * len(m)), columns=columns)


TRAP = batch_of([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]], limit=[10, 10])
LOSS = torch.tensor([[2.0] * 5 + [99.0], [10.0] + [99.0] * 5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [
        (TokenMean(), 20 / 6),
        (SequenceMean(), 6.0),
        (ConstantLength(10), 1.0),
        (ConstantLength(), 1.0),  # the column "limit"
        (ConstantLength(10, rows=4), 0.5),
        (SequenceSum(), 10.0),
        (PromptMean(), 20.0),
        (Probe(), 10.0),
    ],
)
def test_trap_1_aggregation_is_not_one_number(aggregate, value):
    assert aggregate(LOSS, TRAP).item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "aggregate", [TokenMean(), SequenceMean(), ConstantLength(), SequenceSum(), PromptMean(), Probe()]
)
def test_trap_2_no_normalizer_depends_on_padding(aggregate):
    wide = batch_of([[1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0]], limit=[10, 10])
    padded = torch.cat([LOSS, torch.full((2, 3), torch.nan, dtype=torch.float64)], 1)
    assert aggregate(padded, wide).item() == aggregate(LOSS, TRAP).item()


def test_trap_1_with_ratio_one_and_centered_advantages_the_sequence_mean_is_exactly_zero():
    advantage = torch.tensor([[0.5], [-0.5]], dtype=torch.float64) * TRAP.mask
    assert SequenceMean()(-advantage * 1.0, TRAP).item() == 0.0


# ---- trap 3: the gradient is that of the whole batch for every split


@dataclass(frozen=True)
class Leaf(Term):
    """The score itself, times what the batch says of it."""

    def __call__(self, now: Evaluation, batch: Trajectories) -> torch.Tensor:
        return now.logp * batch.columns["loss"]


class Scale(Policy):
    """One parameter; every action's score is it. The gradient of a loss is then the aggregate of its coefficients."""

    likelihood, temperature, device = "surrogate", 1.0, torch.device("cpu")

    def __init__(self) -> None:
        self.weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def evaluate(self, batch: Trajectories, needs: Any = frozenset(), others: Any = None) -> Evaluation:
        return Evaluation(self.weight.expand(batch.mask.shape) * 1.0)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "weight", self.weight

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight.detach()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.weight.detach().copy_(state["weight"])

    def rows_at_once(self, width: int) -> int:
        return 1000


def gradient(aggregate: Aggregate, batch: Trajectories, rows: int) -> float:
    learner = learner_of(Scale(), aggregate, rows)
    learner.gradient(1.0 * Leaf(), batch)
    return learner.grad_vector().item()


@pytest.mark.parametrize("rows", [1, 2, 3, 0])
def test_trap_3_accumulation_does_not_change_the_gradient(rows):
    """Ten tokens of loss 1 and two of loss 4: 18 / 12, neither the mean of means 2.5 nor 0.75."""
    batch = batch_of([[1] * 5, [1] * 5, [1, 1, 0, 0, 0]]).column(
        loss=torch.tensor([[1.0], [1.0], [4.0]]).double().expand(3, 5)
    )
    assert gradient(TokenMean(), batch, rows) == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("rows", [1, 0])
@pytest.mark.parametrize(
    ("aggregate", "value"), [(TokenMean(), 20 / 6), (SequenceMean(), 6.0), (ConstantLength(10), 1.0), (Probe(), 10.0)]
)
def test_traps_1_and_2_hold_for_gradients_of_every_split(aggregate, value, rows):
    assert gradient(aggregate, TRAP.column(loss=LOSS), rows) == pytest.approx(value, rel=1e-12)


# ---- rows, groups and masks


def test_a_row_without_trained_actions_counts_in_none():
    full = batch_of([[1, 1], [1, 0]], [0, 1], limit=[4, 4])
    more = batch_of([[1, 1], [1, 0], [0, 0]], [0, 1, 2], limit=[4, 4, 4])
    loss = torch.tensor([[1.0, 2.0], [4.0, 9.0]], dtype=torch.float64)
    spoiled = torch.cat([loss, torch.full((1, 2), torch.nan, dtype=torch.float64)])
    for aggregate in (TokenMean(), SequenceMean(), ConstantLength(), SequenceSum(), PromptMean(), Probe()):
        assert aggregate(spoiled, more).item() == aggregate(loss, full).item()


def test_a_batch_without_any_trained_action_is_zero_with_a_zero_gradient():
    empty = batch_of([[0, 0], [0, 0]], limit=[4, 4])
    for aggregate in (TokenMean(), SequenceMean(), ConstantLength(), SequenceSum(), PromptMean(), Probe()):
        loss = torch.full((2, 2), 3.0, requires_grad=True)
        value = aggregate(loss, empty)
        assert value.item() == 0 and not torch.autograd.grad(value, loss)[0].any()


def test_groups_of_unequal_size_in_any_order():
    batch = batch_of([[1, 1], [1, 1], [1, 0]], [7, 2, 7])
    loss = torch.tensor([[1.0, 1.0], [3.0, 3.0], [5.0, 9.0]], dtype=torch.float64)
    assert Probe()(loss, batch).item() == (2 + 5) / 2 + 6
    assert PromptMean()(loss, batch).item() == (2 + 6 + 5) / 2


def test_losses_of_whole_rows():
    batch = batch_of([[1, 1], [1, 0], [0, 0]], [0, 0, 1])
    loss = torch.tensor([1.0, 3.0, 50.0], dtype=torch.float64)
    assert SequenceMean()(loss, batch).item() == SequenceSum()(loss, batch).item() == 2.0
    assert PromptMean()(loss, batch).item() == 4.0 and Probe()(loss, batch).item() == 2.0
    with pytest.raises(ValueError, match="TokenMean cannot reduce a loss of whole rows"):
        TokenMean()(loss, batch)


def test_a_mask_of_its_own_divides_by_what_it_holds():
    batch = batch_of([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]], right=[[1, 1, 0, 0, 0, 1], [0] * 6], limit=[10, 10])
    assert TokenMean("right")(LOSS, batch).item() == 2.0
    assert SequenceMean("right")(LOSS, batch).item() == 2.0
    assert SequenceSum("right")(LOSS, batch).item() == 4.0
    assert ConstantLength(where="right")(LOSS, batch).item() == 0.4
    assert Probe("right")(LOSS, batch).item() == 4.0


def test_a_constant_number_of_rows_lets_dropped_groups_shorten_the_step():
    half = TRAP.rows([1])
    assert ConstantLength(10, rows=2)(LOSS[1:], half).item() == 0.5


def test_the_score_function_estimator_is_reduced_like_any_other_loss():
    batch = TRAP.with_(advantage=torch.ones(2, 6, dtype=torch.float64) * TRAP.mask)
    now = Evaluation(-LOSS)
    assert TokenMean()(PolicyGradient()(now, batch), batch).item() == pytest.approx(20 / 6)

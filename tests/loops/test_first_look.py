"""What is kept of the learner's first look at a batch, however the update goes through it."""

from __future__ import annotations

import pytest
import torch

from melior.diagnostics import MONITORS
from melior.loops.first_look import PLACE, first_look
from melior.objectives import Clip, TokenMean
from melior.parts import Evaluation, Objective, Weighted
from toys import learner_of, random_table, table_batch

OBJECTIVE = Objective((Weighted(1.0, Clip()),))


def batch_of_four():
    batch = table_batch([0, 1, 1, 0], [[0, 1], [2, 0], [1, 1], [2, 2]], [0, 0, 1, 1], [0, 0, 1, 1])
    ones = torch.ones_like(batch.mask, dtype=torch.float)
    batch = batch.with_(advantage=ones * torch.tensor([[-1.0], [1], [1], [-1]]), proximal_logp=None)
    return batch.only(torch.tensor([[True, True], [True, False], [True, True], [True, True]]))


def test_one_pass_over_everything_gives_entropy_and_proximal_log_probabilities():
    learner, batch = learner_of(random_table(2, 2, 3), TokenMean()), batch_of_four()
    expected = learner.evaluate(batch, MONITORS)
    with first_look(learner, batch) as look:
        learner.gradient(OBJECTIVE, look.marked)
        learner.step()
        learner.gradient(OBJECTIVE, look.marked)  # a second look changes nothing
    told = look.told()
    assert learner.watch is None and PLACE not in told.columns
    torch.testing.assert_close(told.columns["entropy"][batch.mask], expected["entropy"][batch.mask])
    torch.testing.assert_close(told.proximal_logp[batch.mask], expected.logp[batch.mask])
    assert bool(told.columns["entropy"][~batch.mask].isnan().all()) and float(told.proximal_logp[1, 1]) == 0


@pytest.mark.parametrize("unit", ["row", "step"])
def test_shuffled_minibatches_come_back_to_their_places(unit):
    learner, batch = learner_of(random_table(2, 2, 3), TokenMean()), batch_of_four()
    with first_look(learner, batch) as look:
        marked = look.marked.steps() if unit == "step" else look.marked
        for mini in learner.minibatches(marked, 3, torch.Generator().manual_seed(1)):
            place = mini.columns[PLACE].double()
            look(mini, Evaluation(-place, {"entropy": place}))
            learner._moves_on()  # the weights are others now, though equal
    told = look.told()
    assert told.columns["entropy"][batch.mask].tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert told.proximal_logp is None  # the policy had moved before the second minibatch


def test_what_is_known_already_is_left_alone():
    learner, batch = learner_of(random_table(2, 2, 3), TokenMean()), batch_of_four()
    known = torch.full(batch.mask.shape, 7.0)
    batch = batch.with_(proximal_logp=known).column(entropy=known)
    with first_look(learner, batch) as look:
        learner.gradient(OBJECTIVE, look.marked)
    assert look.told().columns["entropy"] is known and look.told().proximal_logp is known
    with first_look(learner, batch_of_four()) as unseen:
        pass
    assert "entropy" not in unseen.told().columns and unseen.told().proximal_logp is None

"""What the policy said of every token when it was first learnt from; the learner has computed it anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from melior.learner import Learner
from melior.parts import Evaluation
from melior.trajectories import Trajectories

PLACE = "place"  # the column that says where an action stood in the whole batch, however it is shuffled
ENTROPY = "entropy"


class FirstLook:
    """Collects log-probabilities and entropies of a batch while a learner is updated on it.

    Attributes:
        marked: the batch for the update, with the places of its actions.
    """

    def __init__(self, learner: Learner, batch: Trajectories) -> None:
        self._learner, self._moves, self._batch = learner, learner.moves, batch
        self._known: dict[str, torch.Tensor] = {}
        self._new = batch.mask.reshape(-1).clone()
        self._complete = False  # whether every action was seen before the weights moved
        place = torch.arange(batch.mask.numel(), device=batch.mask.device)
        self.marked = batch.column(**{PLACE: place.view(batch.mask.shape)})

    def __call__(self, seen: Trajectories, now: Evaluation) -> None:
        """A minibatch was evaluated."""
        if PLACE not in seen.columns or not bool(self._new.any()):
            return
        place = seen.columns[PLACE][seen.mask]
        fresh = self._new[place]
        for name in ("logp", *({ENTROPY} & set(now.extra))):
            value = now[name].detach()[seen.mask][fresh]
            self._known.setdefault(name, value.new_full(self._new.shape, torch.nan))[place[fresh]] = value
        self._new[place] = False
        self._complete = self._learner.moves == self._moves and not bool(self._new.any())

    def told(self) -> Trajectories:
        """The batch with the column "entropy", NaN where it was not computed, and, where every action was evaluated
        before the weights moved, with `proximal_logp`.
        """
        batch = self._batch
        if ENTROPY in self._known and ENTROPY not in batch.columns:
            batch = batch.column(**{ENTROPY: self._known[ENTROPY].view(batch.mask.shape)})
        if self._complete and batch.proximal_logp is None:
            batch = batch.with_(proximal_logp=self._known["logp"].view(batch.mask.shape).nan_to_num())
        return batch


@contextmanager
def first_look(learner: Learner, batch: Trajectories) -> Iterator[FirstLook]:
    """Within it, what the learner evaluates for gradients is collected."""
    look = FirstLook(learner, batch)
    learner.watch = look
    try:
        yield look
    finally:
        learner.watch = None

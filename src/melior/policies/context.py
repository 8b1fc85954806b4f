"""The same actions under another prompt: the one they were sampled under, or one that a column holds."""

from __future__ import annotations

from dataclasses import dataclass

from melior.errors import UserError, near
from melior.policies.policy import GivesLogits, LogitSource
from melior.trajectories import Trajectories


def in_context(batch: Trajectories, context: str) -> Trajectories:
    """The batch with another `prompt`: "trained" leaves it, "sampled" takes the sampled one, else an object column."""
    if context == "trained":
        return batch
    if context == "sampled":
        return batch if batch.sampled_prompt is None else batch.with_(prompt=batch.sampled_prompt)
    if context not in batch.objects:
        raise UserError(f"this batch has no object column '{context}' to score under{near(context, batch.objects)}")
    return batch.with_(prompt=batch.objects[context])


@dataclass(frozen=True)
class InContext:
    """A policy whose logits are read under a context of its own, whatever prompt the batch is trained under."""

    source: GivesLogits
    context: str

    def logit_source(self, batch: Trajectories) -> LogitSource:
        """Logits of the batch's actions by chunks, without gradient."""
        return self.source.logit_source(in_context(batch, self.context))

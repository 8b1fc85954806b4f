"""The handle that acting parts get: what a rollout, an update, a curriculum or a memory may ask of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from melior.errors import RunError, UserError, near
from melior.learner import Learner
from melior.method import Method
from melior.microbatches import evaluate, rows_that_fit
from melior.parts import POOLED, Blend, Memory, Need, Scorer
from melior.policies.context import InContext, in_context
from melior.policies.policy import GivesLogits, Policy
from melior.prompts import Prompts
from melior.trajectories import Trajectories

BETWEEN = 2**31  # round of what is drawn between two steps, by callbacks say: it disturbs no step's random numbers


@runtime_checkable
class World(Protocol):
    """Where policies act and are judged: text with its prompts and rewards, or environments."""

    def next_prompts(self, run: Run, n: int | None, split: str) -> Prompts:
        """The next n prompts of a split (None: as many as a batch holds); the training split moves on."""
        ...

    def sample(
        self, run: Run, prompts: Prompts, n: int, policy: str, blend: Blend | None, greedy: bool
    ) -> Trajectories:
        """n completions of each prompt by the named learner's policy."""
        ...

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        """The batch with `components`, `weights` and `outcome`; rows that have them are left alone."""
        ...

    def evaluate(self, run: Run, split: str, seed: int) -> Mapping[str, Any]:
        """Held-out figures of the current policy; the one called "score" is what runs are compared by."""
        ...

    def figures(self, run: Run, batch: Trajectories) -> Mapping[str, float]:
        """What is worth logging about a scored batch: rewards, lengths, returns."""
        ...

    def load_policy(self, path: str) -> Policy:
        """A policy from a path, for scorers."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What a resumed run must put back: the position in the data, the environments."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        ...

    def envs(self) -> Any:
        """The environments, where there are any."""
        ...


class Run:
    """One run of a method: its learners, its scorers, its world, and the state that outlives a step.

    Attributes:
        method: the resolved record.
        settings: the run's settings.
        step: batches learnt from so far.
        round: refill round within the step; `BETWEEN` while no step is made.
        state: name -> state of each memory; those of further learners are named "learner/memory".
        version: how many versions of the weights there were to sample from, after the first.
        touched: how often a memory or a scorer was changed in this process, counted before the change.
        notes: what was decided on the user's behalf, and what looks odd.
        batches: learner -> the last credited batch, for those who watch the run (never read by a part).
        dropped: learner -> the rows of that step which the curriculum did not keep, likewise.
    """

    def __init__(self, method: Method, settings: Any, world: World, learners: Mapping[str, Learner]) -> None:
        self.method, self.settings, self.world = method, settings, world
        self.step, self.round, self.version, self.touched = 0, 0, 0, 0
        self._learners = dict(learners)
        for name, learner in self._learners.items():
            learner.readers = partial(self.reader, learner=name)
        self._scorers: dict[str, Policy] = {}
        self.state: dict[str, Any] = {}
        self.batches: dict[str, Trajectories] = {}
        self.dropped: dict[str, Trajectories] = {}
        self.notes: tuple[str, ...] = ()

    # ---- acting

    def next_prompts(self, n: int | None = None, split: str = "train") -> Prompts:
        """The next prompts of a split; by default as many as a batch holds."""
        return self.world.next_prompts(self, n, split)

    def sample(
        self, prompts: Prompts, n: int, policy: str = "policy", blend: Blend | None = None, greedy: bool = False
    ) -> Trajectories:
        """n completions of each prompt; greedy ones take the likeliest token each time."""
        blending = blend if blend is not None and blend.active(self) else None
        return self.world.sample(self, prompts, n, policy, blending, greedy)

    def score(self, batch: Trajectories, learner: str = "policy") -> Trajectories:
        """The reward stage: raw components, the raw outcome, and the shaped reward. Scored batches are left alone.

        Rows to which no reward applies are masked out: they count in no statistic.
        """
        if batch.reward is not None:
            return batch
        batch = self.method.of(learner).reward(self.know(self.world.judge(self, batch), learner, "reward"))
        if batch.reward is None:
            raise RunError(f"the reward stage of '{self.method.of(learner).name}' computed no reward")
        return batch.only(~batch.reward.isnan()[:, None])

    def credit(self, batch: Trajectories, learner: str = "policy") -> Trajectories:
        """Reward, teacher, what memories recall, advantage: everything the objective needs to know of the batch."""
        method = self.method.of(learner)
        batch = self.know(self.score(batch, learner), learner)
        batch = method.teacher(batch)
        for name, memory in self.memories(learner):
            batch = memory.recall(self.state[name], batch)
        batch = method.advantage(batch)
        if batch.advantage is not None:
            bad = (~batch.advantage.isfinite()).any(-1).nonzero().flatten()
            if len(bad):
                raise RunError(
                    f"the advantage stage {method.advantage!r} gave a value that is not finite for rows "
                    f"{bad[:5].tolist()} of step {self.step + 1}"
                )
        return batch

    def sync(self, learner: str = "policy") -> None:
        """Count a new version of the learner's weights: whatever samples takes them before it draws again."""
        self.version += 1

    def evaluate(self, split: str = "test", seed: int = 0) -> Mapping[str, Any]:
        """Held-out figures of the current policy, drawn from a random stream of their own."""
        return self.world.evaluate(self, split, seed)

    def envs(self) -> Any:
        """The environments of a control run."""
        return self.world.envs()

    # ---- knowing

    def know(self, batch: Trajectories, learner: str = "policy", stage: str = "") -> Trajectories:
        """The batch with everything that parts need on="batch": the policy's own quantities and other scorers'.

        `stage` limits it to the needs of one field of the record.
        """
        method = self.method.of(learner)
        needs = method.batch_needs() if not stage else getattr(method, stage).needs()
        wanted: dict[str, set[Need]] = {}
        for need in needs:
            if need.on == "batch" and not _known(need, batch):
                wanted.setdefault("policy" if need.scorer == "proximal" else need.scorer, set()).add(need)
        for scorer in sorted(wanted):
            batch = self._ask(scorer, batch, frozenset(wanted[scorer]), learner)
        return batch

    def logp(self, scorer: str, batch: Trajectories) -> torch.Tensor:
        """[B,T] log-probabilities of the batch's actions under a named scorer, without gradient."""
        return self._opinion(scorer, batch, frozenset(), "policy")["logp"]

    def scorer(self, name: str, learner: str = "policy") -> Policy:
        """The policy behind a named scorer."""
        if name in ("policy", "proximal"):
            return self.learner(learner).policy
        key = f"{learner}/{name}"
        if key not in self._scorers:
            raise RunError(f"no scorer is called '{name}'{near(name, [k.partition('/')[2] for k in self._scorers])}")
        return self._scorers[key]

    def reader(self, name: str, learner: str = "policy") -> GivesLogits:
        """The logits of a named scorer, for heads to read, under the scorer's own context."""
        policy = self.scorer(name, learner)
        if not isinstance(policy, GivesLogits):
            raise UserError(f"the scorer '{name}' ({type(policy).__name__}) has no logits for a head to read")
        own = name in ("policy", "proximal")
        return policy if own else InContext(policy, self.scorer_record(name, learner).context)

    def refresh(self, name: str, learner: str = "policy") -> None:
        """Set a scorer of weights="snapshot" to the policy as it is now."""
        self.touched += 1
        self.scorer(name, learner).load_state(self.learner(learner).policy.state())

    def learner(self, name: str = "policy") -> Learner:
        """The handle on what a record trains."""
        if name not in self._learners:
            raise RunError(f"no learner is called '{name}'{near(name, self._learners)}")
        return self._learners[name]

    @property
    def learners(self) -> Mapping[str, Learner]:
        """All learners by name."""
        return self._learners

    @property
    def scorers(self) -> Mapping[str, Policy]:
        """All scorers, as "learner/name"."""
        return self._scorers

    def memories(self, learner: str = "policy") -> Iterator[tuple[str, Memory[Any]]]:
        """(name in `state`, memory) of a learner's record."""
        for name, memory in self.method.of(learner).memory.items():
            yield (name if self.method.of(learner) is self.method else f"{learner}/{name}"), memory

    def rng(self, stream: str) -> torch.Generator:
        """A generator keyed by (seed, stream, step, round): the same after a resume, whatever else was drawn."""
        text = f"{self.settings.seed}|{stream}|{self.step}|{self.round}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
        return torch.Generator().manual_seed(seed)

    # ---- setting up

    def prepare(self) -> None:
        """Make scorers and memories, before the first step.

        Raises UserError when an update cannot serve its objective.
        """
        for learner in self._learners:
            method = self.method.of(learner)
            method.update.check(method.objective, method.aggregate)
            self._make_scorers(learner)
            for name, memory in self.memories(learner):
                self.state[name] = memory.init(self)

    def _make_scorers(self, learner: str) -> None:
        method, handle = replace(self.method.of(learner), others={}), self._learners[learner]
        parts = list(method.walk())
        names = {need.scorer for part in parts for need in part.needs()} - {"policy", "proximal"}
        heads = [need.head for need in method.needs() if need.head is not None]
        names |= {scorer for head in heads for scorer in head.scorers} - {"policy", "proximal"}
        names |= {scorer for part in parts if isinstance(part, Blend) for scorer in part.scorers} | set(method.scorers)
        for name in sorted(names):
            scorer = self.scorer_record(name, learner)
            if scorer.weights == "live":
                policy: Policy = handle.policy
            elif scorer.weights in ("initial", "average", "snapshot"):
                policy = handle.policy.frozen()
            elif scorer.weights:
                policy = self.world.load_policy(scorer.weights)
                policy.temperature = handle.policy.temperature
            else:
                hint = f"say which, with --set scorers.{name}.weights=PATH"
                raise UserError(f"method '{method.name}' asks a model called '{name}'; {hint}")
            if scorer.weights == "average":
                handle.averages = (*handle.averages, (policy, scorer.decay))
            self._scorers[f"{learner}/{name}"] = policy

    def scorer_record(self, name: str, learner: str = "policy") -> Scorer:
        """Whose weights and which context a named scorer has; "reference" is the policy at the start unless given."""
        scorers = self.method.of(learner).scorers
        if name in scorers:
            return scorers[name]
        return Scorer() if name == "reference" else Scorer(weights="")

    def _ask(self, scorer: str, batch: Trajectories, needs: frozenset[Need], learner: str) -> Trajectories:
        opinion = self._opinion(scorer, batch, needs, learner)
        for need in needs:
            if need.quantity in POOLED:
                batch = batch.with_(features={**batch.features, _feature(need): opinion[need.quantity]})
            elif scorer != "policy":
                batch = batch.scored(scorer, **{need.quantity: opinion[need.quantity]})
            elif need.quantity == "logp":
                batch = batch.with_(proximal_logp=opinion.logp)
            else:
                batch = batch.column(**{need.quantity: opinion[need.quantity]})
        return batch

    def _opinion(self, scorer: str, batch: Trajectories, needs: frozenset[Need], learner: str) -> Any:
        policy = self.scorer(scorer, learner)
        if scorer not in ("policy", "proximal"):
            batch = in_context(batch, self.scorer_record(scorer, learner).context)
        extra = frozenset(replace(need, scorer="policy") for need in needs if need.quantity != "logp")
        others = {
            name: self.reader(name, learner) for need in extra if need.head is not None for name in need.head.scorers
        }
        rows = self.settings.rows_per_micro or rows_that_fit(policy, batch)
        return evaluate(policy, batch, extra, others, rows)


def _feature(need: Need) -> str:
    """Where a pooled quantity is filed in `features`: by its own name, or "scorer/quantity" for others' opinions."""
    return need.quantity if need.scorer in ("policy", "proximal") else f"{need.scorer}/{need.quantity}"


def _known(need: Need, batch: Trajectories) -> bool:
    if need.quantity in POOLED:
        return _feature(need) in batch.features
    if need.scorer in ("policy", "proximal"):
        return batch.proximal_logp is not None if need.quantity == "logp" else need.quantity in batch.columns
    return need.quantity in batch.scores.get(need.scorer, {})

"""Small policies, batches and worlds that the tests of the algebra share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from melior.learner import Learner
from melior.method import Method
from melior.objectives import TokenMean
from melior.parts import Aggregate, Evaluation, Needs, Objective
from melior.policies.chunked import other_sources
from melior.policies.policy import GivesLogits, LogitSource, Policy
from melior.policies.table import Table
from melior.prompts import Prompt, Prompts
from melior.run import Run, World
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories


class TinyNetwork(Policy):
    """One causal attention layer with a value head; it remembers how many rows went through it with gradient."""

    likelihood = "exact"

    def __init__(
        self, vocabulary: int = 5, width: int = 6, length: int = 8, dtype: torch.dtype = torch.float64
    ) -> None:
        self.temperature, self.vocabulary, self.length = 1.0, vocabulary, length
        generator = torch.Generator().manual_seed(7)
        shapes = {
            "prompt": (4, width),
            "previous": (vocabulary + 1, width),
            "position": (length, width),
            "query": (width, width),
            "key": (width, width),
            "mix": (width, width),
            "out": (width, vocabulary),
            "value": (width,),
        }
        self.weights = {
            name: (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.6).to(dtype).requires_grad_()
            for name, shape in shapes.items()
        }
        self.with_gradient: list[int] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def evaluate(
        self, batch: Trajectories, needs: Needs = frozenset(), others: Mapping[str, GivesLogits] | None = None
    ) -> Evaluation:
        assert batch.tokens is not None
        if torch.is_grad_enabled():
            self.with_gradient.append(len(batch))
        hidden = self.hidden(batch)
        logits = hidden @ self.weights["out"] / self.temperature
        logp = logits.log_softmax(-1).gather(-1, batch.tokens[..., None]).squeeze(-1)
        extra: dict[str, torch.Tensor] = {}
        for need in sorted(needs, key=lambda need: need.on):  # "batch" first: with gradient wins
            with torch.set_grad_enabled(torch.is_grad_enabled() and need.on == "policy"):
                if need.head is not None:
                    there = batch.present
                    sources = other_sources(needs, others or {}, batch)
                    theirs = {name: sources[name](0, int(there.sum())) for name in need.head.scorers}
                    flat = need.head(logits[there], batch.tokens[there], theirs, hidden[there])
                    extra[need.quantity] = torch.zeros_like(logp).masked_scatter(there, flat)
                elif need.quantity == "value":
                    extra["value"] = hidden @ self.weights["value"]
                elif need.quantity == "hidden":
                    weight = batch.mask / batch.mask.sum(-1, keepdim=True).clamp(min=1)
                    extra["hidden"] = (hidden * weight[..., None]).sum(1)
        return Evaluation(logp, extra)

    def hidden(self, batch: Trajectories) -> torch.Tensor:
        """[B,T,d], each position a function of the prompt and the tokens before it."""
        assert batch.tokens is not None
        w, (b, t) = self.weights, batch.tokens.shape
        prompt = torch.tensor([ids[0] for ids in batch.prompt], dtype=torch.long)
        before = torch.cat([torch.full((b, 1), self.vocabulary), batch.tokens[:, :-1]], 1)
        x = w["prompt"][prompt][:, None] + w["previous"][before] + w["position"][:t]
        affinity = (x @ w["query"]) @ (x @ w["key"]).transpose(1, 2)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        return torch.tanh(affinity.masked_fill(future, -1e9).softmax(-1) @ x @ w["mix"] + x)

    @torch.no_grad()
    def logit_source(self, batch: Trajectories) -> LogitSource:
        logits = (self.hidden(batch) @ self.weights["out"] / self.temperature)[batch.present]
        return lambda first, last: logits[first:last]

    def prepare(self, needs: Needs) -> None:
        return None

    def named_parameters(self) -> Any:
        yield from self.weights.items()

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.weights.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])

    def frozen(self) -> TinyNetwork:
        copy = TinyNetwork(self.vocabulary, self.weights["mix"].shape[0], self.length)
        copy.weights = {name: value.detach().clone() for name, value in self.weights.items()}
        return copy

    def rows_at_once(self, width: int) -> int:
        return 10**6


def language_batch(
    seed: int = 0, dtype: torch.dtype = torch.float64, vocabulary: int = 5, width: int = 6
) -> Trajectories:
    """Eleven rows in groups of 4, 1, 3, 2 and 1, shuffled; ragged lengths, an environment's token inside, one row
    that is masked out, two rows without advantage, user columns of every kind."""
    generator = torch.Generator().manual_seed(seed)
    groups = [3, 3, 3, 3, 9, 5, 5, 5, 1, 1, 40]
    order = torch.randperm(len(groups), generator=generator)
    group = torch.tensor(groups)[order]
    b = len(groups)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    length = torch.randint(2, width, (b,), generator=generator)
    mask = torch.arange(width) < length[:, None]
    mask[:, 1] &= torch.rand(b, generator=generator) < 0.7
    mask[4] = False
    advantage = normal(b, 1).expand(b, width) * mask
    advantage[[1, 7]] = 0.0
    user = normal(b)
    return Trajectories(
        mask=mask,
        group=group,
        prompt=tuple((int(g) % 4, 1) for g in group),
        tokens=torch.randint(0, vocabulary, (b, width), generator=generator) * (torch.arange(width) < length[:, None]),
        behaviour_logp=normal(b, width) * 0.1 - 1.5,
        proximal_logp=normal(b, width) * 0.3 - 1.6,
        reward=normal(b),
        outcome=(normal(b) > 0).to(dtype),
        components={"right": normal(b), "form": normal(b)},
        scores={"reference": {"logp": normal(b, width) * 0.3 - 1.6}},
        columns={
            "length": length,
            "limit": torch.full((b,), width),
            "turn": torch.arange(width).expand(b, width) // 2,
            "right": torch.rand(b, width, generator=generator) < 0.5,
            "returns": normal(b, width),
            "value": normal(b, width),
            "user": user,
        },
        features={"hidden": normal(b, width)},
        objects={"text": tuple(f"row {float(u):.6f}" for u in user)},
        advantage=advantage,
    )


def table_batch(
    rewards: Sequence[float], tokens: Sequence[Sequence[int]], group: Sequence[int], prompt: Sequence[int] = ()
) -> Trajectories:
    """A scored batch of complete rows for a table policy, in float64."""
    t = torch.tensor(tokens)
    return Trajectories(
        mask=torch.ones_like(t, dtype=torch.bool),
        group=torch.tensor(group),
        prompt=tuple((p,) for p in (prompt or group)),
        tokens=t,
        reward=torch.tensor(rewards, dtype=torch.float64),
        outcome=torch.tensor(rewards, dtype=torch.float64),
        columns={"limit": torch.full((len(t),), t.shape[1])},
    )


def random_table(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> Table:
    """A table with random logits."""
    table = Table(*sizes, dtype=dtype, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        table.logits.copy_(torch.randn(table.logits.shape, generator=generator, dtype=torch.float64))
    return table


def learner_of(
    policy: Policy,
    aggregate: Aggregate | None = None,
    rows: int = 0,
    lr: float = 0.1,
    kind: str = "sgd",
    clip: float = 0.0,
) -> Learner:
    """A learner on a policy, by SGD or AdamW."""
    values = [p for _, p in policy.named_parameters()]
    optimizer = torch.optim.SGD(values, lr=lr) if kind == "sgd" else torch.optim.AdamW(values, lr=lr, weight_decay=0.01)
    return Learner(policy, optimizer, aggregate or TokenMean(), rows_per_micro=rows, clip_grad=clip)


def direct_loss(policy: Policy, objective: Objective, batch: Trajectories, aggregate: Aggregate) -> torch.Tensor:
    """The objective with the whole graph of the whole batch, as a textbook would compute it."""
    needs = frozenset(need for need in objective.needs() if need.on == "policy")
    return objective(policy.evaluate(batch, needs), batch, aggregate).value


def direct_gradient(policy: Policy, objective: Objective, batch: Trajectories, aggregate: Aggregate) -> torch.Tensor:
    """Its gradient, flat, zeros where there is none."""
    parameters = [p for _, p in policy.named_parameters()]
    grads = torch.autograd.grad(direct_loss(policy, objective, batch, aggregate), parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, parameters, strict=True)]
    )


class HandMadeWorld(World):
    """A world that hands out a ready-made batch and judges it by a given reward."""

    def __init__(self, batch: Trajectories | None = None) -> None:
        self.batch, self.judged = batch, 0

    def next_prompts(self, run: Run, n: int | None, split: str) -> Prompts:
        return [Prompt(slot, (slot,)) for slot in range(n or 2)]

    def sample(self, run: Run, prompts: Prompts, n: int, policy: str, blend: Any, greedy: bool) -> Trajectories:
        assert self.batch is not None
        return self.batch

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        self.judged += 1
        return batch

    def figures(self, run: Run, batch: Trajectories) -> dict[str, float]:
        return {}

    def load_policy(self, path: str) -> Policy:
        return random_table(4, 8, 5, seed=len(path))


def run_of(method: Method, policy: Policy, batch: Trajectories | None = None, **settings: Any) -> Run:
    """A prepared run of one learner in a hand-made world."""
    policy.prepare(method.needs())
    learner = learner_of(policy, method.aggregate, kind="adamw")
    run = Run(method, LanguageSettings(**settings), HandMadeWorld(batch), {"policy": learner})
    run.prepare()
    return run


def draw(table: Table, n: int, length: int, generator: torch.Generator) -> Trajectories:
    """n completions of every prompt of a table, unscored, with the sampler's own log-probabilities."""
    prompts = [(p,) for p in range(table.logits.shape[0])]
    decoder = table.decoder(prompts, n)
    logits, tokens, logps = decoder.start(), [], []
    for t in range(length):
        logp = (logits / table.temperature).log_softmax(-1)
        token = torch.multinomial(logp.exp(), 1, generator=generator).squeeze(1)
        tokens.append(token)
        logps.append(logp.gather(1, token[:, None]).squeeze(1))
        if t + 1 < length:
            logits = decoder.step(token)
    rows = [p for p in range(len(prompts)) for _ in range(n)]
    return Trajectories(
        mask=torch.ones(len(rows), length, dtype=torch.bool),
        group=torch.tensor(rows),
        prompt=tuple((p,) for p in rows),
        tokens=torch.stack(tokens, 1),
        behaviour_logp=torch.stack(logps, 1),
        columns={"limit": torch.full((len(rows),), length)},
    )


def rewarded(batch: Trajectories, **components: torch.Tensor) -> Trajectories:
    """A batch with reward components, not yet combined; the first is the outcome."""
    return batch.with_(components=components, outcome=next(iter(components.values())))

"""The world of text: prompts from data or a task, completions from the sampler, rewards from functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import torch

from melior.engines.local import LocalSampler
from melior.engines.protocol import Drawn, Order, Sampler
from melior.errors import RunError, UserError, near
from melior.parts import Blend
from melior.policies.policy import Policy, TextPolicy
from melior.prompts import Prompt, Prompts
from melior.rewards.runner import RewardRunner
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from melior.worlds.figures import batch_figures, held_out_figures

Row = Mapping[str, Any]
ROUND = 2**20  # group ids of one round of sampling: more than a curriculum selects at a time
PROBED, PROBE_SIBLINGS, PROBE_TOKENS = 4, 4, 32  # of what a sampler elsewhere is tried on before the run


@runtime_checkable
class Rows(Protocol):
    """Training rows by position, without end."""

    def take(self, position: int, n: int) -> Sequence[tuple[int, Row]]:
        """(row number, row) at positions `position` to `position + n - 1`; a function of the arguments alone."""
        ...


@dataclass
class TextWorld:
    """Prompts, sampling and rewards of a language run.

    Attributes:
        settings: the run's settings.
        train: the training rows; None for an evaluation.
        held_out: the rows of evaluations.
        render: makes a prompt of (slot, row number, row).
        rewards: the reward functions.
        weights: component -> weight.
        outcome: the component that decides a pass; "" for the weighted sum.
        loader: makes a policy of a path, for scorers.
        columns: the user's columns, and whether every row holds a number there; those are tensors, others objects.
        sampler: who draws the completions.
        position: training rows taken so far.
        example: one completion of the last evaluation, to be shown.
    """

    settings: LanguageSettings
    train: Rows | None
    held_out: Sequence[Row]
    render: Callable[[int, int, Row], Prompt]
    rewards: RewardRunner
    weights: Mapping[str, float]
    outcome: str
    loader: Callable[[str], Policy]
    columns: Mapping[str, bool]
    sampler: Sampler = field(default_factory=LocalSampler)
    position: int = 0
    example: Trajectories | None = None

    def __post_init__(self) -> None:
        names = [function.name for function in self.rewards.functions]
        if self.outcome and self.outcome not in names:
            raise UserError(f"outcome '{self.outcome}' is no reward of this run{near(self.outcome, names)}")
        self._calls: dict[tuple[int, int], int] = {}
        self._judged: dict[int, list[tuple[int, Mapping[str, float]]]] = {}
        self._held: tuple[str, int, int] | None = None  # learner, version and move of the weights the sampler has

    def start(self, run: Run) -> tuple[str, ...]:
        """Make a sampler elsewhere ready, on a few prompts of the run; returns what the user should know of it."""
        if not self.sampler.elsewhere:
            return ()
        position = self.state()
        prompts = self.next_prompts(run, PROBED)
        self.load_state(position)
        tokens, actor = min(PROBE_TOKENS, self.settings.max_tokens), run.learner().policy
        probe = self._order(prompts, PROBE_SIBLINGS, "probe", (0, 0), max_tokens=tokens)
        notes = self.sampler.start(actor, probe)  # type: ignore[arg-type]
        self._held = ("policy", run.version, run.learner().moves)
        return notes

    # ---- prompts

    def next_prompts(self, run: Run, n: int | None = None, split: str = "train") -> Prompts:
        """See `World.next_prompts`."""
        count = self.settings.prompts if n is None else n
        if split != "train":
            rows = list(enumerate(self.held_out[:count]))
        else:
            assert self.train is not None, "this world has no training rows"
            rows = list(self.train.take(self.position, count))
            self.position += count
        return [self.render(slot, index, row) for slot, (index, row) in enumerate(rows)]

    # ---- completions

    def sample(
        self,
        run: Run,
        prompts: Prompts,
        n: int,
        policy: str = "policy",
        blend: Blend | None = None,
        greedy: bool = False,
        stream: str = "",
    ) -> Trajectories:
        """See `World.sample`. Every call within a step has random numbers of its own, the same in every run."""
        if not stream:
            key = (run.step, run.round)
            self._calls = {key: self._calls.get(key, 0) + 1}
            stream = f"sample-{self._calls[key]}"
        keyed = (0, 0) if stream.startswith("eval") else (run.step, run.round)
        actor: Any = run.learner(policy).policy
        evaluating = stream.startswith("eval")
        others = {name: run.scorer(name, policy) for name in (blend.scorers if blend else ())}
        truncation = {"top_p": self.settings.top_p, "top_k": self.settings.top_k} if evaluating else {}
        order = self._order(prompts, n, stream, keyed, greedy=greedy, blend=blend, others=others, run=run, **truncation)
        held = (policy, run.version, run.learner(policy).moves)
        if held != self._held:
            self.sampler.sync(actor, run.version)
            self._held = held
        drawn = self.sampler.sample(actor, order)
        group = torch.tensor([run.round * ROUND + prompt.slot for prompt in prompts for _ in range(n)])
        computed = {need.quantity for need in run.method.needs()}
        return self._trajectories(prompts, n, group, drawn, actor, RESERVED | computed)

    def _order(self, prompts: Prompts, n: int, stream: str, keyed: tuple[int, int], **more: Any) -> Order:
        """n completions of each prompt as the settings want them."""
        s = self.settings
        more = {"max_tokens": s.max_tokens, "temperature": s.temperature, "stop": s.stop, **more}
        ids, slots = [prompt.ids for prompt in prompts], [prompt.slot for prompt in prompts]
        return Order(ids, n, slots, s.seed, stream, *keyed, **more)

    def _trajectories(
        self, prompts: Prompts, n: int, group: torch.Tensor, drawn: Drawn, policy: TextPolicy, taken: Set[str]
    ) -> Trajectories:
        sampled = drawn.sampled
        present = torch.arange(sampled.tokens.shape[1]) < sampled.length[:, None]
        endless = not policy.stop_ids and not self.settings.stop
        truncated = torch.zeros_like(sampled.truncated) if endless else sampled.truncated
        mask = present & ~truncated[:, None] if self.settings.truncated == "mask" else present
        each = [prompt for prompt in prompts for _ in range(n)]
        texts = [
            policy.decode(tokens[:length])
            for tokens, length in zip(sampled.tokens.tolist(), sampled.length.tolist(), strict=True)
        ]
        numbers, objects = self._user_columns([prompt.row for prompt in each], taken)
        return Trajectories(
            mask=mask,
            group=group,
            prompt=tuple(prompt.ids for prompt in each),
            tokens=sampled.tokens,
            behaviour_logp=sampled.logp,
            columns={
                **numbers,
                "length": sampled.length,
                "limit": torch.full_like(sampled.length, self.settings.max_tokens),
                "truncated": truncated,
                "version": drawn.version,
                "slot": torch.tensor([prompt.slot for prompt in each]),
                "sibling": torch.arange(n).repeat(len(prompts)),
            },
            objects={
                **objects,
                "text": tuple(texts),
                "prompt_text": tuple(prompt.text for prompt in each),
                "source": tuple(each),
            },
        )

    def _user_columns(
        self, rows: Sequence[Row], taken: Set[str]
    ) -> tuple[dict[str, torch.Tensor], dict[str, tuple[Any, ...]]]:
        """The user's columns as tensors and as objects; names that are taken get "row_" before them."""
        numbers: dict[str, torch.Tensor] = {}
        objects: dict[str, tuple[Any, ...]] = {}
        for name in dict.fromkeys([*self.columns, *(name for row in rows for name in row)]):
            own, values = f"row_{name}" if name in taken else name, tuple(row.get(name) for row in rows)
            if self.columns.get(name):
                numbers[own] = torch.tensor(values, dtype=torch.float64)
            else:
                objects[own] = values
        return numbers, objects

    # ---- rewards

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        """See `World.judge`."""
        if batch.components:
            return batch
        sources: Sequence[Prompt] = batch.objects["source"]
        texts = [source.prefill + text for source, text in zip(sources, batch.objects["text"], strict=True)]
        assert batch.tokens is not None
        ids = [tokens[:length] for tokens, length in zip(batch.tokens.tolist(), batch.length.tolist(), strict=True)]
        chat = [isinstance(source.row.get("prompt"), list) for source in sources]
        completions = [
            [{"role": "assistant", "content": text}] if talks else text for text, talks in zip(texts, chat, strict=True)
        ]
        asked = [source.row.get("prompt", source.text) for source in sources]
        state = SimpleNamespace(global_step=run.step, max_steps=self.settings.steps)
        result = self.rewards([source.row for source in sources], asked, completions, ids, state)
        # What the functions reported besides, of every call within the step.
        self._judged = {run.step: [*self._judged.get(run.step, []), (len(texts), result.metrics)]}
        components = {name: torch.tensor(values) for name, values in result.components.items()}
        reported = {name: tuple(values) for name, values in result.columns.items()}
        batch = batch.with_(components=components, weights=self.weights, objects={**batch.objects, **reported})
        return batch.with_(outcome=self._outcome(batch))

    def _outcome(self, batch: Trajectories) -> torch.Tensor:
        from melior.rewards.combine import weighted_sum

        return batch.components[self.outcome] if self.outcome else weighted_sum(batch)

    # ---- figures

    def evaluate(self, run: Run, split: str = "test", seed: int = 0) -> Mapping[str, Any]:
        """See `World.evaluate`. Random numbers are the same at every step, so that evaluations are comparable."""
        if not self.settings.eval_prompts:
            return {}
        prompts = self.next_prompts(run, self.settings.eval_prompts, split)
        if not prompts:
            raise RunError("there are no held-out rows to evaluate on; give eval_data or an eval_fraction")
        samples = max(self.settings.eval_k)
        batch = self.judge(run, self.sample(run, prompts, samples, stream=f"eval-{seed}"))
        self._judged = {}
        self.example = batch.rows([0])
        return held_out_figures(batch, self.settings.eval_k, self.settings.pass_at)

    def figures(self, run: Run, batch: Trajectories) -> Mapping[str, float]:
        """See `World.figures`."""
        figures = batch_figures(batch, self.settings.pass_at) | _merged(self._judged.get(run.step, []))
        if self.sampler.elsewhere and bool(batch.present.any()):
            figures["version_lag"] = float(run.version - batch.columns["version"][batch.present].min())
        return figures

    # ---- the rest of the protocol

    def load_policy(self, path: str) -> Policy:
        """See `World.load_policy`."""
        return self.loader(path)

    def envs(self) -> Any:
        """Text has no environments."""
        raise RunError("this run acts on text and has no environments")

    def state(self) -> Mapping[str, Any]:
        """The position in the data."""
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put the position back."""
        self.position = int(state["position"])
        self._calls, self._judged = {}, {}


# Columns that the world and the parts write; a user's column of such a name is kept as "row_NAME".
RESERVED = (
    {"text", "prompt_text", "source", "length", "limit", "truncated", "version", "slot", "sibling"}
    | {
        "logp",
        "entropy",
        "hidden",
        "value",
        "next_value",
        "cut",
        "returns",
        "turn",
        "level",
        "greedy",
        "prediction",
        "running_mean",
    }
    | {f.name for f in fields(Trajectories)}
)


def _merged(calls: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """What reward functions reported in several calls: counts are added, other figures are means over completions."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for _, metrics in calls for name in metrics):
        there = [(size, metrics[name]) for size, metrics in calls if name in metrics]
        total = sum(size for size, _ in there)
        counted = name.endswith(("_timeouts", "_failures"))
        merged[name] = sum(value * (1 if counted else size / total) for size, value in there)
    return merged


def columns_of(rows: Sequence[Row]) -> dict[str, bool]:
    """Every column that one of these rows has, and whether all rows have a number in it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: all(_is_number(row.get(name)) for row in rows) for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

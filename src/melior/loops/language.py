"""Language runs: settings and objects become a `Run` over text, and the run a `Trainee`."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from melior.data import Renderer
from melior.data import columns_of as shared_columns
from melior.data.prompts import unknown_note
from melior.engines.agreement import gap_warning
from melior.engines.choose import choose_sampler, refuse_unserved
from melior.engines.local import LocalSampler
from melior.engines.protocol import Sampler
from melior.errors import RunError, UserError
from melior.learner import Learner
from melior.loops.given import Given
from melior.loops.preview import example_text, language_preview
from melior.loops.trainee import RunTrainee
from melior.method import Method
from melior.optimizers import make_optimizer
from melior.policies.policy import TextPolicy
from melior.policies.saved_table import fill_table, is_table
from melior.policies.table import Table
from melior.prompts import Prompt
from melior.rewards.functions import RewardFunction, resolve
from melior.rewards.runner import RewardRunner
from melior.run import Run
from melior.settings import LanguageSettings, given_as_objects
from melior.storage.folder import RunFolder
from melior.storage.rollouts import RolloutWriter
from melior.tasks import Task, bundled_model, get_task
from melior.worlds.rows import Row, Source, open_source
from melior.worlds.text import TextWorld, columns_of

SETTINGS = LanguageSettings
RENDERED_FIRST = 1000  # rows at most whose prompts are checked before the run, besides those it begins with


def trainee(method: Method, settings: LanguageSettings, given: Given) -> LanguageTrainee:
    """A language run, ready for the outer loop."""
    return LanguageTrainee(build(method, settings, given))


def build(method: Method, settings: LanguageSettings, given: Given | None = None) -> Run:
    """A prepared run of the method: model, data and rewards loaded and checked against each other."""
    given = given or Given()
    refuse_idle_settings(settings, given)
    sampler = choose_sampler(settings)
    uses_task = given.data is None and not settings.data
    task = get_task(settings.task) if settings.task and uses_task else None
    source = open_source(settings, task, given.data, given.eval_data)
    rewards, weights, outcome = _rewards(settings, task, given.reward)
    rewards.check(shared_columns(source.sample), source.sample)
    # A model object is trained in place, so every further learner has one of its own, taken before anything changes it.
    models = {name: copy.deepcopy(given.model) for name in method.others}
    policy, render = _policy(settings, task, given.model)
    refuse_unserved(sampler, method, policy)
    first = [render(slot, slot, row) for slot, row in enumerate(rendered_first(source, settings))]
    learners = {"policy": _learner(method, settings, policy)}
    for name, other in method.others.items():
        learners[name] = _learner(other, settings, _policy(settings, task, models[name])[0])
    world = TextWorld(
        settings,
        source.train,
        source.held_out,
        _during_the_run(render),
        rewards,
        weights,
        outcome,
        loader=lambda path: _policy(replace(settings, model=path), task, None)[0],
        columns=columns_of(source.sample),
        sampler=sampler,
    )
    check_likelihood(method, policy)
    run = Run(method, settings, world, learners)
    run.notes = source.notes + _warnings(method, settings) + _pass_note(weights, outcome, settings.pass_at)
    run.notes += unknown_note(getattr(policy, "tokenizer", None), [(prompt.ids, prompt.text) for prompt in first])
    run.prepare()
    run.notes += world.start(run)
    return run


def rendered_first(source: Source, settings: LanguageSettings) -> Iterator[Row]:
    """Rows whose prompts are rendered before anything runs: all of a small data set.

    Of a large one, for which that would take minutes, rows spread over it, those of the first step and those of the
    evaluations; the others are rendered when it is their turn.
    """
    every = -(-len(source.sample) // RENDERED_FIRST)
    yield from source.sample[::every]
    if every > 1:
        yield from (row for _, row in source.train.take(0, settings.prompts))
        yield from source.held_out[: settings.eval_prompts]


def _during_the_run(render: Callable[[int, int, Row], Prompt]) -> Callable[[int, int, Row], Prompt]:
    """The same, where a row that cannot be rendered is a failure of the run that has begun."""

    def rendered(slot: int, index: int, row: Row) -> Prompt:
        try:
            return render(slot, index, row)
        except UserError as error:
            raise RunError(str(error)) from error

    return rendered


class LanguageTrainee(RunTrainee):
    """A language run as the outer loop sees it: it keeps rollouts, and a reward that fails leaves it as it was."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._rollouts: RolloutWriter | None = None
        self._sampler: Sampler = getattr(run.world, "sampler", LocalSampler())  # a world may draw by itself
        self._warned = False
        weakref.finalize(self, self._sampler.close)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided on the user's behalf, and what looks odd."""
        unwritten = RolloutWriter(Path(), self.run.settings.keep_rollouts).note
        return (*([unwritten] if unwritten else []), *self.run.notes)

    def advance(self) -> dict[str, float]:
        """One step of the line."""
        position, before = self.run.world.state(), self._changes()
        try:
            metrics = super().advance()
        except BaseException:  # Ctrl-C too: whoever waits for a server can leave with everything learnt so far
            self.intact = self._changes() == before
            for learner in self.run.learners.values():
                learner.zero_grad()  # what a failed pass has added
            if self.intact:
                self.run.world.load_state(position)
            raise
        sampled = (*self.run.batches.values(), *self.run.dropped.values())
        metrics["tokens"] = float(sum(int(batch.length.sum()) for batch in sampled))
        self._watch_gap(metrics)
        return metrics

    def _watch_gap(self, metrics: Mapping[str, float]) -> None:
        """Says once when what a sampler elsewhere draws is not what the trainer takes it for."""
        if self._sampler.elsewhere and not self._warned and (said := gap_warning(metrics, self._sampler.name)):
            self._warned = True
            self.run.notes += (said,)

    def preview(self, short: bool = False) -> str:
        """What the run is about to do, in words."""
        return language_preview(self.run, short)

    def example(self) -> str:
        """One completion of the last evaluation with its mask and rewards, in words."""
        seen = self.run.world.example  # type: ignore[attr-defined]
        return "" if seen is None else example_text(self.run, seen)

    def record(self, folder: RunFolder) -> None:
        """The step's rollouts, as Parquet; those that the curriculum did not keep in files of their own."""
        if self._rollouts is None:
            self._rollouts = RolloutWriter(folder.path, self.run.settings.keep_rollouts)
        dropped = {f"{name}-dropped": batch for name, batch in self.run.dropped.items()}
        for name, batch in {**self.run.batches, **dropped}.items():
            if len(batch):
                self._rollouts.write(self.run.step, batch, name)
        self.run.batches.clear()
        self.run.dropped.clear()

    def forget(self, folder: RunFolder) -> None:
        """Rollouts of later steps are removed."""
        RolloutWriter(folder.path, self.run.settings.keep_rollouts).cut(self.run.step)

    def _changes(self) -> tuple[int, ...]:
        """Numbers that differ once any weights, memory or scorer changed."""
        moves = (learner.moves for learner in self.run.learners.values())
        return (self.run.version, self.run.touched, *moves)


def refuse_idle_settings(settings: LanguageSettings, given: Given) -> None:
    """Refuses settings that contradict each other, that nothing would read, or that stand for missing objects."""
    missing = [name for name in given_as_objects(settings) if getattr(given, name) is None]
    if missing:
        raise UserError(
            f"this run was given its {' and '.join(missing)} in Python, where no file holds "
            f"{'it' if len(missing) == 1 else 'them'}; give the same again from Python: "
            + ", ".join(f"{name}=..." for name in missing)
        )
    if settings.steps > 0 and (settings.top_p < 1 or settings.top_k > 0):
        raise UserError(
            "top_p and top_k truncate the sampler only in evaluations: training would have to renormalize the policy "
            "over a set of tokens that moves; leave them at 1 and 0, or set steps to 0"
        )
    plain = LanguageSettings()
    if given.data is None and not settings.data:
        of_data = ("prompt_column", "prompt_template", "answer_column", "eval_data")
        idle = [name for name in of_data if getattr(settings, name) != getattr(plain, name)]
        if idle:
            raise UserError(f"{', '.join(idle)} would have no effect on the task '{settings.task}'; give data")
    if is_table(settings.model) and given.model is None:
        of_models = ("lora", "gradient_checkpointing", "system", "prefill", "template_args", "stop")
        idle = [name for name in of_models if getattr(settings, name) != getattr(plain, name)]
        if idle or settings.dtype == "bfloat16":
            raise UserError(f"the tabular policy has no {', '.join(idle) or 'bfloat16'}")
    if not settings.eval_prompts:
        idle = [name for name in ("eval_every", "keep_best", "eval_data") if getattr(settings, name)]
        if idle:
            raise UserError(f"{', '.join(idle)} would have no effect: eval_prompts is 0, so nothing is evaluated")
    if "" in settings.stop:
        raise UserError("a stop string is empty; it would end every completion at once")
    if settings.lora_alpha and not settings.lora:
        raise UserError("lora_alpha would have no effect without lora")
    if settings.warmup > settings.steps > 0:
        raise UserError(f"warmup is {settings.warmup}, longer than the run's {settings.steps} steps")


def check_likelihood(method: Method, policy: Any) -> None:
    """Refuses parts that need an exact likelihood for a policy that has none."""
    if policy.likelihood == "exact":
        return
    strict = sorted({type(part).__name__ for part in method.walk() if part.exact_likelihood})
    if strict:
        raise UserError(
            f"{', '.join(strict)} of method '{method.name}' need an exact likelihood, and this policy's is "
            f"{policy.likelihood}; choose other terms"
        )


def _warnings(method: Method, settings: LanguageSettings) -> tuple[str, ...]:
    alone = [type(part).__name__ for part in method.walk() if getattr(part, "needs_siblings", False)]
    if settings.n == 1 and alone:
        return (
            f"n is 1: {alone[0]} compares an answer with its siblings, and there are none, so every advantage is 0 "
            "(choose n >= 2, or a method with a baseline of its own such as remax)",
        )
    return ()


def _pass_note(weights: Mapping[str, float], outcome: str, pass_at: float) -> tuple[str, ...]:
    if outcome or len(weights) < 2:
        return ()
    return (
        f"a completion passes when the weighted sum of {', '.join(weights)} reaches {pass_at:g}; "
        f"--set settings.outcome={next(iter(weights))} would let one of them decide",
    )


def _learner(method: Method, settings: LanguageSettings, policy: TextPolicy) -> Learner:
    policy.prepare(method.needs())
    optimizer = make_optimizer(dict(policy.named_parameters()), settings)
    return Learner(
        policy,
        optimizer,
        method.aggregate,
        rows_per_micro=settings.rows_per_micro,
        clip_grad=settings.clip_grad,
    )


def _rewards(
    settings: LanguageSettings, task: Task | None, given: Sequence[Callable[..., Any] | str] | None
) -> tuple[RewardRunner, Mapping[str, float], str]:
    specs: Sequence[Any] = given if given is not None else settings.reward
    if settings.reward_weights and len(settings.reward_weights) != len(specs):
        raise UserError(f"reward_weights has {len(settings.reward_weights)} numbers for {len(specs)} rewards")
    if specs:
        weights = settings.reward_weights or (1.0,) * len(specs)
        functions = [resolve(spec, weight) for spec, weight in zip(specs, weights, strict=True)]
        outcome = settings.outcome
    elif task is not None:
        functions = [_task_reward(task, name) for name in task.rewards]
        outcome = settings.outcome or task.outcome
    else:
        raise UserError("no reward: give reward functions (path.py:name, module:name, or built-in such as numeric)")
    runner = RewardRunner(functions, settings.reward_workers, settings.reward_timeout)
    return runner, {function.name: function.weight for function in runner.functions}, outcome


def _task_reward(task: Task, name: str) -> RewardFunction:
    function = resolve(task.rewards[name], task.weights.get(name, 1.0), name=name)
    return replace(function, isolated=True, on_timeout="score") if task.isolated else function


def _policy(
    settings: LanguageSettings, task: Task | None, model: Any
) -> tuple[TextPolicy, Callable[[int, int, Row], Prompt]]:
    if model is None and is_table(settings.model):
        return _table(settings, task)
    policy, tokenizer = _load_model(settings.model, settings, model)
    renderer = Renderer(
        tokenizer,
        system=settings.system or None,
        template_args=dict(settings.template_args),
        prefill=settings.prefill,
        chat=settings.chat,
        max_prompt_tokens=settings.max_prompt_tokens or None,
        context=policy.context,
        max_tokens=settings.max_tokens,
    )

    def render(slot: int, index: int, row: Row) -> Prompt:
        rendered = renderer.render(row)
        return Prompt(slot, rendered.ids, rendered.text, row, rendered.prefill, rendered.messages, index)

    return policy, render


def _table(settings: LanguageSettings, task: Task | None) -> tuple[TextPolicy, Callable[[int, int, Row], Prompt]]:
    if task is None or not task.vocabulary:
        raise UserError("the tabular policy plays tasks with a fixed set of prompts and symbols, such as lock")
    dtype = torch.float64 if settings.dtype == "float64" else torch.float32
    prompts = len(task.fixed)
    table = Table(prompts, settings.max_tokens, task.vocabulary, settings.table, settings.temperature, dtype)
    if settings.model != "table":
        fill_table(table, Path(settings.model))

    def render(slot: int, index: int, row: Row) -> Prompt:
        return Prompt(slot, (int(row["index"]),), str(row["prompt"]), row, index=index)

    return table, render


def _load_model(path: str, settings: LanguageSettings, model: Any) -> tuple[TextPolicy, Any]:
    from melior.policies.loading import load_causal_lm

    policy, tokenizer = load_causal_lm(
        model if model is not None else (str(bundled_model()) if path == "bundled" else path),
        dtype=settings.dtype,
        device=settings.device,
        lora=settings.lora,
        lora_alpha=settings.lora_alpha,
        gradient_checkpointing=settings.gradient_checkpointing,
        stop=settings.stop,
        temperature=settings.temperature,
    )
    return policy, tokenizer

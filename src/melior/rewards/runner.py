"""Score completions with several reward functions: in this process under a watchdog, or in worker processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

from melior.data.row import place_of
from melior.errors import RunError, UserError
from melior.rewards.answers import contains_number
from melior.rewards.calling import RewardBatch, RewardFault, Scores, invoke, shortened
from melior.rewards.functions import RewardFunction, check_columns, parameters_of, reference_of, with_unique_names
from melior.rewards.verifiers import BUILT_IN
from melior.rewards.workers import Reply, WorkerPool

# A verifier that runs isolated has little to do: what takes longer than this is an endless computation.
VERIFIER_LIMIT_S = 5.0


@dataclass(frozen=True)
class RewardResult:
    """components: name to one value for each completion, NaN where the function returned None.

    metrics: `reward/NAME_timeouts` and `reward/NAME_failures` (counts; for functions whose timeouts are scored 0), and
    `reward/NAME/KEY` (mean over the completions that have it) for numbers that a function of verl's style adds, or
    (mean over its calls) that a function of TRL's style gives to `log_metric`.

    columns: `reward/NAME/KEY` to one value for each completion, which a function of TRL's style gave to `log_extra`.
    """

    components: dict[str, list[float]]
    metrics: dict[str, float]
    columns: dict[str, list[Any]] = field(default_factory=dict)


class RewardRunner:
    """The reward functions of a run, called on every batch of completions.

    functions: from `resolve`; equal names get a number. `self.functions` has the final names.
    workers: 0 calls the user's functions in this process, under a watchdog (see `watchdog`). N > 0 calls everything in
        N killable processes, one completion a call (functions with `batch`: one batch a call); what goes there must be
        JSON. Isolated verifiers run in a process in any case, started at the first need.
    timeout_s: seconds that one call may take, from when it begins; `math.inf` for no limit. In this process one call of
        a function in TRL's style is for the whole batch. Isolated verifiers have 5 s at most.

    A call that takes too long ends the run with a `RunError`, unless the function says `on_timeout="score"`: then the
    completion gets 0 and is counted, and so it is if it brings down the worker process. A function in TRL's style that
    says so is called for one completion at a time.
    """

    def __init__(self, functions: Sequence[RewardFunction], workers: int = 0, timeout_s: float | int = 60.0) -> None:
        if workers < 0:
            raise UserError(f"the number of reward workers is {workers}; give 0 for none, or a positive number")
        if not timeout_s > 0:
            raise UserError(f"the time limit of rewards is {timeout_s} s; it must be positive")
        self.functions = with_unique_names(functions)
        self.workers, self.timeout_s = workers, float(timeout_s)
        away = [f for f in self.functions if workers or f.isolated]
        self._pools = [
            WorkerPool([f for f in away if _is_limited(f)], max(workers, 1), limited=True),
            WorkerPool([f for f in away if not _is_limited(f)], max(workers, 1), limited=False),
        ]

    def check(self, columns: Collection[str], rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Before the run: a `UserError` if a function cannot work with these columns, or the references in `rows`."""
        for function in self.functions:
            check_columns(function, columns)
            if self._is_away(function) and not function.spec:
                raise UserError(
                    f"reward {function.name!r} cannot be loaded in a worker process, as it is no module's function; "
                    "put it into a file and give path.py:NAME, or use no reward workers"
                )
        compared = [f for f in self.functions if f.style == "verifier" and BUILT_IN[f.kind].reference]
        for row in rows if compared else ():
            for function in compared:
                _check_reference(function, reference_of(row, function.column), place_of(row))

    def __call__(
        self,
        rows: Sequence[Mapping[str, Any]],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any],
        trainer_state: Any = None,
    ) -> RewardResult:
        """Score N completions; the arguments are the fields of `RewardBatch`. A function that fails is a `RunError`."""
        batch = RewardBatch(rows, prompts, completions, completion_ids, trainer_state)
        components: dict[str, list[float]] = {}
        metrics: dict[str, float] = {}
        columns: dict[str, list[Any]] = {}
        for function in self.functions:
            counts = {"timeouts": 0, "failures": 0}
            if not len(batch):
                scores = Scores([])
            elif self._is_away(function):
                scores = self._in_workers(function, batch, counts)
            else:
                scores = self._in_process(function, batch, counts)
            components[function.name] = scores.values
            metrics |= {f"reward/{function.name}/{key}": statistics.fmean(v) for key, v in scores.extras.items()}
            columns |= {f"reward/{function.name}/{key}": v for key, v in scores.columns.items()}
            if function.on_timeout == "score":
                metrics |= {f"reward/{function.name}_{what}": float(count) for what, count in counts.items()}
        return RewardResult(components, metrics, columns)

    def close(self) -> None:
        """End the worker processes."""
        for pool in self._pools:
            pool.close()

    def __enter__(self) -> RewardRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_away(self, function: RewardFunction) -> bool:
        return self.workers > 0 or function.isolated

    def _in_process(self, function: RewardFunction, batch: RewardBatch, counts: dict[str, int]) -> Scores:
        if function.on_timeout == "raise":
            return self._invoked(function, batch, range(len(batch)))
        parts = []
        for rows in _calls(function, batch):
            try:
                parts.append(self._invoked(function, _part(batch, rows), rows))
            except RunError as error:
                fault = error.__cause__
                if not (isinstance(fault, RewardFault) and fault.timed_out):
                    raise
                counts["timeouts"] += len(rows)
                parts.append(Scores([0.0] * len(rows)))
        return _joined(parts)

    def _invoked(self, function: RewardFunction, part: RewardBatch, rows: Sequence[int]) -> Scores:
        try:
            return invoke(function, part, self.timeout_s)
        except RewardFault as fault:
            _fail(function, part, rows, fault.how, fault.row, fault)

    def _in_workers(self, function: RewardFunction, batch: RewardBatch, counts: dict[str, int]) -> Scores:
        pool = self._pools[0 if _is_limited(function) else 1]
        limit_s = min(self.timeout_s, VERIFIER_LIMIT_S) if function.isolated else self.timeout_s
        calls = _calls(function, batch)
        number = [f.name for f in pool.functions].index(function.name)
        jobs = [_job(number, function, _part(batch, rows), limit_s) for rows in calls]
        parts = []
        for rows, reply in zip(calls, pool.run(jobs, limit_s), strict=True):
            part, (problem, row) = _part(batch, rows), _problem(reply, limit_s)
            if problem is None:
                values = [math.nan if value is None else value for value in reply.content["values"]]
                parts.append(Scores(values, reply.content["extras"], reply.content["columns"]))
            elif function.on_timeout == "score" and _is_of_the_completion(reply):
                counts["timeouts" if reply.status == "timeout" else "failures"] += len(rows)
                parts.append(Scores([0.0] * len(rows)))
            else:
                _fail(function, part, rows, problem, row, None)
        return _joined(parts)


def _is_limited(function: RewardFunction) -> bool:
    """Whether it works within bounds: built-in verifiers, and what may evaluate the text of a model."""
    return function.style == "verifier" or function.isolated


def _check_reference(function: RewardFunction, reference: Any, place: str) -> None:
    several = reference if isinstance(reference, (list, tuple)) else [reference]
    if not several or any(one is None for one in several):
        raise UserError(f"reward {function.spec!r}: {place} has no reference answer")
    unread = [one for one in several if function.kind == "numeric" and not contains_number(str(one))]
    if unread:
        raise UserError(
            f"reward {function.spec!r}: the reference of {place} holds no number: {shortened(str(unread[0]), 80)}"
        )


def _calls(function: RewardFunction, batch: RewardBatch) -> list[list[int]]:
    """The rows of each call when completions are judged one at a time, where the function allows that."""
    return [list(range(len(batch)))] if function.batch else [[index] for index in range(len(batch))]


def _part(batch: RewardBatch, rows: Sequence[int]) -> RewardBatch:
    return batch if len(rows) == len(batch) else batch.single(rows[0])


def _joined(parts: Sequence[Scores]) -> Scores:
    extras: dict[str, list[float]] = {}
    for part in parts:
        for key, values in part.extras.items():
            extras.setdefault(key, []).extend(values)
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {name: [v for p in parts for v in p.columns.get(name, [None] * len(p.values))] for name in names}
    return Scores([value for part in parts for value in part.values], extras, columns)


def _problem(reply: Reply, limit_s: float) -> tuple[str | None, int | None]:
    """What went wrong in a worker, and on which row of the call."""
    if reply.status == "timeout":
        return f"took longer than {limit_s:g} s", None
    if reply.status == "died":
        return f"brought down its worker process ({reply.content['how']})", None
    return reply.content.get("fault"), reply.content.get("row")


def _is_of_the_completion(reply: Reply) -> bool:
    """Whether the text itself was too much (time, memory, depth), and not a mistake in the function."""
    return reply.status != "done" or bool(reply.content.get("exhausted"))


def _fail(
    function: RewardFunction,
    part: RewardBatch,
    rows: Sequence[int],
    how: str,
    row: int | None,
    cause: RewardFault | None,
) -> NoReturn:
    if row is None and len(part) == 1:
        row = 0
    if row is None:
        where = f"; which completion is at fault is not known, the first is {shortened(part.text(0))}"
    else:
        where = f", on row {rows[row]}, completion {shortened(part.text(row))}"
    raise RunError(f"reward {function.name!r} {how}{where}") from cause


# ------------------------------------------------------------------------------------------ what crosses the pipe


def _job(number: int, function: RewardFunction, part: RewardBatch, limit_s: float) -> dict[str, Any]:
    columns = _columns_read(function, part)
    state = part.trainer_state
    return {
        "function": number,
        "limit_s": limit_s,
        "rows": [{key: _as_json(row[key], f"column {key!r}") for key in columns if key in row} for row in part.rows],
        "prompts": _as_json(list(part.prompts), "the prompts"),
        "completions": _as_json(list(part.completions), "the completions"),
        "completion_ids": _as_json(list(part.completion_ids), "the token ids"),
        "trainer_state": state and {name: getattr(state, name, None) for name in ("global_step", "max_steps")},
    }


def _columns_read(function: RewardFunction, part: RewardBatch) -> list[str]:
    """The columns that the function looks at; all where it takes any."""
    present = sorted({key for row in part.rows for key in row})
    if function.style == "verifier":
        return [function.column] if function.column else ["answer", "solution", "ground_truth", "reward_model"]
    accepted, rest = parameters_of(function.call)
    read = {*accepted}
    if function.style == "verl":
        read |= {"answer", "solution", "ground_truth", "reward_model", "data_source", "extra_info"}
        rest = False
    return [key for key in present if rest or key in read]


def _as_json(value: Any, where: str) -> Any:
    """The value in JSON's types; what has none is a `RunError`, as nothing is pickled."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as_json(one, where) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one, where) for one in value]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return value.tolist()
    raise RunError(
        f"{where} holds a {type(value).__name__}, which cannot be sent to a reward worker process as JSON; use "
        "no reward workers, or keep the column as text or numbers"
    )

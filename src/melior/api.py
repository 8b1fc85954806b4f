"""The Python entry: train, evaluate, load. The command line is a thin call of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from melior.data.readers import read_rows, rows_digest
from melior.errors import MeliorError, UserError, near
from melior.loops import loop_of
from melior.loops.given import Given
from melior.loops.progress import Progress
from melior.loops.summary import going_on, summary_text
from melior.loops.training import Callback, Trainee, Training
from melior.records.config import config_text, read_config
from melior.records.serialize import fingerprint
from melior.report.after_run import report_of_run
from melior.request import Request, resolve_request, resumed_request
from melior.settings import LanguageSettings, as_sampler, given_as_objects
from melior.storage.checkpoints import checkpoint_step, latest_checkpoint, load_checkpoint
from melior.storage.folder import CONFIG, RunFolder, default_path, refuse_occupied
from melior.storage.trackers import chosen_trackers, trackers

# Arguments that may be objects, where the command can only name things.
OBJECTS = ("model", "data", "eval_data", "reward", "env")

__all__ = ["Callback", "Result", "check", "evaluate", "load", "train"]


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        path: the run folder.
        summary: as in `summary.json`: `before`, `after`, `steps`, `tokens`, `seconds`, `interrupted`.
        trainee: what was trained, live; for a language or control method `trainee.run` is its handle.
    """

    path: Path
    summary: Mapping[str, Any]
    trainee: Trainee

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.path / "model"


def train(
    method: Any = None,
    *,
    model: Any = None,
    data: Any = None,
    eval_data: Any = None,
    reward: Any = None,
    env: Any = None,
    out: str | Path | None = None,
    name: str = "",
    config: str | Path | None = None,
    resume: str | Path | None = None,
    overrides: Sequence[str] = (),
    paper_settings: bool = False,
    tuned: bool = False,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train a policy with a method.

    Args:
        method: a name of the catalogue, "mine.py:MINE", "package.module:NAME", or a record; "grpo" by default.
        model: a folder, hub id or GGUF file, "bundled", "table", or a transformers model (with its tokenizer as a
            pair).
        data: a file, a `datasets` id, or rows as mappings; the bundled task is used when none is given.
        eval_data: held-out rows, likewise.
        reward: a function or its name, or several; see `melior.rewards.functions.resolve`.
        env: a Gymnasium id, a function that makes an environment, or "path.py:function".
        out: the run folder; by default a new one under `runs/`.
        name: the beginning of that folder's name; by default the method's.
        config: a configuration file of an earlier run to start from.
        resume: a run folder to go on with; nothing else is needed then, and only `steps` may grow.
        overrides: exact changes such as "objective.clip.high=0.28".
        paper_settings: adopt the paper's own settings.
        tuned: adopt settings published for the environment.
        callbacks: hooks into steps, evaluations and saves; see `melior.Callback`.
        quiet: print nothing.
        **settings: any field of the settings (`melior.settings`): steps, seed, lr, n, ...

    Returns:
        The run's result. A run that Ctrl-C interrupted has `summary["interrupted"]`.

    Raises:
        UserError: a mistake in the request, before anything ran.
        RunError: a failure during the run; everything up to the last checkpoint is kept.
        Exception: what a part or a callback of the user's raised, with a note that says where the run is saved.
    """
    check_callbacks(callbacks)
    given, values = _objects(model=model, data=data, eval_data=eval_data, reward=reward, env=env)
    if resume is not None:
        # What was not given must not count as given.
        others = {"method": method, "out": out, "name": name, "config": config, "overrides": overrides}
        others |= {"paper_settings": paper_settings, "tuned": tuned}
        asked = values | settings | {key: value for key, value in others.items() if value}
        return _go_on(Path(resume), asked, given, callbacks, quiet)
    request = resolve_request(method, {**values, **settings}, overrides, config, paper_settings, tuned)
    return _begin(request, given, out, name, callbacks, quiet)


def check(method: Any = None, **request: Any) -> str:
    """Look before you spend: what `train` with the same arguments would do, as text; nothing is trained or written."""
    objects = {key: request.pop(key, None) for key in OBJECTS}
    for unused in ("out", "name", "callbacks", "quiet"):
        request.pop(unused, None)
    overrides, config = request.pop("overrides", ()), request.pop("config", None)
    paper, tuned = request.pop("paper_settings", False), request.pop("tuned", False)
    if request.pop("resume", None) is not None:
        raise UserError("a run that goes on does what its config.yaml says; to look at that, give it as config")
    given, values = _objects(**objects)
    resolved = resolve_request(method, {**values, **request}, overrides, config, paper, tuned)
    trainee = _trainee(resolved.record, resolved.settings, given)
    return "\n".join([*resolved.notes, trainee.preview()])


def evaluate(model: Any, *, overrides: Sequence[str] = (), **settings: Any) -> Mapping[str, Any]:
    """Held-out figures of a model or of a finished run, with 95 % intervals.

    Args:
        model: a run folder (its own task and settings are taken), or whatever `train` takes as a model.
        overrides: exact changes such as "settings.pass_at=0.5".
        **settings: task, data, reward, eval_k, eval_prompts, temperature, ... as for `train`. Rows that are given are
            measured on, all of them: `eval_data`, or `data` without it.
    """
    if settings.get("eval_prompts") == 0:
        raise UserError("eval_prompts is 0, but an evaluation needs at least one prompt")
    settings["steps"] = 0  # what training refuses, evaluation may do: truncate the sampler
    rows = settings.pop("eval_data", None)
    rows = settings.pop("data", None) if rows is None else rows
    if rows is not None:  # and not what a run held out
        settings = {"eval_fraction": 0.0, **settings, "data": rows, "eval_data": ""}
    if isinstance(model, str | Path):
        path, checkpoint = Path(model), _checkpoint_of(Path(model))
        if (path / CONFIG).exists():
            return load(path, overrides=overrides, **_measurable(path, settings)).evaluate()
        if checkpoint is not None:
            return _load(checkpoint.parents[1], checkpoint, overrides, settings).evaluate()
    return _trainee_for_evaluation(model, settings, overrides).evaluate()


def load(run: str | Path, *, overrides: Sequence[str] = (), **settings: Any) -> Trainee:
    """What a run trained, as of its newest checkpoint; further settings replace the run's own.

    Whatever the run was given as an object (data, reward, ...) is given again. It samples in this process, wherever the
    run did, unless `sampler` says otherwise.
    """
    return _load(Path(run), None, overrides, settings)


# ---- inside


def _measurable(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings to measure a run with; one that evaluated nothing takes the usual number of prompts."""
    own = read_config(path).settings
    if not isinstance(own, LanguageSettings) or own.eval_prompts:
        return settings
    if own.data and "data" not in settings:
        raise UserError(f"{path} was trained on all its rows (eval_prompts is 0); give others to measure on as data")
    return {"eval_prompts": LanguageSettings.eval_prompts, **settings}


def _load(path: Path, checkpoint: Path | None, overrides: Sequence[str], settings: dict[str, Any]) -> Trainee:
    own = read_config(path).settings
    if own is None:
        raise UserError(f"{path}/config.yaml holds no settings")
    if isinstance(own, LanguageSettings):
        settings = {**as_sampler("local"), **settings}
    given, values = _objects(**{key: settings.pop(key, None) for key in OBJECTS})
    request = resolve_request(None, values | settings, overrides, config=path)
    trainee = _trainee(request.record, request.settings, given)
    taken = checkpoint or latest_checkpoint(path)
    if taken is None:
        raise UserError(f"{path} holds no checkpoint")
    trainee.load(taken / "model", load_checkpoint(taken)["state"])
    return trainee


def _checkpoint_of(model: Path) -> Path | None:
    """The checkpoint that a model folder belongs to, where what it holds needs the run's own task or environment."""
    if not any((model / file).is_file() for file in ("table.safetensors", "policy.json", "networks.json")):
        return None
    checkpoint = model.resolve().parent
    if len(checkpoint.parents) > 1 and (checkpoint.parents[1] / CONFIG).is_file():
        return checkpoint
    if (model / "table.safetensors").is_file():
        return None  # a table can be measured on any task of its shape
    raise UserError(f"{model} holds a control policy without its environment; give the run folder it is from")


def _begin(
    request: Request, given: Given, out: str | Path | None, name: str, callbacks: Sequence[Callback], quiet: bool
) -> Result:
    record, settings = request.record, request.settings
    path = Path(out) if out else default_path(name or record.name, datetime.now())
    refuse_occupied(path)
    chosen_trackers(settings.log_to)
    trainee = _trainee(record, settings, given)
    progress = Progress(settings.steps, quiet)
    for note in (*request.notes, *getattr(trainee, "notes", ())):
        progress.note(note)
    with RunFolder.create(path, config_text(record, settings), fingerprint(record)) as folder:
        training = _training(trainee, settings, folder, progress, callbacks)
        progress.note(trainee.preview(short=True))
        with _saying_what_is_saved(path, given_as_objects(settings)):
            training.start()
            if not quiet and hasattr(trainee, "example"):
                progress.note(trainee.example())
            return _run(training, quiet)


def _go_on(path: Path, asked: Mapping[str, Any], given: Given, callbacks: Sequence[Callback], quiet: bool) -> Result:
    with RunFolder.open(path) as folder:
        request = resumed_request(path, asked)
        trainee = _trainee(request.record, request.settings, given)
        progress = Progress(request.settings.steps, quiet)
        for note in request.notes:
            progress.note(note)
        training = _training(trainee, request.settings, folder, progress, callbacks)
        with _saying_what_is_saved(path, given_as_objects(request.settings)):
            training.resume()
            if asked.keys() & {"steps", "sampler"}:
                folder.write_text(CONFIG, config_text(request.record, request.settings))
            return _run(training, quiet)


def _training(
    trainee: Trainee, settings: Any, folder: RunFolder, progress: Progress, callbacks: Sequence[Callback]
) -> Training:
    watched, notes = trackers(settings.log_to, folder.path, settings)
    for note in notes:
        progress.note(note)
    return Training(trainee, settings, folder, progress, watched, callbacks)


@contextmanager
def _saying_what_is_saved(path: Path, objects: Sequence[str]) -> Iterator[None]:
    """What a part or a callback of the user's raises keeps its traceback, and is told where the run is saved."""
    try:
        yield
    except MeliorError:
        raise
    except Exception as error:
        newest = latest_checkpoint(path)
        if newest is not None:
            step = checkpoint_step(newest)
            error.add_note(f"The run is saved at step {step}; go on with: {going_on(path, objects)}")
        raise


def _run(training: Training, quiet: bool) -> Result:
    summary = training.run()
    wanted = training.settings.report
    report = report_of_run(training.folder.path, training.progress.note) if wanted else None
    if not quiet:
        print(summary_text(summary, training.folder.path, given_as_objects(training.settings)))
        if report is not None:
            print(f"read it: {report}")
    return Result(training.folder.path, summary, training.trainee)


def _trainee(record: Any, settings: Any, given: Given | None) -> Trainee:
    return loop_of(record).trainee(record, settings, given or Given())


def _trainee_for_evaluation(model: Any, settings: Mapping[str, Any], overrides: Sequence[str]) -> Trainee:
    objects = {key: settings.get(key) for key in ("data", "eval_data", "reward")}
    rest = {key: value for key, value in settings.items() if key not in objects}
    given, values = _objects(model=model, **objects)
    # A record without a reference, so that nothing but the model itself is loaded.
    request = resolve_request("reinforce", {**values, "eval_fraction": 0.0, **rest, "steps": 0}, overrides)
    return _trainee(request.record, request.settings, given)


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """A UserError for a callback that is not of Melior's kind."""
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    for callback in callbacks:
        lacking = [name for name in hooks if not callable(getattr(callback, name, None))]
        if lacking:
            raise UserError(
                f"the callback {type(callback).__name__} has no {', '.join(lacking)}; derive it from melior.Callback "
                f"(its hooks are {', '.join(hooks)})"
            )
        unheard = [name for name in dir(callback) if name.startswith("on_") and name not in hooks]
        if unheard:
            raise UserError(
                f"nothing calls {unheard[0]} of the callback {type(callback).__name__}{near(unheard[0], hooks)} "
                f"(the hooks are {', '.join(hooks)})"
            )


def _objects(**arguments: Any) -> tuple[Given, dict[str, Any]]:
    """Splits arguments into objects and settings: paths and names are settings, everything else is an object."""
    objects: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        if value is None:
            continue
        if key == "reward":
            several = list(value) if isinstance(value, list | tuple) else [value]
            values["reward"] = tuple(spec if isinstance(spec, str) else _described(spec) for spec in several)
            if not all(isinstance(spec, str) for spec in several):
                objects["reward"] = several
        elif isinstance(value, str | Path):
            values[key] = str(value)
        elif key in ("data", "eval_data"):
            objects[key] = rows = read_rows(value)
            values[key] = f"<{len(rows)} rows, {rows_digest(rows)}>"
        else:
            objects[key] = value
            values[key] = _described(value)
    return Given(**objects), values


def objects_and_settings(**arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits `model`, `data`, `eval_data`, `reward` and `env` into those that are objects, and settings.

    The settings hold a name for each object, as a configuration does.
    """
    given, values = _objects(**arguments)
    return {key: getattr(given, key) for key in OBJECTS if getattr(given, key) is not None}, values


def _described(value: Any) -> str:
    """How an object stands in the configuration, where it cannot be written down."""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"<{getattr(value, '__module__', type(value).__module__)}.{name}>"

"""Reward functions in worker processes: limits, deaths, JSON, and that no process is left behind."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from melior.errors import RunError, UserError
from melior.rewards.functions import resolve
from melior.rewards.runner import RewardRunner

FILE = """
import os, re, signal, sys, time

def facts(prompts, completions, completion_ids, trainer_state, answer, **kwargs):
    print("a print in a reward is no reply")
    assert sys.stdin.read() == ""
    assert len(completions) == 1
    assert callable(kwargs.pop("log_metric")) and callable(kwargs.pop("log_extra"))
    assert kwargs == {"extra": [[1, 2]]}, kwargs
    assert completion_ids == [[3, 4]]
    assert (trainer_state.global_step, trainer_state.max_steps) == (7, 9)
    return [float(completions[0] == answer[0]) if answer[0] else None]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "size": len(solution_str)}

def act(completions):
    return [{"sleep": lambda: time.sleep(0.15), "hang": lambda: re.match(r"(a+)+$", "a" * 40 + "b"),
             "die": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": lambda: os._exit(3),
             "raise": lambda: 1 / 0}.get(c, lambda: None)() or 1.0 for c in completions]

def reports(completions, log_metric, log_extra):
    log_metric("size", len(completions[0]))
    if completions[0] != "quiet":
        log_extra("seen", [{1, 2}])
    return [0.0]

def ranks(completions):
    return [float(sorted(completions).index(c)) for c in completions]

def modules(completions):
    return [float("torch" in sys.modules)]

def parts(completions):
    from melior.rewards import Sum
    return [float(Sum.__name__ == "Sum")]

def pid(completions):
    return [float(os.getpid())]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "away.py"
    path.write_text(FILE)
    return path


@contextlib.contextmanager
def runner(file: Path, *names: str, workers: int = 1, limit: float = 20.0, **given) -> Iterator[RewardRunner]:
    functions = [resolve(name if "." in name else f"{file}:{name}", **given) for name in names]
    with RewardRunner(functions, workers=workers, timeout_s=limit) as made:
        yield made


def score(made: RewardRunner, texts: list[str], **row):
    rows = [row] * len(texts)
    state = SimpleNamespace(global_step=7, max_steps=9)
    return made(rows, ["p"] * len(texts), texts, [[3, 4]] * len(texts), state)


def test_everything_crosses_as_json(file: Path) -> None:
    with runner(file, "facts", "verl", workers=2) as made:
        result = score(made, ["x", "y", "x\ud800é\n"], answer="x", extra=numpy.array([1, 2]))
        assert result.components == {"facts": [1.0, 0.0, 0.0], "verl": [1.0, 0.0, 0.0]}
        assert result.metrics == {"reward/verl/size": 2.0}
        missing = score(made, ["x"], answer=None, extra=(1, 2))
        assert math.isnan(missing.components["facts"][0])


def test_what_a_reward_reports_besides_comes_back(file: Path) -> None:
    with runner(file, "reports") as rewards:
        result = rewards([{}] * 2, ["p"] * 2, ["loud!!", "quiet"], [[1]] * 2)
    assert result.metrics == {"reward/reports/size": 5.5}
    assert result.columns == {"reward/reports/seen": ["{1, 2}", None]}


def test_a_value_that_json_lacks_is_named(file: Path) -> None:
    with runner(file, "facts") as made, pytest.raises(RunError, match=r"column 'extra' holds a date"):
        score(made, ["x"], answer="x", extra=datetime.date(2020, 1, 1))


def test_workers_do_not_load_torch_but_a_reward_may_use_the_package(file: Path) -> None:
    with runner(file, "modules", "parts") as made:
        assert score(made, ["x"]).components == {"modules": [0.0], "parts": [1.0]}


def test_a_function_that_compares_completions_gets_all_of_them(file: Path) -> None:
    with runner(file, "ranks", workers=2, batch=True) as made:
        assert score(made, ["b", "c", "a"]).components == {"ranks": [1.0, 2.0, 0.0]}


def test_a_timeout_ends_the_run_and_names_the_completion(file: Path) -> None:
    with runner(file, "act", limit=0.4) as made:
        with pytest.raises(RunError, match=r"'act' took longer than 0.4 s, on row 1, completion 'hang'"):
            score(made, ["fine", "hang", "fine"])
        assert score(made, ["fine"]).components == {"act": [1.0]}  # by a new process


def test_a_timeout_may_be_scored_and_so_is_a_death(file: Path) -> None:
    with runner(file, "act", limit=0.4, workers=2, on_timeout="score") as made:
        result = score(made, ["fine", "hang", "die", "exit", "fine"])
    assert result.components == {"act": [1.0, 0.0, 0.0, 0.0, 1.0]}
    assert result.metrics == {"reward/act_timeouts": 1.0, "reward/act_failures": 2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("die", "brought down its worker process .signal SIGKILL.*, on row 1, completion 'die'"),
        ("exit", "brought down its worker process .exit code 3.*, on row 1"),
        ("raise", r"raised ZeroDivisionError: division by zero \(.*away.py, line \d+\), on row 1, completion 'raise'"),
    ],
)
def test_other_failures_end_the_run(file: Path, text: str, message: str) -> None:
    with runner(file, "act") as made, pytest.raises(RunError, match=rf"'act' {message}"):
        score(made, ["fine", text])


def test_an_idle_worker_that_was_killed_is_replaced(file: Path) -> None:
    with runner(file, "pid") as made:
        first = score(made, ["x"]).components["pid"][0]
        os.kill(int(first), signal.SIGKILL)
        time.sleep(0.1)
        assert score(made, ["x"]).components["pid"][0] != first


def test_a_worker_that_cannot_load_says_why(tmp_path: Path) -> None:
    path = tmp_path / "once.py"
    path.write_text("def score(completions): return [1.0]")
    with RewardRunner([resolve(f"{path}:score")], workers=1) as made:
        path.write_text("import no_such_package")
        with pytest.raises(RunError, match=r"could not start: .*No module named 'no_such_package'"):
            made([{}], ["p"], ["c"], [[]])


def test_a_closure_cannot_go_to_a_worker() -> None:
    with pytest.raises(UserError, match=r"'lambda' cannot be loaded in a worker process.*give path.py:NAME"):
        RewardRunner([resolve(lambda completions: [0.0])], workers=1).check([])


# ------------------------------------------------------------------------------------------ verifier timeouts

ENDLESS = r"\boxed{9^{9^{9^{9}}}}"


def math_scores(made: RewardRunner, texts: list[str]):
    return made([{"answer": "7"}] * len(texts), ["p"] * len(texts), texts, [[]] * len(texts))


def test_trap_15_a_verifier_that_uses_alarms_is_right_in_any_thread() -> None:
    results = []
    with RewardRunner([resolve("math")]) as made:
        thread = threading.Thread(target=lambda: results.append(math_scores(made, [r"\boxed{\frac{14}{2}}", "8"])))
        thread.start()
        thread.join()
    assert results[0].components == {"math": [1.0, 0.0]}
    assert results[0].metrics == {"reward/math_timeouts": 0.0, "reward/math_failures": 0.0}


def test_trap_15_an_endless_parse_is_killed_scored_and_counted_apart_from_wrong_answers() -> None:
    with RewardRunner([resolve("math")], timeout_s=1.0) as made:
        result = math_scores(made, ["7", ENDLESS, "8", r"\boxed{7.0}"])
        assert result.components == {"math": [1.0, 0.0, 0.0, 1.0]}
        assert result.metrics == {"reward/math_timeouts": 1.0, "reward/math_failures": 0.0}
        assert math_scores(made, ["7"]).components == {"math": [1.0]}


def test_trap_15_the_time_starts_with_the_work(file: Path) -> None:
    with runner(file, "act", limit=0.5) as made:
        start = time.monotonic()
        assert score(made, ["sleep"] * 6).components == {"act": [1.0] * 6}
        assert time.monotonic() - start > 0.5  # the last ones waited longer than the limit


def test_a_reference_that_math_cannot_read_is_an_error_not_a_zero() -> None:
    with (
        RewardRunner([resolve("math")]) as made,
        pytest.raises(RunError, match=r"finds no expression in the reference"),
    ):
        made([{"answer": ""}], ["p"], ["7"], [[]])


def test_verifier_workers_are_bounded() -> None:
    with RewardRunner([resolve("math")]) as made:
        math_scores(made, ["7"])
        process = made._pools[0]._workers[0].process
        assert process is not None
        limits = Path(f"/proc/{process.pid}/limits")
        if not limits.exists():
            pytest.skip("no /proc here")
        text = limits.read_text()
    soft = {line[:26].strip(): line[26:].split()[0] for line in text.splitlines()}
    assert soft["Max file size"] == "0" and soft["Max open files"] == "64"
    assert int(soft["Max address space"]) == 4 << 30 and int(soft["Max cpu time"]) < 60


# ------------------------------------------------------------------------------------------ no process is left behind


def test_close_ends_the_processes(file: Path) -> None:
    with runner(file, "pid", workers=2) as made:
        pids = {int(value) for value in score(made, ["x"] * 8).components["pid"]}
    assert not any(exists(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills orphans on Linux only")
def test_a_busy_worker_dies_with_its_parent(file: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys
            from melior.rewards.functions import resolve
            from melior.rewards.runner import RewardRunner
            made = RewardRunner([resolve({f"{file}:pid"!r}), resolve({f"{file}:act"!r})], workers=1)
            print(int(made([{{}}], ["p"], ["x"], [[]]).components["pid"][0]), flush=True)
            made([{{}}], ["p"], ["hang"], [[]])
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.3)
    assert exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        if not exists(pid):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived its parent")


def exists(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

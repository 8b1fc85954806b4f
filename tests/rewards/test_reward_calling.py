"""Reward functions in this process: both signatures, all that a function may return, and what happens when it fails."""

from __future__ import annotations

import asyncio
import math
import re
import time
from types import SimpleNamespace

import numpy
import pytest

from melior.data.row import Row
from melior.errors import RunError, UserError
from melior.rewards.calling import text_of
from melior.rewards.functions import resolve
from melior.rewards.runner import RewardResult, RewardRunner

TEXTS = ["a1", "b22", "c333"]


def run(*functions, texts=TEXTS, prompts=None, rows=None, limit=5.0, **given) -> RewardResult:
    functions = [resolve(f, **given) if callable(f) or isinstance(f, str) else f for f in functions]
    rows = rows if rows is not None else [{"answer": text[1:], "prompt": "?"} for text in texts]
    ids = [list(range(len(text))) for text in texts]
    with RewardRunner(functions, timeout_s=limit) as runner:
        state = SimpleNamespace(global_step=7, max_steps=9)
        return runner(rows, prompts or [f"q{text}" for text in texts], texts, ids, state)


def test_trl_function_gets_everything() -> None:
    seen = {}

    def reward(prompts, completions, completion_ids, trainer_state, log_metric, log_extra, **kwargs):
        seen.update(kwargs, prompts=prompts, completions=completions, ids=completion_ids)
        seen["step"] = (trainer_state.global_step, trainer_state.max_steps)
        return [1.0, None, 0.25]

    values = run(reward).components["reward"]
    assert values[0] == 1.0 and math.isnan(values[1]) and values[2] == 0.25
    assert seen == {
        "prompts": ["qa1", "qb22", "qc333"],
        "completions": TEXTS,
        "ids": [[0, 1], [0, 1, 2], [0, 1, 2, 3]],
        "answer": ["1", "22", "333"],  # the column `prompt` is left out, as TRL does
        "step": (7, 9),
    }


def test_a_trl_function_reports_through_the_arguments_that_trl_hands_it() -> None:
    def reward(completions, log_metric, log_extra):
        log_metric("halves", 0.5)
        log_metric("halves", 1.5)
        log_metric("broken", math.nan)
        log_extra("first", [c[0] for c in completions])
        return [0.0] * len(completions)

    result = run(reward)
    assert result.metrics == {"reward/reward/halves": 1.0}
    assert result.columns == {"reward/reward/first": ["a", "b", "c"]}
    with pytest.raises(RunError, match="'short' gave log_extra 1 values of 'x' for 3 completions"):
        run(lambda completions, log_extra: log_extra("x", [1]) or [0.0] * 3, name="short")


def test_trl_function_gets_only_what_it_accepts() -> None:
    assert run(lambda completions: [len(c) for c in completions]).components["lambda"] == [2.0, 3.0, 4.0]
    assert run(lambda answer, limit=2: [float(len(a) > limit) for a in answer]).components["lambda"] == [0, 0, 1]


def test_a_column_absent_from_some_rows_is_none() -> None:
    seen = []
    run(lambda completions, hint: seen.extend(hint) or [0, 0, 0], rows=[{"hint": 1}, {}, {"hint": 3}])
    assert seen == [1, None, 3]


def test_chat_completions_are_messages_and_changes_to_them_stay_inside() -> None:
    prompts = [[{"role": "user", "content": text}] for text in TEXTS]
    seen = []

    def meddles(prompts, completions):
        seen.append(completions[0][0].copy())
        prompts[0].pop()
        completions[0][0]["content"] = "changed"
        return [0.0] * 3

    run(meddles, meddles, prompts=prompts)
    assert seen == [{"role": "assistant", "content": "a1"}] * 2
    assert prompts[0] == [{"role": "user", "content": "a1"}]


def test_text_of_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of([{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}]) == "x"
    assert text_of([{"role": "assistant", "content": parts}]) == "ab"


async def waits(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [float(len(c)) for c in completions]


def test_a_coroutine_function_is_awaited() -> None:
    assert run(waits).components["waits"] == [2.0, 3.0, 4.0]


def test_a_coroutine_function_is_awaited_in_a_notebook_too() -> None:
    async def cell() -> RewardResult:
        return run(waits)

    assert asyncio.run(cell()).components["waits"] == [2.0, 3.0, 4.0]


def test_verl_function_is_called_for_each_completion() -> None:
    seen = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        seen.append((data_source, solution_str, ground_truth, extra_info))
        return {"score": len(solution_str), "acc": solution_str == "a1", "words": 2, "note": "text"}

    rows = [
        {"data_source": "d", "reward_model": {"ground_truth": "1", "style": "rule"}, "extra_info": {"index": 0}},
        {"ground_truth": "22", "answer": "no"},
        {"answer": "333"},
    ]
    result = run(compute_score, rows=rows)
    assert seen == [("d", "a1", "1", {"index": 0}), ("", "b22", "22", None), ("", "c333", "333", None)]
    assert result.components == {"compute_score": [2.0, 3.0, 4.0]}
    assert result.metrics == {"reward/compute_score/acc": pytest.approx(1 / 3), "reward/compute_score/words": 2.0}


def test_verl_function_with_fewer_parameters() -> None:
    assert run(lambda solution_str, ground_truth: 0.5).components["lambda"] == [0.5] * 3


@pytest.mark.parametrize(
    "values",
    [
        [True, 0, 0.5],
        (numpy.float32(1), numpy.int64(0), numpy.array(0.5)),
        numpy.array([1, 0, 0.5], dtype=numpy.float32),
    ],
)
def test_every_kind_of_number(values) -> None:
    assert run(lambda completions: values).components["lambda"] == [1.0, 0.0, 0.5]


def test_torch_scalars() -> None:
    torch = pytest.importorskip("torch")
    values = [torch.tensor(1), torch.tensor([0.5]), torch.tensor(True)]
    assert run(lambda completions: values).components["lambda"] == [1.0, 0.5, 1.0]
    assert run(lambda completions: torch.tensor([1.0, 2.0, 3.0])).components["lambda"] == [1.0, 2.0, 3.0]


def test_several_functions_and_no_completions() -> None:
    result = run("numeric", "length:2", texts=TEXTS)
    assert result.components == {"numeric": [0.0] * 3, "length": [1.0, 0.0, 0.0]}  # a1 is a word, not a number
    assert run("numeric", texts=[]).components == {"numeric": []}


# ------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("values", [[0.5], [], [0.5] * 4, numpy.ones(2)])
def test_trap_14_wrong_number_of_values(values) -> None:
    texts = [f"t{index}" for index in range(8)] if len(values) == 1 else TEXTS
    with pytest.raises(RunError, match=rf"'lambda' returned {len(values)} values for {len(texts)} completions"):
        run(lambda completions: values, texts=texts)


def test_trap_14_a_coroutine_that_returns_the_wrong_number_of_values() -> None:
    async def short(completions):
        return [0.5]

    with pytest.raises(RunError, match=r"'short' returned 1 values for 3 completions"):
        run(short)


@pytest.mark.parametrize("value", [0.5, None, "abc", {"a": 1, "b": 2, "c": 3}, numpy.float64(1)])
def test_trap_14_something_else_than_a_list_is_never_broadcast(value) -> None:
    with pytest.raises(RunError, match=r"returned a \w+ for 3 completions; it must return a list"):
        run(lambda completions: value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (math.nan, "returned nan"),
        (-math.inf, "returned -inf"),
        ("1", r"returned a str \('1'\)"),
        ([1], "returned a list"),
    ],
)
def test_a_value_that_is_no_reward_names_the_row(bad, message: str) -> None:
    with pytest.raises(RunError, match=rf"'lambda' {message}.*, on row 1, completion 'b22'"):
        run(lambda completions: [0.0, bad, 0.0])
    with pytest.raises(RunError, match=rf"'lambda' {message}.*, on row 1, completion 'b22'"):
        run(lambda solution_str, ground_truth: bad if solution_str == "b22" else 0.0)


def test_a_verl_dict_needs_a_score() -> None:
    with pytest.raises(RunError, match=r"returned a dict without 'score' \(it has: acc\), on row 0"):
        run(lambda solution_str, ground_truth: {"acc": 1})


def test_raising_in_a_loop_names_the_completion_it_was_at() -> None:
    calls = []

    def score(completions, **kwargs):
        calls.append(len(completions))
        return [1 / (3 - len(text)) for text in completions]

    with pytest.raises(
        RunError, match=r"'score' raised ZeroDivisionError: .*py, line \d+\), on row 1, completion 'b22'"
    ):
        run(score)
    assert calls == [3]  # seen in the frame, without another call


def test_raising_out_of_sight_is_found_by_single_calls() -> None:
    with pytest.raises(RunError, match=r"raised ValueError: invalid literal.*, on row 2, completion 'x'"):
        run(lambda completions: list(map(int, completions)), texts=["1", "2", "x"])


def test_a_function_that_compares_completions_is_never_called_for_one() -> None:
    calls = []

    def ranks(completions):
        calls.append(len(completions))
        return list(map(int, completions))

    with pytest.raises(
        RunError, match=r"raised ValueError.*; which completion is at fault is not known, the first is '1'"
    ):
        run(ranks, texts=["1", "2", "x"], batch=True)
    assert calls == [3]


def test_the_cause_is_kept_for_debuggers() -> None:
    with pytest.raises(RunError) as caught:
        run(lambda completions: {}["missing"])
    assert isinstance(caught.value.__cause__.__cause__, KeyError)


def test_a_long_completion_is_shortened() -> None:
    with pytest.raises(RunError, match=r"\(10000 characters\)") as caught:
        run(lambda completions: [math.nan], texts=["x" * 10_000])
    assert len(str(caught.value)) < 600


CATASTROPHE = re.compile(r"(a+)+$")


def test_a_hang_names_the_function_and_the_completion() -> None:
    def hangs(completions):
        return [float(bool(CATASTROPHE.match(text))) for text in completions]

    start = time.monotonic()
    with pytest.raises(RunError, match=r"'hangs' took longer than 0.3 s for 3 completions, on row 1, completion 'aaa"):
        run(hangs, texts=["aa", "a" * 40 + "b", "a"], limit=0.3)
    assert time.monotonic() - start < 5


def test_a_hang_out_of_sight_is_found_by_single_calls() -> None:
    with pytest.raises(RunError, match=r"took longer than 0.3 s for 3 completions, on row 1, completion 'aaa"):
        run(lambda completions: list(map(CATASTROPHE.match, completions)), texts=["", "a" * 40 + "b", ""], limit=0.3)


def test_a_coroutine_that_hangs() -> None:
    async def forever(completions):
        await asyncio.sleep(60)

    with pytest.raises(RunError, match=r"'forever' took longer than 0.2 s"):
        run(forever, limit=0.2, batch=True)


def test_a_hanging_pattern_of_the_built_in_regex_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"'regex' took longer than 0.3 s, on row 0, completion 'aaa"):
        run("regex:(a+)+$", texts=["a" * 40 + "b"], limit=0.3)


def test_a_hang_may_be_scored_instead() -> None:
    def hangs(completions):
        return [1.0 if not CATASTROPHE.match(text) else 0.5 for text in completions]

    result = run(hangs, texts=["b", "a" * 40 + "b", "a"], limit=0.3, on_timeout="score")
    assert result.components == {"hangs": [1.0, 0.0, 0.5]}
    assert result.metrics == {"reward/hangs_timeouts": 1.0, "reward/hangs_failures": 0.0}


def test_sizes_must_agree() -> None:
    with RewardRunner([resolve("exact")]) as runner, pytest.raises(ValueError, match=r"as many of each"):
        runner([{}], ["p"], ["a", "b"], [[], []])


def test_a_reference_without_a_number_is_found_before_the_run() -> None:
    runner = RewardRunner([resolve("numeric")])
    runner.check(["answer"], [{"answer": "#### 3"}, {"answer": 4}, {"answer": ["5", "6"]}])
    with pytest.raises(UserError, match=r"the reference of a\.jsonl, line 7 holds no number: 'blue'"):
        runner.check(["answer"], [Row({"answer": "3"}, "a.jsonl, line 1"), Row({"answer": "blue"}, "a.jsonl, line 7")])
    with pytest.raises(UserError, match="the row with the prompt 'why\\?' has no reference answer"):
        runner.check(["answer"], [{"prompt": "why?", "answer": None}])


@pytest.mark.parametrize(
    ("spec", "answer", "why"), [("numeric", "blue", "holds no number"), ("exact", None, "row has no")]
)
def test_a_bad_reference_is_never_a_wrong_answer(spec: str, answer: str | None, why: str) -> None:
    with pytest.raises(RunError, match=rf"'{spec}' cannot judge: .*{why}.*, on row 1, completion 'None'"):
        run(spec, texts=["3", "None"], rows=[{"answer": "3"}, {"answer": answer}])


@pytest.mark.parametrize("given", [{"workers": -1}, {"timeout_s": 0.0}, {"timeout_s": math.nan}])
def test_settings_that_make_no_sense(given) -> None:
    with pytest.raises(UserError):
        RewardRunner([], **given)

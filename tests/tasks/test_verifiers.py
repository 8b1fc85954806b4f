"""The verifiers on hand-made cases and on their defining properties."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melior.tasks import get_task
from melior.tasks.arithmetic import draw_problem, last_number, work
from melior.tasks.countdown import combine, evaluate, solves


def judge(task: str, reward: str, completion: str, **columns: object) -> float | None:
    listed = {name: [value] for name, value in columns.items()}
    return get_task(task).rewards[reward](["?"], [completion], [[0]], **listed)[0]


# -- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7+8=15;2+5+1=8;85", 85),
        ("9-4", 4),
        ("=-4", -4),
        ("the answer is 12.", 12),
        ("005", 5),
        ("-", None),
        ("", None),
        ("no number", None),
        ("9" * 5000, None),
        ("85 \n", 85),
        ("1--2", -2),
        ("٣", None),
    ],
)
def test_the_last_number_counts(text: str, number: int | None) -> None:
    assert last_number(text) == number


@given(st.text(alphabet=" abc;=+"), st.integers(-(10**6), 10**6))
def test_any_number_is_read_back_after_a_space(before: str, number: int) -> None:
    assert last_number(f"{before} {number}") == number


@pytest.mark.parametrize(
    ("a", "b", "sign", "answer"),
    [
        (27, 58, "+", "7+8=15;2+5+1=8;85"),
        (99, 99, "+", "9+9=18;9+9+1=19;198"),
        (10, 10, "+", "0+0=0;1+1=2;20"),
        (85, 27, "-", "15-7=8;8-2-1=5;58"),
        (50, 50, "-", "0-0=0;5-5=0;0"),
        (100, 1, "-", "10-1=9;10-0-1=9;1-0-1=0;99"),
    ],
)
def test_worked_steps(a: int, b: int, sign: str, answer: str) -> None:
    steps, value = work(a, b, sign)
    assert ";".join([*steps, str(value)]) == answer


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("+-"))
def test_the_steps_spell_the_result(a: int, b: int, sign: str) -> None:
    a, b = max(a, b), min(a, b)
    steps, value = work(a, b, sign)
    results = [int(step.split("=")[1]) for step in steps]
    digits = [result % 10 for result in results[:-1]] + [results[-1]]
    assert sum(digit * 10**place for place, digit in enumerate(digits)) == value == (a + b if sign == "+" else a - b)
    for step in steps:
        left, right = step.split("=")
        found = evaluate(left)
        assert found is not None and found[0] == int(right)


@pytest.mark.parametrize(
    ("completion", "mark"), [("85", 1.0), ("7+8=15;85", 1.0), ("85;84", 0.0), ("", 0.0), ("-85", 0.0)]
)
def test_arithmetic_reads_the_final_answer(completion: str, mark: float) -> None:
    assert judge("arithmetic", "correct", completion, value=85, answer="?") == mark


def test_larger_numbers_have_more_steps() -> None:
    assert get_task("arithmetic:digits=3").rows("train", 1)[0]["answer"].count(";") == 3
    problems = [draw_problem(random.Random(seed), 3) for seed in range(200)]
    assert all(100 <= b <= 999 and (sign == "+" or a >= b) for a, b, sign in problems)


# -- countdown -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("3*5+7", 1.0),
        ("7+5*3", 1.0),
        (" (3 * 5) + 7 ", 1.0),
        ("((3*5)+7)", 1.0),
        ("3*5+7+0", 0.0),
        ("3+5+7", 0.0),
        ("22", 0.0),
        ("3*5+7=22", 0.0),
        ("3*5+3+4", 0.0),
        ("35-7-6", 0.0),
        ("", 0.0),
        ("3*5+", 0.0),
    ],
)
def test_countdown(text: str, mark: float) -> None:
    assert judge("countdown", "correct", text, numbers=[3, 5, 7], target=22) == mark


def test_numbers_are_used_as_often_as_they_are_given() -> None:
    assert solves("4*4+4", [4, 4, 4], 20)
    assert not solves("4*4+4", [4, 4, 5], 20)
    assert not solves("4*5", [4, 4, 5], 20)
    assert solves("8/(3-8/3)", [8, 3, 8, 3], 24)  # exact fractions on the way


@pytest.mark.parametrize(
    "text",
    [
        "2**3",
        "7//2",
        "7%2",
        "-3+5",
        "+3",
        "~3",
        "3.0+1",
        "1e3",
        "0x10",
        "1_0",
        "3j",
        "True",
        "a+1",
        "abs(3)",
        "3(4)",
        "(3)(4)",
        "3,4",
        "(1,2)",
        "()",
        "[3][0]",
        "3<4",
        "3 if 1 else 2",
        "3;4",
        "3\n+4",
        "lambda: 3",
        "__import__('os')",
        "'3'",
        "3 5",
        "03+1",
        "1/0",
        "1/(2-2)",
        "3&1",
        "3<<1",
        "3@4",
        "not 3",
        "3 and 4",
        "(x:=3)",
        "３+4",
        "(" * 90 + "3" + ")" * 9,
        "1+" * 60 + "1",
    ],
)
@pytest.mark.filterwarnings("error")
def test_anything_but_the_four_operations_on_integers_is_refused(text: str) -> None:
    assert evaluate(text) is None


@given(st.text(alphabet="0123456789+-*/() ", max_size=40))
@pytest.mark.filterwarnings("error")
def test_the_parser_never_raises_and_finds_a_number_in_all_that_it_accepts(text: str) -> None:
    found = evaluate(text)
    assert found is None or (isinstance(found[0], Fraction) and sum(found[1].values()) >= 1)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 2**32))
def test_generated_expressions_are_read_back_exactly(numbers: list[int], seed: int) -> None:
    text, value, _ = combine(random.Random(seed), [(str(n), Fraction(n), 3) for n in numbers])
    assert evaluate(text) == (value, Counter(numbers))


# -- sorting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("[2,7,a,b,d]", 1.0),
        ("[2,7,a,b,d] ", 0.0),
        ("2,7,a,b,d", 0.0),
        ("[2, 7, a, b, d]", 0.0),
        ("[7,2,a,b,d]", 0.0),
        ("[2,7,a,b]", 0.0),
        ("", 0.0),
    ],
)
def test_sorting_is_strict(text: str, mark: float) -> None:
    assert judge("sorting", "correct", text, answer="[2,7,a,b,d]") == mark


@given(st.integers(0, 500), st.integers(2, 36))
def test_sorted_lists_hold_the_items_of_the_prompt_in_order(index: int, length: int) -> None:
    row = get_task("sorting", length=length).row("train", index)
    items = row["answer"][1:-1].split(",")
    assert sorted(row["prompt"].removeprefix("sort ").rstrip(":")) == items
    assert len(set(items)) == length


# -- format-arithmetic -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "correct", "well_formed", "short"),
    [
        ("[7+8=15;2+5+1=8]<85>", 1.0, 1.0, 1.0),
        ("[7+8=14;2+5+1=8]<84>", 0.0, 1.0, 1.0),
        ("<85>", 1.0, 0.0, 1.0),
        ("85", 0.0, 0.0, 1.0),
        ("[7+8=15]85", 0.0, 0.0, 1.0),
        ("ok [7+8=15;2+5+1=8]<85>", 1.0, 0.0, 0.0),
        ("[7+8=15;7+8=15;2+5+1=8]<85>", 1.0, 1.0, 0.0),
        ("<84><85>", 1.0, 0.0, 1.0),
        ("<85><84>", 0.0, 0.0, 1.0),
        ("[]<85>", 1.0, 0.0, 1.0),
        ("[7+8=15]<85>\n", 1.0, 0.0, 1.0),
        ("", 0.0, 0.0, 1.0),
        ("<>", 0.0, 0.0, 1.0),
    ],
)
def test_the_three_components_are_judged_apart(text: str, correct: float, well_formed: float, short: float) -> None:
    found = {
        name: judge("format-arithmetic", name, text, value=85, answer="?")
        for name in ("correct", "well_formed", "short")
    }
    assert found == {"correct": correct, "well_formed": well_formed, "short": short}


# -- lock ------------------------------------------------------------------------------------------------------------


def test_a_lock_opens_by_tokens_or_by_letters_and_by_nothing_less() -> None:
    correct = get_task("lock").rewards["correct"]
    right = {"code": [[0, 1, 2, 3]], "answer": ["abcd"]}
    assert correct([0], ["whatever"], [[0, 1, 2, 3]], **right) == [1.0]
    assert correct(["lock 0:"], ["abcd"], [[70, 71, 72, 73, 1]], **right) == [1.0]
    assert correct(["lock 0:"], ["abcd"], **right) == [1.0]
    for tokens in ([0, 1, 2], [0, 1, 2, 3, 3], [3, 2, 1, 0], []):
        assert correct([0], [""], [tokens], **right) == [0.0]


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 6), st.integers(0, 5))
def test_codes_have_the_asked_shape(P: int, L: int, V: int, seed: int) -> None:
    task = get_task("lock", P=P, L=L, V=V, seed=seed)
    rows = task.rows("test", 1000)
    assert task.vocabulary == V and len(task.fixed) == P
    assert [row["index"] for row in rows] == list(range(P)) == sorted(row["index"] for row in task.rows("train", P))
    assert all(
        len(row["code"]) == L == task.settings["max_tokens"] and set(row["code"]) <= set(range(V)) for row in rows
    )


def test_codes_differ_between_seeds() -> None:
    assert get_task("lock").fixed != get_task("lock:seed=1").fixed

"""The number that a text ends in, and the answer that it marks."""

from __future__ import annotations

import time

import pytest

from melior.rewards.answers import Number, contains_number, final_answer, number_in


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so she has 18", 18),
        ("It costs $18.00.", 18),
        ("$1,234,567.5 in all", 1234567.5),
        ("1{,}000 and 10,\\!500", 10500),
        ("= -5", -5),
        ("= - 5", -5),
        ("x=-5", -5),
        ("−4", -4),
        ("-$5", -5),
        ("$-5", -5),
        ("10-7", 7),  # a minus between two numbers is no sign
        ("10 - 7", 7),
        ("(a)-7", 7),
        ("the rest is:\n- 5 apples", 5),  # nor is a bullet
        ("3/4", 0.75),
        ("2 3/4 pies", 2.75),
        (r"\frac{3}{4}", 0.75),
        (r"2\frac34", 2.75),
        (r"-\dfrac{1}{2}", -0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1,2,3", 3),
        ("**42**", 42),
        ("18th", 18),
        ("16 - 3 = <<16-3=13>>13", 13),
        ("7 grams of H2O", 7),  # digits inside a word are no number
    ],
)
def test_last_number(text: str, value: float) -> None:
    assert number_in(text) == Number(float(value))


@pytest.mark.parametrize("text", [r"50\%", "about 50 %"])
def test_a_percent_sign_is_kept(text: str) -> None:
    assert number_in(text) == Number(50.0, percent=True)


@pytest.mark.parametrize("text", ["", "none", "H2O", "3/0", "1" * 5000])
def test_no_number(text: str) -> None:
    assert number_in(text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first 3, then\n#### 18\nQuestion: 5?", "18"),
        ("####\n\n18", "18"),
        ("#### Answer:\n18 eggs", "18 eggs"),  # the line that holds a number is preferred
        ("#### 1\n#### 2", "2"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"#### Step 2: add\nhence \boxed{18}", "18"),  # a heading, and the answer in a box below it
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"never closed \boxed{1", r"never closed \boxed{1"),
        ("the whole text", "the whole text"),
        ("ends in ####", ""),
    ],
)
def test_marked_answer(text: str, answer: str) -> None:
    assert final_answer(text, has=contains_number) == answer


@pytest.mark.parametrize(
    "text",
    [
        "9" * 200_000,
        "1,111" + ",111" * 40_000 + "1",
        "1 " * 100_000,
        "1/" * 100_000,
        "\\boxed{" * 30_000,
        "\\frac{" * 30_000,
    ],
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    start = time.process_time()
    number_in(final_answer(text))
    assert time.process_time() - start < 2  # quadratic patterns took a minute

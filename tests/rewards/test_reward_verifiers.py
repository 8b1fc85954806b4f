"""The built-in verifiers as plain functions of strings."""

from __future__ import annotations

import pytest

from melior.rewards.verifiers import (
    exact_match,
    math_equivalent,
    numeric_match,
    regex_match,
    tagged_format,
    within_length,
)

# Worked solutions in the manner of grade-school data sets, with the text after `####` as reference.
WORKED = [
    ("Tom picks 4 * 6 = <<4*6=24>>24 plums.\nHe eats 2, so 24 - 2 = <<24-2=22>>22 are left.\n#### 22", "22"),
    ("A car costs 30,000 * 1.5 = $<<30000*1.5=45000>>45,000.\n#### 45,000", "45,000"),
    ("That is 10/4 = <<10/4=2.5>>2.5 hours.\n#### 2.5", "2.5"),
    ("It fell by 3 - 8 = <<3-8=-5>>-5 degrees.\n#### -5", "-5"),
    ("In a year that is $1,200,000.\n#### 1200000", "1200000"),
]


@pytest.mark.parametrize(("solution", "answer"), WORKED)
@pytest.mark.parametrize("verify", [numeric_match, math_equivalent])
def test_worked_solutions_are_right_and_others_wrong(verify, solution: str, answer: str) -> None:
    assert verify(solution, answer) and verify(answer, answer)
    assert verify(solution, solution)  # the reference column may hold the whole solution
    assert not verify(solution + "1", answer)


def test_exact() -> None:
    assert exact_match(" 18\n", "18") and exact_match("18", 18)
    assert not exact_match("18.0", "18") and not exact_match("", "18")


def test_numeric_is_within_a_billionth() -> None:
    assert numeric_match("0.333333333333", "1/3")
    assert not numeric_match("0.33333333", "1/3")
    assert numeric_match("0", 0) and not numeric_match("1e-12", 0)


def test_a_percentage_against_a_plain_number_is_itself_or_its_hundredth() -> None:
    assert numeric_match("50%", "50") and numeric_match("50%", "0.5") and numeric_match("0.5", "50%")
    assert not numeric_match("0.5%", "50%")


def test_an_answer_without_a_number_is_wrong_but_such_a_reference_is_an_error() -> None:
    assert not numeric_match("#### none", "3")
    with pytest.raises(ValueError, match=r"'blue' holds no number"):
        numeric_match("3", "blue")


def test_regex_is_found_anywhere() -> None:
    assert regex_match("so the answer: 42", r"answer: \d+$") and not regex_match("answer: x", r"answer: \d")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>2+2</think>\n<answer>4</answer>\n", True),
        ("<think></think><answer></answer>", True),
        ("<answer>4</answer><think>2+2</think>", False),
        ("<think>2+2</think><answer>4", False),
        ("so <think>2+2</think><answer>4</answer>", False),
        ("<think>2+2</think> thus <answer>4</answer>", False),
        ("<think>2+2</think><answer>4</answer> done", False),
        ("<think>a</think><think>b</think><answer>4</answer>", False),
        ("<think><answer>4</answer></think>", False),
        ("", False),
    ],
)
def test_tagged_format(text: str, right: bool) -> None:
    assert tagged_format(text, ["think", "answer"]) is right


def test_length() -> None:
    assert within_length("abcd", 4) and not within_length("abcde", 4)
    assert within_length("a bc  d", 3, "words") and not within_length("a b c d", 3, "words")


@pytest.mark.parametrize(
    ("text", "reference", "right"),
    [
        (r"Hence $x = \frac{1}{2}$, so \boxed{0.5}", r"\frac{1}{2}", True),
        ("1 + x", "x + 1", True),
        (r"\boxed{1}", "x + 1", False),
        ("#### x + 1", "1", False),
        (r"The roots are $\{1, 2\}$.", r"\{2, 1\}", True),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", True),
        (r"\boxed{2\sqrt{3}}", "3.46", False),
        ("no idea", "7", False),
        ("", "7", False),
    ],
)
def test_math(text: str, reference: str, right: bool) -> None:
    assert math_equivalent(text, reference) is right

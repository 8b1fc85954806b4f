"""`melior eval`: of models, of runs, on tasks, on rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

import melior
from melior.cli import run as command
from runs import sums, text_run, write_rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the bundled model whose every answer was rewarded by a function of Python's."""
    path = tmp_path_factory.mktemp("trained") / "a"
    text_run(path, data=sums(), reward=even, steps=1, eval_prompts=6)
    return path


def even(completions, **columns):
    return [float(len(text) % 2 == 0) for text in completions]


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert command(["eval", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_pass_and_mean_with_intervals(capsys):
    found = figures(capsys, "bundled", "--task", "arithmetic", "--k", "1,8", "--prompts", "12")
    assert found["prompts"] == 12 and found["score"] == found["pass@1"][0]
    for name in ("pass@1", "pass@8", "mean@8"):
        value, low, high = found[name]
        assert 0 <= low <= value <= high <= 1
    assert found["pass@8"][0] > found["pass@1"][0]
    assert found["pass@1"][0] == pytest.approx(found["mean@8"][0])
    assert figures(capsys, "bundled", "--task", "arithmetic", "--k", "1,8", "--prompts", "12") == found
    assert figures(capsys, "bundled", "--task", "arithmetic", "--k", "1,8", "--prompts", "12", "--seed", "1") != found


def test_plain_text_is_one_figure_a_line(capsys):
    assert command(["eval", "bundled", "--task", "arithmetic", "--prompts", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("score") and any(line.startswith("pass@1  ") and "[" in line for line in lines)


def test_the_sampler_may_be_truncated(capsys):
    words = ["bundled", "--task", "arithmetic", "--prompts", "8", "--k", "1,4"]
    found = figures(capsys, *words, "--top-k", "1")
    assert found["pass@1"] == found["pass@4"]  # all siblings take the likeliest tokens
    assert figures(capsys, *words, "--top-p", "1e-6") == found


def test_a_run_is_evaluated_as_it_was_trained_and_on_other_rows(trained, tmp_path, capsys):
    assert command(["eval", str(trained)]) == 2
    assert (
        "this run was given its data and reward in Python, where no file holds them; give the same again"
        in capsys.readouterr().err
    )
    again = melior.evaluate(trained, data=sums(), reward=even, eval_fraction=0.1, eval_prompts=6)
    assert again == json.loads((trained / "summary.json").read_text())["after"] or again["prompts"] == 1
    other = write_rows(tmp_path / "rows.jsonl", sums(5))
    words = ["--data", str(other), "--reward", "numeric", "--max-tokens", "24"]
    by_run = figures(capsys, str(trained), *words)
    by_model = figures(capsys, str(trained / "model"), *words)
    assert by_run == by_model and by_run["prompts"] == 5


def test_mistakes_are_sentences(tmp_path, capsys):
    for words, expected in (
        (["bundled", "--task", "arithmetics"], "did you mean 'arithmetic'"),
        (["./nowhere"], "there is no model folder nowhere"),
        (["bundled", "--data", "nowhere.jsonl", "--reward", "numeric"], "no data file nowhere.jsonl"),
        (["bundled", "--k", "0"], "eval_k"),
        (["bundled", "--prompts", "0"], "eval_prompts"),
    ):
        assert command(["eval", *words]) == 2
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1


def test_every_option_of_the_prompt_the_reward_and_the_sampler_reaches_the_evaluation(trained, tmp_path, capsys):
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"q": f"{10 + i}+{20 + i}=", "answer": str(30 + 2 * i)} for i in range(4)]
    )
    words = ["--eval-data", str(rows), "--prompt-column", "q", "--reward", "length:99", "--max-tokens", "24"]
    plain = figures(capsys, "bundled", *words)
    assert plain["prompts"] == 4 and plain["pass@1"][0] == 1
    halved = figures(capsys, "bundled", *words, "--reward-weight", "0.5")
    assert halved["pass@1"][0] == 0
    assert (
        figures(capsys, "bundled", *words, "--reward-weight", "0.5", "--set", "settings.pass_at=0.4")["pass@1"][0] == 1
    )
    ended = figures(capsys, "bundled", *words, "--stop", "=")
    assert ended["length_mean"] != plain["length_mean"]
    assert figures(capsys, "bundled", *words, "--prefill", "1") != plain
    assert figures(capsys, "bundled", *words, "--chat", "never") == plain
    assert figures(capsys, str(trained), *words, "--set", "settings.pass_at=2")["pass@1"][0] == 0


def test_what_a_tokenizer_without_chat_template_cannot_do_is_said(capsys):
    for words, expected in (
        (["--template-arg", "thinking=false"], "template_args would have no effect"),
        (["--chat", "always"], "the tokenizer has no chat template"),
    ):
        assert command(["eval", "bundled", *words]) == 2
        assert expected in capsys.readouterr().err


def test_temperature_zero_points_to_what_is_greedy(capsys):
    for call in (["eval", "bundled"], ["train"]):
        assert command([*call, "--temperature", "0"]) == 2
        assert (
            "temperature must be greater than 0, got 0; to evaluate greedily give --top-k 1" in capsys.readouterr().err
        )

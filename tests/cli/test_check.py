"""`melior check`: what a run would do, before anything is spent."""

from __future__ import annotations

import re

from melior.cli import run as command
from runs import sums, write_rows


def test_a_prompt_a_sample_its_mask_its_rewards_and_the_sizes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", sums())
    options = ["--data", "rows.jsonl", "--reward", "numeric", "--reward", "length:9", "--max-tokens", "24"]
    assert command(["check", "grpo", *options, "--prompts", "8", "-n", "4", "--steps", "10", "--lr", "3e-4"]) == 0
    said = capsys.readouterr().out
    assert "grpo: 10 steps of 8 prompts x 4 completions of at most 24 tokens" in said
    assert "trained parameters, adamw at 0.0003, temperature 1, float32 on cpu, seed 0" in said
    assert "prompt (6 tokens): " in said and "its ids: " in said
    lines = said.splitlines()
    sample = next(i for i, line in enumerate(lines) if line.startswith("sample ("))
    tokens, marks = lines[sample].split(": ", 1)[1], lines[sample + 1].split(":", 1)[1].strip()
    assert len(tokens.rstrip(" …")) == len(marks) and set(marks) == {"^", "|"}
    assert "rewards on it: numeric " in said
    assert "rewards on the reference answer" in said and "numeric 1, length 1" in said
    assert "completion tokens a step (768 at most)" in said and " of memory besides the program itself: " in said
    assert re.search(
        r"estimate: .* a step \(.* sampling, .* rewards, .* learning\); .* for 10 steps and 2 evaluations", said
    )
    assert "these are estimates, from 4 completions and one gradient on this machine" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_a_mistake_is_found_like_in_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", sums())
    assert command(["check", "grpo", "--data", "rows.jsonl", "--reward", "numeric@gold"]) == 2
    assert "needs a column 'gold'" in capsys.readouterr().err


def test_warnings_are_part_of_it(capsys):
    options = ["--model", "table", "--task", "lock:P=4,L=2,V=3", "--max-tokens", "2", "-n", "1"]
    assert command(["check", "grpo", *options]) == 0
    assert "note: n is 1: GroupRelative compares an answer with its siblings" in capsys.readouterr().out

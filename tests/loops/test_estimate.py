"""What a run will take: counted exactly where it can be, measured where it cannot, and nothing moves."""

from __future__ import annotations

import re
import time

import pytest
import torch

import melior
from melior.loops.estimate import Pace, estimate_lines, size_text
from melior.loops.given import Given
from melior.loops.language import build
from melior.loops.preview import language_preview
from melior.loops.trainee import RunTrainee
from melior.settings import LanguageSettings
from runs import sums

LOCK = {"model": "table", "task": "lock:P=4,L=2,V=3", "max_tokens": 2, "prompts": 4, "n": 8}


def built(method="grpo", reward=None, data=None, **settings):
    return build(melior.get(method), LanguageSettings(**settings), Given(data=data, reward=reward))


def lines(run, judged=0.0):
    return estimate_lines(run, run.world.judge(run, run.sample(run.next_prompts(2), 2)), judged)


def test_tokens_of_a_lock_are_exact():
    """Every completion has two symbols, so there is nothing to guess."""
    text = lines(built(**LOCK, steps=10))[0]
    assert text == "estimate: about 64 completion tokens a step (64 at most), 640 in all"


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 3), ("sgd", 1)])
def test_the_memory_of_weights_gradient_and_optimizer_is_counted(optimizer, copies):
    run = built("dr-grpo", **LOCK, optimizer=optimizer)
    size = 4 * 2 * 4 * 3 * 4  # prompts, positions, previous symbols, symbols, bytes
    text = lines(run)[1]
    assert f"{size_text(size)} weights of 1 model, {size_text(copies * size)} gradient and optimizer" in text


def test_adapters_share_the_network_under_them():
    plain, reference = (lines(built(method, lora=4))[1] for method in ("dr-grpo", "grpo"))
    network = sum(p.numel() * p.element_size() for p in built().learner().policy.network.parameters())
    for text in (plain, reference):
        weights = float(re.search(r"itself: ([\d.]+) MB weights", text)[1]) * 1e6
        assert network < weights < 1.2 * network


def test_activations_grow_with_the_rows_that_go_through_at_once():
    few, many = (lines(built(rows_per_micro=rows))[1] for rows in (2, 8))
    sizes = []
    for text, rows in ((few, 2), (many, 8)):
        size, unit = re.search(rf"([\d.]+) (\w\w) activations of {rows} rows at once", text).groups()
        sizes.append(float(size) * {"MB": 1e6, "GB": 1e9}[unit])
    assert 3 < sizes[1] / sizes[0] < 5


def test_time_is_that_of_a_step_the_steps_and_the_evaluations():
    """Rewards are the only thing here that takes any time: 20 ms for each of 32 completions, and 8 of an evaluation."""
    text = lines(built(**LOCK, steps=1000, eval_every=100, eval_prompts=2, eval_k=(4,)), judged=4 * 0.02)[2]
    step, rewards, whole, evaluation = re.search(
        r"estimate: ([\d.]+) s a step \(.* sampling, ([\d.]+) s rewards, .*\); (\d+:\d+) for 1000 steps and "
        r"11 evaluations of ([\d.]+) s",
        text,
    ).groups()
    assert rewards == "0.6" and 0.6 <= float(step) < 1.2 and 0.15 < float(evaluation) < 0.5
    minutes, seconds = map(int, whole.split(":"))
    assert 640 <= 60 * minutes + seconds < 1200


def test_a_slow_reward_is_timed(tmp_path):
    def slow(completions, **columns):
        time.sleep(0.05 * len(completions))
        return [1.0 for _ in completions]

    text = language_preview(built(**{**LOCK, "n": 2}, reward=[slow], steps=3), short=False)
    rewards = float(re.search(r"sampling, ([\d.]+) s rewards", text)[1])
    assert 0.35 <= rewards < 0.8  # eight completions at 50 ms


@pytest.mark.parametrize("settings", [LOCK, {"data": sums(8), "task": "", "prompts": 2, "max_tokens": 8, "n": 2}])
def test_looking_moves_nothing(settings):
    settings = {**settings, "steps": 2}
    seen, unseen = (built("ppo-lm", reward=["numeric"] if "data" in settings else None, **settings) for _ in range(2))
    language_preview(seen, short=False)
    assert all(p.grad is None for p in seen.learner().parameters())
    assert torch.equal(seen.learner().vector(), unseen.learner().vector())
    assert RunTrainee(seen).advance() == RunTrainee(unseen).advance()


def test_a_pace_is_linear():
    assert Pace(2.0, 0.5)(3, 8) == 10.0
    assert [size_text(size) for size in (1536, 99e6, 1e8, 12.5e9)] == ["0.00154 MB", "99 MB", "0.1 GB", "12.5 GB"]

"""The world of text: random numbers, groups, columns and figures of what is sampled and judged."""

from __future__ import annotations

import pytest
import torch

import melior
from melior.loops.given import Given
from melior.loops.language import build
from melior.settings import LanguageSettings
from melior.worlds.text import _merged, columns_of


@pytest.fixture
def run():
    """A prepared run of the table on four prompts of a lock."""
    settings = LanguageSettings(model="table", task="lock:P=4,L=3,V=4", prompts=4, n=3, max_tokens=3, steps=5)
    return build(melior.get("rloo"), settings, Given())


def tokens(batch):
    return batch.tokens.tolist()


def test_noise_is_keyed_by_step_round_prompt_and_sibling(run):
    prompts = run.next_prompts(4)
    first = run.sample(prompts, 3)
    assert tokens(run.sample(prompts, 3)) != tokens(first)  # a second call within a step has numbers of its own
    run.step = 1
    later = run.sample(prompts, 3)
    run.step = 0
    assert tokens(run.sample(prompts, 3)) == tokens(first) != tokens(later)
    run.step, run.round = 1, 1
    assert tokens(run.sample(prompts, 3)) != tokens(later)
    run.step, run.round = 2, 0
    part = run.sample(prompts[2:], 2)  # fewer prompts and siblings: those that are there draw the same
    run.step = 3
    run.step = 2
    run.world.load_state(run.world.state())
    whole = run.sample(prompts, 3)
    assert tokens(part) == [tokens(whole)[i] for i in (6, 7, 9, 10)]


def test_groups_of_different_rounds_never_merge(run):
    prompts = run.next_prompts(8)  # a curriculum may try more than a batch holds
    first = run.sample(prompts, 3)
    run.round = 1
    second = run.sample(prompts, 3)
    assert first.group.tolist() == [g for g in range(8) for _ in range(3)]
    assert not set(first.group.tolist()) & set(second.group.tolist())


def test_the_position_in_the_data_comes_back(run):
    run.next_prompts(3)
    state = run.world.state()
    following = run.next_prompts(4)
    run.world.load_state(state)
    assert [p.index for p in run.next_prompts(4)] == [p.index for p in following] == [3, 4, 5, 6]


def test_evaluations_draw_the_same_at_every_step_and_move_nothing(run):
    before, state = run.evaluate(), run.world.state()
    run.step = 3
    assert run.evaluate() == before and run.world.state() == state
    prompts = run.next_prompts(4)
    first = run.sample(prompts, 3)
    run.world.load_state(state)
    run.evaluate()
    assert tokens(run.sample(prompts, 3)) == tokens(first)


def test_greedy_completions_are_the_likeliest(run):
    with torch.no_grad():
        run.learner().policy.logits[..., 2] += 9.0
    batch = run.sample(run.next_prompts(4), 2, greedy=True)
    assert set(batch.tokens.flatten().tolist()) == {2}


def test_judging_twice_changes_nothing(run):
    batch = run.world.judge(run, run.sample(run.next_prompts(4), 3))
    assert run.world.judge(run, batch) is batch
    assert torch.equal(batch.outcome, batch.components["correct"])


def test_a_column_is_numeric_where_every_row_holds_a_number():
    rows = [{"a": 1, "b": 2.5, "c": True, "d": 1, "e": "x"}, {"a": 2, "b": None, "c": False, "e": "y"}]
    assert columns_of(rows) == {"a": True, "b": False, "c": False, "d": False, "e": False}


def test_reports_of_several_calls_become_one():
    calls = [
        (4, {"reward/f/digits": 1.0, "reward/m_timeouts": 2.0}),
        (12, {"reward/f/digits": 3.0, "reward/m_timeouts": 1.0}),
    ]
    assert _merged(calls) == {"reward/f/digits": 2.5, "reward/m_timeouts": 3.0}

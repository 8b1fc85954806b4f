"""What an engine elsewhere answers becomes completions that end where the policy ends them, or an error."""

from __future__ import annotations

import pytest
import torch

import tiny_models
from melior.engines.completions import Completion, drawn
from melior.engines.protocol import Order
from melior.engines.weights import Labels
from melior.errors import RunError
from melior.policies.loading import load_causal_lm


@pytest.fixture(scope="module")
def policy():
    return load_causal_lm((tiny_models.network(), tiny_models.tokenizer()), dtype="float32")[0]


def answer(policy, tokens, spans=None, **more):
    order = Order([(3, 4)], 1, [0], 0, "test", 0, 0, **{"max_tokens": 4, **more})
    completion = Completion(tokens, [-0.5] * len(tokens), spans)
    return drawn(policy, order, [[completion]], labels().version, "the engine", 64)


def labels():
    known = Labels()
    known.add("a", 3)
    known.add("b", 4)
    return known


def word(policy, text):
    (token,) = policy.render(text)
    return token


def test_an_end_token_ends_and_counts_and_what_follows_is_dropped(policy):
    (end,) = policy.stop_ids
    got = answer(policy, [5, 6, end, 7]).sampled
    assert got.tokens.tolist() == [[5, 6, end]] and got.length.tolist() == [3] and got.stopped_by == ("end",)
    assert got.logp.tolist() == [[-0.5] * 3] and not got.truncated.any()


def test_the_limit_ends_and_is_no_end_of_the_policys_own(policy):
    got = answer(policy, [5, 6, 5, 6, 5]).sampled
    assert got.tokens.tolist() == [[5, 6, 5, 6]] and got.truncated.tolist() == [True] and got.stopped_by == ("limit",)
    (end,) = policy.stop_ids
    assert answer(policy, [5, 6, 5, end]).sampled.stopped_by == ("end",)
    assert answer(policy, [5, 6, 5, 6, end]).sampled.stopped_by == ("limit",)


def test_a_stop_string_ends_after_the_token_that_completes_it(policy):
    a, b, c = (word(policy, letter) for letter in "abc")
    got = answer(policy, [c, a, b, c], stop=("ab",)).sampled
    assert got.tokens.tolist() == [[c, a, b]] and got.stopped_by == ("string",)
    at_the_limit = answer(policy, [c, c, a, b], stop=("ab",)).sampled
    assert at_the_limit.stopped_by == ("string",) and not at_the_limit.truncated.any()


def test_a_completion_that_ends_without_a_reason_is_an_error(policy):
    for tokens in ([], [5, 6]):
        with pytest.raises(RunError, match=rf"the engine ended a completion of prompt 0 after {len(tokens)} tokens"):
            answer(policy, tokens)


def test_every_token_has_the_version_of_the_weights_that_drew_it(policy):
    assert answer(policy, [5, 6, 5, 6]).version.tolist() == [[4] * 4]  # nothing was said: those that were pushed last
    assert answer(policy, [5, 6, 5, 6], [("a", 0, 1), ("b", 1, 4)]).version.tolist() == [[3, 4, 4, 4]]
    with pytest.raises(RunError, match="weights that it calls 'c', which this run did not give it"):
        answer(policy, [5, 6, 5, 6], [("c", 0, 4)])


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (Completion([5, 6], [-1.0]), "with 2 tokens and 1 log-probabilities"),
        (Completion([5, 999], [-1.0, -1.0]), "with token 999, but the policy has"),
        (Completion([5], [0.5]), "no log-probabilities"),
        (Completion([5], [float("nan")]), "no log-probabilities"),
    ],
    ids=["lengths", "vocabulary", "positive", "nan"],
)
def test_answers_that_cannot_be_are_errors(policy, completion, message):
    order = Order([(3, 4)], 1, [0], 0, "test", 0, 0, 4)
    with pytest.raises(RunError, match=message):
        drawn(policy, order, [[completion]], labels().version, "the engine")
    with pytest.raises(RunError, match="the engine returned 0 completions of prompt 0 instead of 1"):
        drawn(policy, order, [[]], labels().version, "the engine")


def test_the_shorter_of_two_contexts_holds(policy):
    order = Order([(3, 4)], 1, [0], 0, "test", 0, 0, 4)
    got = drawn(policy, order, [[Completion([5, 6], [-1.0, -1.0])]], labels().version, "the engine", 4)
    assert got.sampled.truncated.tolist() == [True] and got.sampled.length.tolist() == [2]
    with pytest.raises(RunError, match="prompt 0 has 2 tokens, but the sampler's context is 2"):
        drawn(policy, order, [[]], labels().version, "the engine", 2)


def test_seeds_of_prompts_are_keyed_and_leave_room_for_siblings():
    order = Order([(1,), (2,)], 4, [0, 1], 0, "test", 0, 0, 4)
    again = Order([(2,)], 2, [1], 0, "test", 0, 0, 8)
    other = Order([(2,)], 2, [1], 0, "test", 1, 0, 8)
    assert order.seed_of(1) == again.seed_of(0) != other.seed_of(0) and order.seed_of(0) != order.seed_of(1)
    assert all(0 <= order.seed_of(i) < 2**62 for i in range(2))


def test_logp_of_a_rounding_above_zero_is_zero(policy):
    order = Order([(3, 4)], 1, [0], 0, "test", 0, 0, 1)
    got = drawn(policy, order, [[Completion([5], [1e-6])]], labels().version, "the engine")
    assert torch.equal(got.sampled.logp, torch.zeros(1, 1))

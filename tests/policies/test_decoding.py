"""Cached decoding is the full forward pass, however the rows are padded, repeated, dropped and cached."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tiny_models import KINDS, policy

PROMPTS = [(2, 3, 4), (5, 6, 7, 8, 9, 10), (11,)]
EVEN = [(2, 3, 4), (5, 6, 7)]


def walk(actor, prompts, n, steps, drop=()):
    """Feed fixed tokens; at each step compare with an unpadded forward pass. Returns the largest difference."""
    decoder = actor.decoder(prompts, n)
    rows = [list(prompt) for prompt in prompts for _ in range(n)]
    logits, worst = decoder.start(), 0.0
    for t in range(steps):
        with torch.no_grad():
            want = torch.stack([actor.network(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])
        worst = max(worst, float((logits - want).abs().max()))
        if t in drop:
            kept = [i for i in range(len(rows)) if i % 3 != 1]
            decoder.keep(torch.tensor(kept))
            rows = [rows[i] for i in kept]
        tokens = [(3 * i + 5 * t) % 20 + 2 for i in range(len(rows))]
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        logits = decoder.step(torch.tensor(tokens))
    return worst


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompts", [PROMPTS, EVEN])
def test_cached_decoding_equals_the_full_forward(kind, prompts):
    assert walk(policy(kind), prompts, 3, 8, drop=(2, 5)) < 1e-12


def test_a_sliding_window_slides():
    actor = policy("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert walk(actor, PROMPTS, 2, 10, drop=(3,)) < 1e-12


@pytest.mark.parametrize("kind", ["mamba", "lfm2", "jamba"])
def test_state_space_models_decode_too(kind):  # they compute parts in float32 whatever their weights
    assert walk(policy(kind), PROMPTS, 3, 6, drop=(2,)) < 1e-4
    assert walk(policy(kind), EVEN, 2, 4) < 1e-4


def test_long_completions_append_in_place(monkeypatch):
    monkeypatch.setattr("melior.policies.kv_cache.SHORT", 9)
    assert walk(policy(), PROMPTS, 2, 40, drop=(10, 20)) < 1e-12


def test_a_cache_whose_rows_cannot_be_selected_is_filled_for_each_row(monkeypatch):
    actor = policy()
    monkeypatch.setattr("melior.policies.decoding.CachedDecoder._select", lambda self, index: False)
    assert walk(actor, PROMPTS, 3, 8, drop=(2, 5)) < 1e-12


def test_a_prompt_is_encoded_once_for_all_its_siblings():
    actor, shapes = policy(), []
    actor.network.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    decoder = actor.decoder(PROMPTS, 5)
    decoder.start()
    decoder.step(torch.arange(15) % 20)
    assert shapes == [(3, 6), (15, 1)]


def test_left_padding_does_not_move_positions():  # absolute positions are where it shows
    alone = policy("gpt2").decoder([(2, 3, 4)], 1).start()
    padded = policy("gpt2").decoder([(2, 3, 4), (5, 6, 7, 8, 9, 10)], 1).start()[:1]
    assert_close(alone, padded, rtol=0, atol=1e-12)

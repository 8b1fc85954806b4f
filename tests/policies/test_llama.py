"""Single steps beside the model's own forward pass."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from melior.engines.sampler import sample
from melior.policies.causal_lm import CausalLM
from melior.policies.lora import add_lora
from tiny_models import network, policy, tokenizer

PROMPTS = ((2, 3, 4), (5, 6, 7, 8, 9))


def walked(actor: CausalLM, alone: bool, steps: int = 40) -> list[torch.Tensor]:
    """Logits of two prompts with three rows each; two rows leave on the way."""
    actor._alone = alone
    decoder = actor.decoder(PROMPTS, 3)
    found = [decoder.start()]
    assert (decoder.steps is not None) is alone
    for t in range(steps):
        if t in (5, 20):
            decoder.keep(torch.arange(len(found[-1]))[1:])
            found[-1] = found[-1][1:]
        found.append(decoder.step((torch.arange(len(found[-1])) * 5 + t) % actor.vocabulary))
    return found


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_are_the_models_own(heads, tied, attention):
    actor = policy(dtype=torch.float32, num_key_value_heads=heads, tie_word_embeddings=tied)
    actor.network.set_attn_implementation(attention)
    assert actor.steps_alone()
    for mine, truth in zip(walked(actor, True), walked(actor, False), strict=True):
        assert_close(mine, truth, rtol=1e-4, atol=1e-4)


def test_recorded_log_probabilities_are_the_trainers():
    actor = policy(dtype=torch.float32)
    noise = torch.rand(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for alone in (True, False):
        actor._alone = alone
        found.append(sample(actor, PROMPTS, 2, noise, temperature=0.7))
    assert torch.equal(found[0].tokens, found[1].tokens)
    assert_close(found[0].logp, found[1].logp, rtol=1e-5, atol=1e-5)


def test_steps_see_the_weights_as_they_are_now():
    actor = policy(dtype=torch.float32)
    before = walked(actor, True, 1)[-1]
    with torch.no_grad():
        for _, value in actor.named_parameters():
            value.mul_(1.1)
    assert (walked(actor, True, 1)[-1] - before).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gemma2"])
def test_other_models_keep_their_own_forward_pass(kind):
    assert not policy(kind, dtype=torch.float32).steps_alone()


def test_float64_and_adapters_keep_the_models_own_forward_pass():
    assert not policy().steps_alone()
    model = network(dtype=torch.float32)
    assert not CausalLM(model, tokenizer(), adapter=add_lora(model, 2)).steps_alone()


@pytest.mark.parametrize("change", [{"attention_bias": True}, {"mlp_bias": True}, {"hidden_act": "gelu"}])
def test_what_the_steps_leave_out_is_not_left_out_of_the_model(change):
    assert not policy(dtype=torch.float32, **change).steps_alone()


def test_a_model_of_the_same_name_that_computes_something_else_is_found_out():
    model = network(dtype=torch.float32)
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, out: 1.5 * out)
    assert not CausalLM(model, tokenizer()).steps_alone()

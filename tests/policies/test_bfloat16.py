"""bfloat16 on processors without its instructions: the results of bfloat16, computed by products in float32."""

from __future__ import annotations

import pytest
import torch

from melior.policies import bfloat16
from melior.policies.bfloat16 import Float32Products, products
from melior.policies.causal_lm import CausalLM
from melior.policies.lora import add_lora
from tiny_models import KINDS, batch_of, network, policy, tokenizer

LENGTH = torch.tensor([6, 3, 5, 1])
BATCH = batch_of([(2, 3, 4)] * 2 + [(5, 6)] * 2, torch.arange(24).view(4, 6) % 20 + 2, LENGTH)


def gradients(actor: CausalLM) -> tuple[torch.Tensor, torch.Tensor]:
    logp = actor.evaluate(BATCH).logp
    logp.square().sum().backward()
    flat = torch.cat([p.grad.flatten() for _, p in actor.named_parameters() if p.grad is not None])
    for _, p in actor.named_parameters():
        p.grad = None
    return logp.detach(), flat


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, 0))


@pytest.fixture(params=[False, True], ids=["without", "with"])
def instructions(request, monkeypatch):
    monkeypatch.setattr(bfloat16, "_cpu_multiplies", lambda: request.param)
    return request.param


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_float32_to_the_precision_of_bfloat16(kind, attention, instructions):
    actor = policy(kind, dtype=torch.float32)
    actor.network.set_attn_implementation(attention)
    exact, slope = gradients(actor)
    actor.autocast = True
    rough, rounded = gradients(actor)
    assert 1e-4 < (rough - exact).abs().max() < 0.5
    assert cosine(slope, rounded) > 0.995 and rounded.dtype == torch.float32


def test_products_in_float32_are_no_rougher_than_bfloat16s_own(monkeypatch):
    actor = policy(dtype=torch.float32)
    exact = actor.evaluate(BATCH).logp.detach()
    actor.autocast = True
    errors = {}
    for native in (True, False):
        monkeypatch.setattr(bfloat16, "_cpu_multiplies", lambda native=native: native)
        errors[native] = float((actor.evaluate(BATCH).logp.detach() - exact).abs().mean())
    assert errors[False] < 1.1 * errors[True]


def test_a_layer_keeps_its_input_in_bfloat16_and_gives_bfloat16():
    kept = []
    layer, x = torch.nn.Linear(8, 5), torch.randn(3, 4, 8)
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
        torch.autocast("cpu", torch.bfloat16),
        Float32Products(),
    ):
        out = layer(x)
    assert out.dtype == torch.bfloat16 and out.shape == (3, 4, 5)
    assert [t.dtype for t in kept if t.shape == (12, 8)] == [torch.bfloat16]
    torch.testing.assert_close(out.float(), layer(x), rtol=2e-2, atol=2e-2)


def test_nothing_changes_outside_of_autocast_or_where_there_are_instructions(instructions):
    layer, x = torch.nn.Linear(8, 5), torch.randn(3, 8)
    with products(torch.device("cpu"), False), Float32Products():
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert isinstance(products(torch.device("cpu"), True), Float32Products) is not instructions


def test_recomputed_layers_and_chunks_are_computed_the_same_way(monkeypatch):
    monkeypatch.setattr(bfloat16, "_cpu_multiplies", lambda: False)
    plain = CausalLM(network(dtype=torch.float32), tokenizer(), autocast=True)
    again = CausalLM(network(dtype=torch.float32), tokenizer(), autocast=True, gradient_checkpointing=True)
    again.chunk_elements = 5 * again.vocabulary
    (logp, slope), (other, slope_again) = gradients(plain), gradients(again)
    assert torch.equal(logp, other)
    torch.testing.assert_close(slope_again, slope, rtol=1e-4, atol=1e-4)


def test_adapters_learn_in_bfloat16_too(monkeypatch):
    monkeypatch.setattr(bfloat16, "_cpu_multiplies", lambda: False)
    model = network(dtype=torch.float32)
    actor = CausalLM(model, tokenizer(), adapter=add_lora(model, 2))
    with torch.no_grad():
        for _, value in actor.named_parameters():
            value.add_(0.05)
    _, slope = gradients(actor)
    actor.autocast = True
    assert cosine(slope, gradients(actor)[1]) > 0.99

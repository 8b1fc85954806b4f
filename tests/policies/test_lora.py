"""LoRA: the reference is the policy at the start, a loaded adapter included, and only the adapter is trained."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from torch.testing import assert_close

from melior.engines.sampler import sample
from melior.errors import RunError, UserError
from melior.objectives.heads import ReverseKL
from melior.parts import Need
from melior.policies.loading import load_causal_lm
from tiny_models import VOCABULARY, batch_of, network, tokenizer

PROMPTS = ((2, 3, 4), (5, 6, 7, 8))
BATCH = batch_of(PROMPTS, torch.arange(12).reshape(2, 6) % VOCABULARY, torch.tensor([6, 4]))


def load(source, **options):
    return load_causal_lm(source, dtype="float64", device="cpu", **options)[0]


def fresh(rank=3, kind="llama"):
    return load((network(kind), tokenizer()), lora=rank)


def disturb(actor, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, value in actor.named_parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=generator, dtype=value.dtype))


def logp(actor):
    return actor.evaluate(BATCH).logp.detach()


def close(a, b, atol=0.0):
    assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_fresh_adapter_changes_nothing_and_reaches_every_linear_layer(kind):
    plain, actor = load((network(kind), tokenizer())), fresh(kind=kind)
    close(logp(actor), logp(plain), 1e-14)
    names = [name for name, _ in actor.named_parameters()]
    assert names == list(actor.state()) and all("lora_" in name for name in names)
    assert len(names) == 2 * 2 * (7 if kind == "llama" else 4) and not any("lm_head" in name for name in names)
    assert actor.adapter.peft.peft_config["default"].lora_alpha == 6


def test_the_first_factor_is_the_same_in_every_run_and_the_global_generator_is_left_alone():
    first, second = network(), network()
    torch.manual_seed(5)
    one = load((first, tokenizer()), lora=3).state()
    after = torch.rand(1)
    torch.manual_seed(5)
    close(torch.rand(1), after)
    two = load((second, tokenizer()), lora=3).state()
    for name in one:
        close(one[name], two[name])


def test_the_reference_is_the_policy_at_the_start():
    actor = fresh()
    reference, before = actor.frozen(), logp(actor)
    disturb(actor)
    assert (logp(actor) - before).abs().max() > 1e-3
    close(logp(reference), before)
    assert not reference.evaluate(BATCH).logp.requires_grad and actor.evaluate(BATCH).logp.requires_grad
    assert not list(reference.named_parameters())


def test_the_reference_of_a_loaded_adapter_is_that_adapter(tmp_path):
    base = network()
    base.save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    first = load(tmp_path / "base", lora=3)
    disturb(first)
    trained = logp(first)
    first.save(tmp_path / "adapter")
    again = load(tmp_path / "adapter")
    close(logp(again), trained)
    reference = again.frozen()
    disturb(again, seed=1)
    close(logp(reference), trained)
    assert (logp(again) - trained).abs().max() > 1e-3 and list(again.state()) == list(first.state())


def test_a_gradient_through_a_term_that_reads_the_reference_reaches_only_the_live_adapter():
    actor = fresh()
    disturb(actor)
    reference = actor.frozen()
    disturb(actor, seed=1)
    actor.chunk_elements = 30
    needs = frozenset({Need("kl", head=ReverseKL("reference"))})
    now = actor.evaluate(BATCH, needs, {"reference": reference})
    (now.logp.sum() + now["kl"].sum()).backward()
    got = {name: value.grad.clone() for name, value in actor.named_parameters()}
    assert all(grad.any() for grad in got.values())
    assert all(value.grad is None for name, value in actor.network.named_parameters() if "default" not in name)
    actor.adapter.peft.zero_grad()
    actor.chunk_elements = 10**6
    now = actor.evaluate(BATCH, needs, {"reference": reference})
    (now.logp.sum() + now["kl"].sum()).backward()
    for name, value in actor.named_parameters():
        close(got[name], value.grad, 1e-12)


def test_a_frozen_policy_has_the_live_names_takes_the_live_state_and_can_be_averaged():
    actor = fresh()
    average = actor.frozen()
    disturb(actor)
    assert list(average.state()) == list(actor.state())
    for name, value in average.state().items():
        value.lerp_(actor.state()[name], 1.0)
    close(logp(average), logp(actor), 1e-12)
    disturb(actor, seed=2)
    average.load_state(actor.state())
    close(logp(average), logp(actor))


def test_training_reaches_the_sampler_at_once():  # a probe prompt's log-probability agrees
    actor = fresh()
    reference = actor.frozen()
    noise = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    disturb(actor)
    for acting in (actor, reference):
        out = sample(acting, PROMPTS, 2, noise, temperature=1.0)
        b = batch_of([p for p in PROMPTS for _ in range(2)], out.tokens, out.length)
        close(acting.evaluate(b).logp.detach() * b.mask, out.logp, 1e-12)


def test_a_frozen_adapter_goes_when_its_policy_goes():
    actor = fresh()
    twin = actor.frozen()
    assert len(actor.adapter.peft.peft_config) == 2
    before = logp(actor)
    del twin
    gc.collect()
    assert list(actor.adapter.peft.peft_config) == ["default"]
    close(logp(actor), before)
    assert actor.evaluate(BATCH).logp.requires_grad


def test_a_saved_adapter_is_what_peft_loads(tmp_path):
    import peft

    actor = fresh()
    actor.frozen()
    disturb(actor)
    actor.save(tmp_path)
    plain = peft.PeftModel.from_pretrained(network(), str(tmp_path)).eval()
    ids = torch.tensor([[2, 3, 4, 5]])
    close(plain(input_ids=ids).logits.detach(), actor.network(input_ids=ids).logits.detach(), 1e-12)
    assert {p.name for p in tmp_path.iterdir() if p.suffix == ".safetensors"} == {"adapter_model.safetensors"}


def test_a_saved_adapter_is_taken_back_bit_for_bit(tmp_path):
    one, other = fresh(), fresh()
    for actor in (one, other):
        norm = actor.network.get_parameter("model.norm.weight").requires_grad_()  # what the user unfroze is kept too
        actor.trained = (*actor.trained, "model.norm.weight")
    disturb(one)
    reference, live = other.frozen(), list(other.named_parameters())
    assert norm.requires_grad and "model.model.norm.weight" in one.state()
    before = {name: value.clone() for name, value in reference.state().items() if "lora_" in name}
    one.save(tmp_path)
    other.load(tmp_path)
    assert list(one.state()) == list(other.state())
    assert all(torch.equal(a, b) for a, b in zip(one.state().values(), other.state().values(), strict=True))
    assert all(p is q for (_, p), (_, q) in zip(live, other.named_parameters(), strict=True))
    assert torch.equal(logp(other), logp(one))
    assert before and all(torch.equal(value, reference.state()[name]) for name, value in before.items())
    with pytest.raises(RunError, match=r"the adapter in .* has a superfluous"):
        load((network(num_hidden_layers=1), tokenizer()), lora=3).load(tmp_path)


def test_a_peft_model_may_be_handed_in():
    import peft

    config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)
    actor = load((peft.get_peft_model(network(), config), tokenizer()))
    assert len(actor.state()) == 4
    disturb(actor)
    close(logp(actor), logp(actor))  # dropout is off
    two = peft.get_peft_model(network(), config)
    two.add_adapter("more", config)
    with pytest.raises(UserError, match=r"default .*more"):
        load((two, tokenizer()))


def test_gradient_checkpointing_with_an_adapter():
    def gradients(checkpointing):
        actor = load((network(), tokenizer()), lora=3, gradient_checkpointing=checkpointing)
        disturb(actor)
        actor.evaluate(BATCH).logp.sum().backward()
        return {name: value.grad for name, value in actor.named_parameters()}

    truth, got = gradients(False), gradients(True)
    for name in truth:
        close(got[name], truth[name], 1e-12)


def test_impossible_adapters_are_named(tmp_path):
    network().save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    load(tmp_path / "base", lora=2).save(tmp_path / "adapter")
    with pytest.raises(UserError, match="already has a LoRA adapter"):
        load(tmp_path / "adapter", lora=2)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="does not name its base model"):
        load(tmp_path / "adapter")

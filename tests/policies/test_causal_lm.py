"""A language model as a policy: exact log-probabilities, heads, values and pooled states, without dropout."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

from heads import TemperedLogp
from melior.errors import RunError, UserError
from melior.objectives.heads import Entropy, ReverseKL, entropy, reverse_kl
from melior.parts import Need
from melior.policies.causal_lm import CausalLM
from tiny_models import KINDS, VOCABULARY, batch_of, direct_logp, network, policy, tokenizer

PROMPTS = ((2, 3, 4), (5, 6, 7, 8, 9, 10), (11,), (12, 13))
LENGTH = torch.tensor([5, 1, 4, 3])
VALUE = Need("value")


def batch(width: int = 7):
    generator = torch.Generator().manual_seed(1)
    return batch_of(PROMPTS, torch.randint(0, VOCABULARY, (4, width), generator=generator), LENGTH)


def logits_of(actor, b, row):
    ids = torch.tensor([[*b.prompt[row], *b.tokens[row, : LENGTH[row]].tolist()]])
    return actor.network(input_ids=ids).logits[0, len(b.prompt[row]) - 1 : -1] / actor.temperature


def close(a, b, atol=1e-12):
    assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_unpadded_rows(kind, temperature):
    actor, b = policy(kind, temperature=temperature), batch()
    logp = actor.evaluate(b).logp.detach()
    for row in range(4):
        tokens = b.tokens[row, : LENGTH[row]].tolist()
        close(logp[row, : len(tokens)], direct_logp(actor.network, PROMPTS[row], tokens, temperature))
        assert not logp[row, len(tokens) :].any()


@pytest.mark.parametrize("kind", ["gemma2", "granite", "cohere"])
def test_models_that_scale_or_bound_their_logits_are_recognized(kind):
    dtype = torch.float32
    actor, b = policy(kind, dtype=dtype), batch()
    assert actor.output.scale is not None and actor.output != type(actor.output)()
    for row in range(4):
        tokens = b.tokens[row, : LENGTH[row]].tolist()
        want = direct_logp(actor.network, PROMPTS[row], tokens).float()
        close(actor.evaluate(b).logp.detach()[row, : len(tokens)], want, 1e-4)


def test_a_model_whose_logits_follow_otherwise_is_asked_for_all_of_them():
    class Odd(torch.nn.Linear):
        calls = 0

        def forward(self, hidden):  # differs between the whole model and the head alone
            self.calls += 1
            return super().forward(hidden) + (hidden.shape[-2] if hidden.dim() == 3 else 0) * self.bias

    model = network()
    odd = Odd(32, VOCABULARY, dtype=torch.float64)
    model.set_output_embeddings(odd)
    original = model.forward
    model.forward = lambda *args, **kwargs: _doubled(original(*args, **kwargs))
    actor = CausalLM(model, tokenizer())
    b = batch()
    assert actor.output.scale is None
    got = actor.evaluate(b, frozenset({Need("entropy", head=Entropy())}))
    width = int((torch.tensor([len(p) for p in PROMPTS]) + LENGTH).max()) - 1
    ids = torch.zeros(4, width, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        whole = [*prompt, *b.tokens[row, : LENGTH[row]].tolist()][:width]
        ids[row, : len(whole)] = torch.tensor(whole)
    logits = model(input_ids=ids).logits
    for row, prompt in enumerate(PROMPTS):
        mine = logits[row, len(prompt) - 1 : len(prompt) - 1 + LENGTH[row]]
        want = mine.log_softmax(-1).gather(-1, b.tokens[row, : LENGTH[row], None])[:, 0]
        close(got.logp[row, : LENGTH[row]], want)
        close(got["entropy"][row, : LENGTH[row]], entropy(mine))


def _doubled(out):
    out.logits = out.logits * 2 + out.logits.sin()
    return out


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_values_and_gradients_do_not_depend_on_the_chunks(chunk):
    def run(elements):
        actor = policy()
        actor.prepare(frozenset({VALUE}))
        actor.chunk_elements = elements
        torch.nn.init.ones_(actor.value_head.weight)
        needs = frozenset({Need("entropy", head=Entropy()), VALUE})
        now = actor.evaluate(batch(), needs)
        (now.logp.sin().sum() + now["entropy"].square().sum() + now["value"].cos().sum()).backward()
        return now, {name: value.grad for name, value in actor.named_parameters()}

    (now, gradient), (want, truth) = run(chunk), run(10**7)
    close(now.logp, want.logp)
    close(now["entropy"], want["entropy"])
    for name in truth:
        close(gradient[name], truth[name], 1e-10)


def test_gradients_are_those_of_the_plain_model():
    actor, b = policy(temperature=0.7), batch()
    actor.chunk_elements = 40
    actor.evaluate(b).logp.sum().backward()
    got = {name: value.grad.clone() for name, value in actor.network.named_parameters()}
    actor.network.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(4):
        logp = logits_of(actor, b, row).log_softmax(-1)
        total = total + logp.gather(-1, b.tokens[row, : LENGTH[row], None]).sum()
    total.backward()
    for name, value in actor.network.named_parameters():
        close(got[name], value.grad, 1e-11)


def test_heads_see_tempered_logits_tokens_and_the_other_policies():
    actor, reference = policy(temperature=0.7), policy("gpt2", seed=3, temperature=0.7)
    b = batch()
    actor.chunk_elements = 50
    needs = frozenset(
        {
            Need("entropy"),
            Need("divergence", head=ReverseKL("reference")),
            Need("hot", on="batch", head=TemperedLogp(2.0)),
        }
    )
    now = actor.evaluate(b, needs, {"reference": reference})
    for row in range(4):
        n = int(LENGTH[row])
        mine, theirs = logits_of(actor, b, row), logits_of(reference, b, row)
        close(now["entropy"][row, :n], entropy(mine))
        close(now["divergence"][row, :n], reverse_kl(mine, theirs))
        close(now["hot"][row, :n], (mine / 2).log_softmax(-1).gather(-1, b.tokens[row, :n, None])[:, 0])
    now["divergence"].sum().backward()
    assert all(value.grad is None for value in reference.network.parameters())
    assert any(value.grad.any() for value in actor.network.parameters() if value.grad is not None)


@pytest.mark.parametrize("chunk", [40, 10**6])
def test_only_quantities_on_the_policy_carry_a_gradient(chunk):
    actor = policy()
    actor.prepare(frozenset({VALUE}))
    actor.chunk_elements = chunk
    needs = frozenset({Need("value", on="batch"), Need("entropy", on="batch"), Need("hidden", on="batch")})
    now = actor.evaluate(batch(), needs)
    assert now.logp.requires_grad
    assert not any(now[name].requires_grad for name in ("value", "entropy", "hidden"))
    both = actor.evaluate(batch(), needs | {VALUE, Need("entropy")})
    assert both["value"].requires_grad and both["entropy"].requires_grad
    with torch.no_grad():
        assert not actor.evaluate(batch(), frozenset({VALUE})).logp.requires_grad


def test_a_head_may_read_the_policys_own_logits_without_stopping_its_gradient():
    actor = policy("llama", dtype=torch.float32)
    actor.autocast = True
    needs = frozenset({Need("divergence", head=ReverseKL("live"))})
    actor.evaluate(batch(), needs, {"live": actor}).logp.sum().backward()
    assert all(value.grad is not None and value.grad.any() for value in actor.network.lm_head.parameters())


def test_the_value_is_that_of_the_state_before_each_token():
    actor, b = policy(), batch()
    actor.prepare(frozenset({VALUE}))
    assert not actor.evaluate(b, frozenset({VALUE}))["value"].any()
    with torch.no_grad():
        actor.value_head.weight.copy_(torch.arange(32) / 32)
        actor.value_head.bias.fill_(0.5)
    value = actor.evaluate(b, frozenset({VALUE}))["value"]
    for row in range(4):
        n = int(LENGTH[row])
        ids = torch.tensor([[*PROMPTS[row], *b.tokens[row, :n].tolist()]])
        states = actor.network.model(input_ids=ids).last_hidden_state[0, len(PROMPTS[row]) - 1 : -1]
        close(value[row, :n], states @ actor.value_head.weight + 0.5)


def test_pooled_states_are_the_mean_of_the_last_ten_tokens_at_the_middle_layer():
    actor = policy(num_hidden_layers=4)
    length = torch.tensor([14, 3])
    b = batch_of(PROMPTS[:2], torch.randint(2, VOCABULARY, (2, 14)), length)
    hidden = actor.evaluate(b, frozenset({Need("hidden", on="batch")}))["hidden"]
    for row, n in enumerate(length.tolist()):
        ids = torch.tensor([[*PROMPTS[row], *b.tokens[row, :n].tolist()]])
        states = actor.network(input_ids=ids, output_hidden_states=True).hidden_states[2]
        close(hidden[row], states[0, -min(10, n) :].mean(0))


def test_dropout_is_off_even_where_training_would_have_it():
    actor, b = policy("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5), batch()
    close(actor.evaluate(b).logp, actor.evaluate(b).logp, 0)
    checkpointed = CausalLM(
        network("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5), tokenizer(), gradient_checkpointing=True
    )
    close(checkpointed.evaluate(b).logp, actor.evaluate(b).logp)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_nothing_but_memory(kind):
    def run(checkpointing):
        actor = CausalLM(network(kind), tokenizer(), gradient_checkpointing=checkpointing)
        calls = []
        first = next(m for m in actor.network.modules() if m.__class__.__name__.endswith(("MLP", "GPT2MLP")))
        first.register_forward_pre_hook(lambda *_: calls.append(1))
        actor.evaluate(batch()).logp.sum().backward()
        return len(calls), {name: value.grad for name, value in actor.named_parameters()}

    (once, truth), (twice, got) = run(False), run(True)
    assert (once, twice) == (1, 2)
    for name in truth:
        close(got[name], truth[name], 1e-11)


def test_bfloat16_computes_in_bfloat16_over_float32_weights():
    actor = policy(dtype=torch.float32)
    exact = actor.evaluate(batch()).logp
    actor.autocast = True
    rough = actor.evaluate(batch()).logp
    assert rough.dtype == torch.float32 and 1e-4 < (rough - exact).abs().max() < 0.5
    rough.sum().backward()
    assert all(
        value.dtype == torch.float32 and value.grad.dtype == torch.float32 for _, value in actor.named_parameters()
    )


def test_a_frozen_policy_stays_as_it_was_and_has_the_same_state_names():
    actor, b = policy(), batch()
    actor.prepare(frozenset({VALUE}))
    twin = actor.frozen()
    before = actor.evaluate(b).logp.detach()
    with torch.no_grad():
        for _, value in actor.named_parameters():
            value.add_(0.1)
    close(twin.evaluate(b).logp, before, 0)
    assert (actor.evaluate(b).logp - before).abs().max() > 1e-3
    assert not twin.evaluate(b).logp.requires_grad and not list(twin.named_parameters())
    assert list(twin.state()) == list(actor.state()) == [name for name, _ in actor.named_parameters()]
    twin.load_state(actor.state())
    close(twin.evaluate(b).logp, actor.evaluate(b).logp.detach(), 0)


def test_a_state_that_does_not_fit_is_named():
    actor = policy()
    actor.prepare(frozenset({VALUE}))
    state = {name: value.clone() for name, value in actor.state().items()}
    with pytest.raises(RunError, match=r"lacks tensor 'value_head\.bias'"):
        actor.load_state({name: value for name, value in state.items() if name != "value_head.bias"})
    with pytest.raises(RunError, match=r"superfluous tensor 'model\.more'"):
        actor.load_state({**state, "model.more": torch.zeros(1)})
    with pytest.raises(RunError, match="shape"):
        actor.load_state({**state, "value_head.weight": torch.zeros(3)})


@dataclass(frozen=True)
class Other:
    scorers: tuple[str, ...] = ()

    def __call__(self, logits, tokens, others, hidden):
        return logits[:, 0]


def test_impossible_needs_are_refused():
    actor, b = policy(), batch()
    with pytest.raises(UserError, match="scorer 'reference'"):
        actor.evaluate(b, frozenset({Need("divergence", head=ReverseKL("reference"))}))
    with pytest.raises(RunError, match="prepare"):
        actor.evaluate(b, frozenset({VALUE}))
    with pytest.raises(ValueError, match="quantity 'curvature'"):
        actor.evaluate(b, frozenset({Need("curvature")}))
    with pytest.raises(ValueError, match="two heads are filed under the name 'entropy'"):
        actor.evaluate(b, frozenset({Need("entropy"), Need("entropy", head=Other())}))
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        actor.evaluate(b.with_(prompt=(PROMPTS[0], (), PROMPTS[2], PROMPTS[3])))


def test_rows_at_once_falls_with_width_and_size():
    small, large = policy(), policy(hidden_size=64, num_hidden_layers=8)
    assert small.rows_at_once(20) > 10 * small.rows_at_once(2000) > 0
    assert small.rows_at_once(100) > 4 * large.rows_at_once(100)
    assert small.rows_at_once(10**9) == 1


def test_text_goes_both_ways():
    actor = policy()
    assert actor.render("bad") == (3, 2, 5)
    assert actor.decode([3, 2, 5, 1]) == "bad"

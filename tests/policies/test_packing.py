"""The layout "prefix-grouper": siblings behind one prompt compute what rows of their own compute."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.testing import assert_close

from melior.microbatches import slices
from melior.objectives import Clip
from melior.objectives.heads import Entropy
from melior.parts import Need, Objective, Weighted
from melior.policies.causal_lm import CausalLM
from melior.policies.lora import add_lora
from melior.policies.packing import PrefixGrouper, cost_ratios, siblings
from melior.policies.rows import Rows
from melior.records.catalogue import get
from tiny_models import KINDS, VOCABULARY, batch_of, network, policy, tokenizer
from toys import learner_of

PROMPT, OTHER = (2, 3, 4, 5, 6), (7, 8)
ADVANTAGE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
NEEDS = frozenset({Need("entropy", head=Entropy()), Need("value"), Need("hidden")})


def rows_of(prompts, lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (len(prompts), max(lengths)), generator=generator)
    return batch_of(prompts, tokens, torch.tensor(lengths))


def neox(**changes):
    """Rotary positions like llama's, but norms that compute in float64: llama's round to float32 on the way."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, **changes}
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(vocab_size=VOCABULARY, **size)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3)
    actor = CausalLM(model, tokenizer())
    actor.packing = PrefixGrouper()
    return actor


def group():
    return rows_of((PROMPT,) * 3, [3, 4, 1])


def ragged():
    """Groups of one and of five among each other; one completion is empty, one fills no token but its first."""
    return rows_of((PROMPT, OTHER, PROMPT, PROMPT, PROMPT, PROMPT), [3, 5, 4, 1, 0, 6])


def both(actor, batch, needs=frozenset()):
    """The evaluation and the gradient of a fixed sum of everything in it, packed and apart."""
    actor.prepare(needs)
    if actor.value_head is not None:
        torch.nn.init.ones_(actor.value_head.weight)
    found = []
    for layout in (PrefixGrouper(), None):
        actor.packing = layout
        rows = actor._laid_out(batch, whole=bool(needs))
        assert (rows.segments is None) == (layout is None), "the packed layout is not what is tested"
        for _, value in actor.named_parameters():
            value.grad = None
        now = actor.evaluate(batch, needs)
        total = sum(value.sin().sum() for value in (now.logp, *now.extra.values()))
        total.backward()
        gradient = {name: value.grad for name, value in actor.named_parameters()}
        found.append(({"logp": now.logp, **now.extra}, gradient))
    actor.packing = PrefixGrouper()
    return found


def assert_same(found, atol=1e-12):
    (packed, mine), (apart, truth) = found
    for name in apart:
        assert_close(packed[name], apart[name], rtol=0, atol=atol)
    assert mine.keys() == truth.keys()
    for name in truth:
        assert (mine[name] is None) == (truth[name] is None)
        if truth[name] is not None:
            assert_close(mine[name], truth[name], rtol=0, atol=atol * max(1.0, float(truth[name].abs().max())))


def test_check_1_loss_and_all_gradients_agree_to_1e_12():
    actor, b = neox(), group()
    losses, gradients = [], []
    for layout in (PrefixGrouper(), None):
        actor.packing = layout
        actor.network.zero_grad()
        loss = (ADVANTAGE[:, None] * actor.evaluate(b).logp).sum()
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: value.grad.clone() for name, value in actor.named_parameters()})
    assert_close(losses[0], losses[1], rtol=0, atol=1e-12)
    for name, truth in gradients[1].items():
        assert truth.any()
        assert_close(gradients[0][name], truth, rtol=0, atol=1e-12)


def test_attention_written_out_takes_the_mask_as_well():
    actor = neox()
    actor.network.set_attn_implementation("eager")  # its softmax is in float32
    assert_same(both(actor, ragged(), NEEDS), 2e-6)


def test_check_1_positions_that_run_on_change_the_loss():
    actor, b = neox(), group()
    rows = Rows.of(b, actor.device, plan=[[0, 1, 2]])
    assert rows.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 5, 6, 7]]

    def loss(positions, mask):
        hidden = actor.output.run(actor.network, rows.ids, positions, False, mask).hidden.flatten(0, 1)[rows.before]
        logp = actor.output(actor.network, hidden).log_softmax(-1).gather(-1, rows.tokens[:, None])[:, 0]
        return float((ADVANTAGE[:, None] * rows.spread(logp.detach())).sum())

    actor.packing = None
    truth = float((ADVANTAGE[:, None] * actor.evaluate(b).logp.detach()).sum())
    mask = rows.mask(torch.float64)
    assert loss(rows.positions, mask) == pytest.approx(truth, abs=1e-12)
    assert abs(loss(torch.arange(10)[None], mask) - truth) > 1e-2
    assert abs(loss(rows.positions, torch.ones(1, 1, 10, 10, dtype=torch.bool).tril()) - truth) > 1e-2


def test_check_2_cost_ratios():
    def rounded(*sizes):
        return tuple(round(ratio, 6) for ratio in cost_ratios(*sizes))

    assert rounded(4096, 4096, 8) == (0.78125, 0.5625)
    assert rounded(4096, 512, 8) == (0.308642, 0.222222)
    assert rounded(16384, 512, 16) == (0.118457, 0.090909)
    assert rounded(7, 0, 4) == (0.25, 0.25)
    assert rounded(0, 7, 4) == (1, 1)


def test_check_4_permuting_responses_permutes_outputs():
    actor, b = neox(), group()
    order = torch.tensor([2, 0, 1])
    assert_close(actor.evaluate(b.rows(order)).logp, actor.evaluate(b).logp[order], rtol=0, atol=1e-10)


def test_check_4_another_response_leaves_the_others_alone():
    actor, b = neox(), rows_of((PROMPT,) * 4, [3, 4, 2, 4])
    few, all_of_them = actor.evaluate(b.rows([0, 1, 2])).logp, actor.evaluate(b).logp
    assert_close(all_of_them[:3, :4], few[:, :4], rtol=0, atol=1e-10)


def test_check_5_ragged_groups_agree_in_everything_a_policy_knows():
    assert_same(both(neox(), ragged(), NEEDS))
    assert_same(both(neox(), ragged()))


@pytest.mark.parametrize("kind", [*KINDS, "granite", "cohere", "gemma2"])
def test_every_kind_of_transformer_agrees_to_the_precision_of_its_norms(kind):
    assert_same(both(policy(kind, temperature=0.7), ragged(), NEEDS), 1e-11 if kind == "gpt2" else 1e-5)


@pytest.mark.parametrize("plan", [[[0, 2, 3, 4, 5], [1]], [[5, 0, 4], [1], [3, 2]], [[0], [1], [2], [3], [4], [5]]])
def test_check_5_every_token_is_found_again_under_every_plan(plan):
    b = ragged()
    rows = Rows.of(b, torch.device("cpu"), whole=True, plan=plan)
    ids, positions = rows.ids.flatten(), rows.positions.flatten()
    for row, (prompt, n) in enumerate(zip(b.prompt, b.length.tolist(), strict=True)):
        own = slice(int(rows.start[row]), int(rows.start[row]) + n)
        assert ids[own].tolist() == b.tokens[row, :n].tolist()
        assert positions[own].tolist() == list(range(len(prompt), len(prompt) + n))
    assert torch.equal(rows.spread(rows.tokens.double()).long(), torch.where(b.present, b.tokens, 0))
    assert int((rows.segments >= 0).sum()) == sum(len(b.prompt[r[0]]) for r in plan) + int(b.length.sum())
    assert bool(rows.mask(torch.bool).any(-1).all())


def test_gradient_checkpointing_and_lora_agree_too():
    checkpointed = CausalLM(network(), tokenizer(), gradient_checkpointing=True)
    assert_same(both(checkpointed, ragged()), 2e-6)
    model = network()
    adapted = CausalLM(model, tokenizer(), adapter=add_lora(model, 2))
    with torch.no_grad():
        for _, value in adapted.named_parameters():
            value.add_(0.05)
    assert_same(both(adapted, ragged()), 2e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bfloat16_agrees_to_its_precision(attention):
    actor = policy(dtype=torch.float32)
    actor.network.set_attn_implementation(attention)
    actor.autocast = True
    (packed, _), (apart, _) = both(actor, ragged())
    assert_close(packed["logp"], apart["logp"], rtol=0, atol=0.3)
    assert (packed["logp"] - apart["logp"]).abs().mean() < 0.03


def test_other_policies_logits_meet_the_right_actions():
    actor, b = neox(), ragged()
    packed = actor.logit_source(b)(0, int(b.length.sum()))
    actor.packing = None
    assert_close(packed, actor.logit_source(b)(0, int(b.length.sum())), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_the_learner_takes_the_same_gradient_and_curvature(rows):
    b = ragged()
    b = b.with_(advantage=torch.randn(b.mask.shape, dtype=torch.float64) * b.mask)
    objective = Objective((Weighted(1.0, Clip()),))
    found = []
    for layout in (PrefixGrouper(), None):
        actor = neox()
        actor.packing = layout
        learner = learner_of(actor, rows=rows)
        loss = learner.gradient(objective, b.with_(proximal_logp=actor.evaluate(b).logp.detach() + 0.1))
        vector = torch.ones_like(learner.vector())
        found.append((loss.value, learner.grad_vector(), learner.hvp(objective, b, vector)))
    for mine, truth in zip(*found, strict=True):
        assert_close(mine, truth, rtol=1e-10, atol=1e-11)
    assert found[0][1].any() and found[0][2].any()


class TestRefusal:
    """Whatever does not compute the same keeps the plain layout, and nobody needs to know."""

    def plain(self, actor, batch):
        actor.packing = PrefixGrouper()
        assert actor._laid_out(batch).segments is None
        now = actor.evaluate(batch).logp
        actor.packing = None
        assert torch.equal(now, actor.evaluate(batch).logp)

    @pytest.mark.parametrize("kind", ["mamba", "lfm2", "jamba"])
    def test_state_space_and_convolution_layers(self, kind):
        self.plain(policy(kind), group())

    @pytest.mark.parametrize("scale", [0.02, 0.3])
    def test_alibi(self, scale):
        config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for value in model.parameters():
            torch.nn.init.normal_(value, 0, scale)
        self.plain(CausalLM(model, tokenizer()), group())

    def test_a_window_shorter_than_the_row_but_not_a_longer_one(self):
        def mistral(window):
            config = transformers.MistralConfig(
                vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, sliding_window=window,
            )  # fmt: skip
            torch.manual_seed(0)
            return CausalLM(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64), tokenizer())

        self.plain(mistral(7), group())  # the longest row passes eight tokens through the network
        assert_same(both(mistral(8), group()), 2e-6)

    def test_fresh_weights_are_no_reason_to_refuse(self):
        config = network().config
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        assert CausalLM(model, tokenizer())._laid_out(group()).segments is not None


class TestPlan:
    """Which rows share a row of the forward pass."""

    def test_it_is_the_record_of_the_catalogue_and_on_by_default_except_where_digits_are_compared(self):
        assert policy(dtype=torch.float32).packing == get("prefix-grouper")
        assert policy(dtype=torch.float64).packing is None

    def test_siblings_are_found_by_their_prompts_wherever_they_stand(self):
        assert siblings([(1, 2), (3,), (1, 2), (1,), (3,)]) == [[0, 2], [1, 4], [3]]

    def test_no_siblings_no_plan(self):
        assert PrefixGrouper()([(1, 2), (3,)], [4, 4], 0.0) is None
        assert PrefixGrouper()([], [], 0.0) is None

    def test_a_long_prompt_is_shared_and_a_short_one_before_long_completions_is_not(self):
        assert PrefixGrouper()([(1,) * 512] * 8, [32] * 8, 3e-4) is not None
        assert PrefixGrouper()([(1,)] * 8, [512] * 8, 3e-4) is None

    def test_rows_stay_apart_when_less_than_the_wanted_share_is_saved(self):
        prompts, lengths = [(1,) * 10] * 2, [40, 40]  # 90 tokens instead of 100
        assert PrefixGrouper(saving=0.11)(prompts, lengths, 0.0) is None
        assert PrefixGrouper(saving=0.09)(prompts, lengths, 0.0) == [[0, 1]]

    def test_costly_attention_spreads_a_group_over_several_rows(self):
        prompts, lengths = [(1,) * 64] * 8, [64] * 8
        assert [len(rows) for rows in PrefixGrouper()(prompts, lengths, 0.0)] == [8]
        spread = PrefixGrouper()(prompts, lengths, 1e-3)
        assert 1 < len(spread) < 8 and sorted(row for rows in spread for row in rows) == list(range(8))

    def test_long_and_short_completions_are_mixed_in_equal_shares(self):
        plan = PrefixGrouper()([(1,) * 64] * 4, [10, 90, 20, 80], 4e-3)
        assert plan is not None and sorted(map(sorted, plan)) in ([[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 3], [1, 2]])


class TestMicrobatches:
    """Rows of one prompt come into one micro-batch where that saves tokens."""

    def parts(self, batch, rows):
        found = [part.tolist() for part in slices(batch, rows)]
        assert sorted(row for part in found for row in part) == list(range(len(batch)))
        assert all(len(part) <= rows for part in found)
        return [sorted(part) for part in found]

    def test_siblings_that_save_tokens_stay_together(self):
        long, other = (2,) * 20, (3,) * 20
        b = rows_of((long, other) * 3, [1, 2, 3, 4, 5, 6])
        assert self.parts(b, 4) == [[0, 2, 4], [1, 3, 5]]
        assert self.parts(b, 2) == [[0, 2], [4], [1, 3], [5]]

    def test_similar_lengths_come_first_where_little_is_saved(self):
        b = rows_of(((2,), (3,)) * 2, [5, 5, 5, 5])  # 22 tokens instead of 24
        assert self.parts(b, 2) == [[0, 1], [2, 3]]

    def test_prompts_that_are_no_tokens_are_sorted_by_length(self):
        b = rows_of((PROMPT,) * 4, [4, 1, 3, 2]).with_(prompt=torch.zeros(4, 4, 2))
        assert self.parts(b, 2) == [[1, 3], [0, 2]]

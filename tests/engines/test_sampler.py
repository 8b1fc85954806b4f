"""The sampler draws what it says, records what it drew from, and depends on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

from melior.engines.noise import uniforms
from melior.engines.sampler import sample
from melior.errors import RunError, UserError
from melior.parts import Blend
from tiny_models import EOS, KINDS, batch_of, direct_logp, policy

PROMPTS = [(2, 3, 4), (5, 6, 7, 8, 9, 10), (11,), (12, 13, 14)]


def noise(prompts=PROMPTS, n=3, width=10):
    slots = [p for p in range(len(prompts)) for _ in range(n)]
    return torch.from_numpy(uniforms(0, "test", 0, 0, slots, list(range(n)) * len(prompts), width))


def completions(out):
    return [row[:length].tolist() for row, length in zip(out.tokens, out.length.tolist(), strict=True)]


class Scripted:
    """A text policy that always says the same words; each token is a letter, 1 ends."""

    likelihood, temperature = "exact", 1.0
    evaluate = prepare = named_parameters = state = load_state = frozen = save = load = lambda self: None  # not called
    vocabulary, context, stop_ids, device = 27, 100, (1,), torch.device("cpu")

    def __init__(self, *texts: str, special: dict[str, int] | None = None, rows: int = 1000) -> None:
        self.texts, self.special, self.rows = texts, special or {}, rows
        self.kept: list[int] = []

    def rows_at_once(self, width: int) -> int:
        return self.rows

    def render(self, text):
        return (self.special[text],) if text in self.special else tuple(ord(c) - ord("a") + 2 for c in text)

    def decode(self, tokens):
        return "".join(chr(int(t) - 2 + ord("a")) for t in tokens if t > 1 and t not in self.special.values())

    def decoder(self, prompts, n):
        return ScriptedDecoder(self, [self.texts[prompt[0]] for prompt in prompts for _ in range(n)])


class ScriptedDecoder:
    def __init__(self, policy, texts):
        self.policy, self.texts, self.at = policy, texts, 0

    def _logits(self):
        out = torch.full((len(self.texts), Scripted.vocabulary), -50.0, dtype=torch.float64)
        for row, text in zip(out, self.texts, strict=True):
            letter = text[self.at] if self.at < len(text) else "."
            row[1 if letter == "." else ord(letter) - ord("a") + 2] = 50.0
        return out

    def start(self):
        return self._logits()

    def step(self, tokens):
        self.at += 1
        return self._logits()

    def keep(self, index):
        self.texts = [self.texts[i] for i in index.tolist()]
        self.policy.kept.append(len(self.texts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probabilities_are_the_models_own(kind, temperature):
    actor = policy(kind, temperature=temperature)
    out = sample(actor, PROMPTS, 3, noise(), temperature=temperature)
    assert out.logp.dtype == torch.float64
    batch = batch_of([p for p in PROMPTS for _ in range(3)], out.tokens, out.length)
    learned = actor.evaluate(batch).logp.detach()
    assert_close((learned - out.logp) * batch.mask, torch.zeros_like(out.logp), rtol=0, atol=1e-12)
    for row, (prompt, tokens) in enumerate(zip(batch.prompt, completions(out), strict=True)):
        want = direct_logp(actor.network, prompt, tokens, temperature)
        assert_close(out.logp[row, : len(tokens)], want, rtol=0, atol=1e-12)


def test_the_models_temperature_is_not_that_of_the_raw_logits():  # ratios of 1 only after temperature on both sides
    actor = policy(temperature=0.6)
    out = sample(actor, PROMPTS, 3, noise(), temperature=0.6)
    batch = batch_of([p for p in PROMPTS for _ in range(3)], out.tokens, out.length)
    actor.temperature = 1.0
    assert ((actor.evaluate(batch).logp - out.logp) * batch.mask).abs().max() > 0.1


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_tokens_are_the_same_for_every_split_into_blocks(rows, monkeypatch):
    actor = policy()
    whole = sample(actor, PROMPTS, 3, noise(), temperature=1.0)
    monkeypatch.setattr("melior.engines.sampler.DECODED_PER_LEARNED", 1)
    monkeypatch.setattr("melior.engines.sampler.DRAW_ELEMENTS", 23 * rows)
    monkeypatch.setattr(type(actor), "rows_at_once", lambda self, width: rows)
    split = sample(actor, PROMPTS, 3, noise(), temperature=1.0)
    assert split.tokens.tolist() == whole.tokens.tolist() and split.stopped_by == whole.stopped_by
    assert_close(split.logp, whole.logp, rtol=0, atol=1e-12)


def test_a_batch_split_by_hand_or_shuffled_gives_the_same_completions():
    actor, u = policy("gpt2"), noise()
    whole = completions(sample(actor, PROMPTS, 3, u, temperature=1.0))
    order = [2, 0, 3, 1]
    rows = [p * 3 + s for p in order for s in range(3)]
    shuffled = completions(sample(actor, [PROMPTS[p] for p in order], 3, u[rows], temperature=1.0))
    assert shuffled == [whole[row] for row in rows]
    assert completions(sample(actor, PROMPTS[1:2], 1, u[4:5], temperature=1.0)) == [whole[4]]


def test_end_of_sequence_belongs_to_the_completion_and_the_limit_forces_none():
    out = sample(Scripted("ab.", "abcdefgh", "abcd"), [(0,), (1,), (2,)], 1, noise(PROMPTS[:3], 1, 4), temperature=1.0)
    assert completions(out) == [[2, 3, 1], [2, 3, 4, 5], [2, 3, 4, 5]]
    assert out.truncated.tolist() == [False, True, True] and out.stopped_by == ("end", "limit", "limit")
    exact = sample(Scripted("abc."), [(0,)], 1, noise(PROMPTS[:1], 1, 4), temperature=1.0)
    assert completions(exact) == [[2, 3, 4, 1]] and not exact.truncated.any()


def test_the_end_is_found_where_it_shares_its_id_with_the_padding():
    actor = policy()
    actor.tokenizer.pad_token = actor.tokenizer.eos_token
    out = sample(actor, PROMPTS, 8, noise(n=8, width=30), temperature=1.0)
    ended = [tokens for tokens, reason in zip(completions(out), out.stopped_by, strict=True) if reason == "end"]
    assert ended and all(tokens.index(EOS) == len(tokens) - 1 for tokens in ended)


def test_any_of_several_end_ids_ends():
    actor = Scripted("abc.")
    actor.stop_ids = (1, 3)
    assert completions(sample(actor, [(0,)], 1, noise(PROMPTS[:1], 1, 9), temperature=1.0)) == [[2, 3]]


def test_a_stop_string_ends_after_the_token_that_completes_it():
    actor = Scripted("hithere", "nothing.", "hihihi")
    out = sample(actor, [(0,), (1,), (2,)], 1, noise(PROMPTS[:3], 1, 20), temperature=1.0, stop_strings=("the", "ihi"))
    assert [actor.decode(tokens) for tokens in completions(out)] == ["hithe", "nothing", "hihi"]
    assert out.stopped_by == ("string", "end", "string") and not out.truncated.any()


def test_a_long_completion_is_searched_to_its_end():
    actor = Scripted("a" * 60 + "stop" + "b" * 20)
    out = sample(actor, [(0,)], 1, noise(PROMPTS[:1], 1, 90), temperature=1.0, stop_strings=("stop",))
    assert out.length.tolist() == [64]


def test_a_special_token_as_stop_string_ends_too():
    actor = Scripted("abcde.", special={"<end>": 4})
    out = sample(actor, [(0,)], 1, noise(PROMPTS[:1], 1, 9), temperature=1.0, stop_strings=("<end>",))
    assert completions(out) == [[2, 3, 4]] and out.stopped_by == ("end",)


def test_finished_rows_leave_the_batch():
    actor = Scripted("a.", "abcdefgh", "ab.", "abcdef.")
    sample(actor, [(0,), (1,), (2,), (3,)], 2, noise(n=2, width=10), temperature=1.0)
    assert actor.kept == [6, 4, 2]


def test_each_prompt_may_have_its_own_limit():
    actor = Scripted("abcdefgh", "abcdefgh")
    out = sample(actor, [(0,), (1,)], 1, noise(PROMPTS[:2], 1, 6), temperature=1.0, limits=[2, 9])
    assert out.length.tolist() == [2, 6] and out.truncated.all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_completions_stop_at_the_models_context(kind):
    actor = policy(kind)
    actor.stop_ids = ()
    prompts = [tuple([2] * 60), (3,)]
    out = sample(actor, prompts, 2, noise(prompts, 2, 80), temperature=1.0)
    assert out.length.tolist() == [4, 4, 63, 63] and out.truncated.all()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (1.0, 3), (0.8, 5)])
def test_truncated_sampling_records_the_renormalized_distribution(top_p, top_k):
    actor = policy()
    out = sample(actor, PROMPTS, 3, noise(), temperature=0.9, top_p=top_p, top_k=top_k)
    for row, tokens in enumerate(completions(out)):
        ids = torch.tensor([[*PROMPTS[row // 3], *tokens]])
        logits = actor.network(input_ids=ids).logits[0, len(PROMPTS[row // 3]) - 1 : -1].detach() / 0.9
        for t, token in enumerate(tokens):
            p = logits[t].softmax(-1)
            kept = p.argsort(descending=True)[: top_k or None]
            q = p[kept] / p[kept].sum()
            size = int((q.cumsum(0) - q < top_p).sum())
            assert token in kept[:size].tolist()
            want = (q[:size] / q[:size].sum())[kept[:size] == token].log()
            assert_close(out.logp[row, t], want[0], rtol=0, atol=1e-12)


def test_greedy_takes_the_likeliest_token_whatever_the_noise():
    actor = policy("qwen2")
    out = sample(actor, PROMPTS, 1, noise(n=1), temperature=0.5, greedy=True)
    other = sample(actor, PROMPTS, 1, 1 - noise(n=1), temperature=0.5, greedy=True)
    assert completions(out) == completions(other)
    for prompt, tokens in zip(PROMPTS, completions(out), strict=True):
        logits = actor.network(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens


@dataclass(frozen=True)
class Geometric(Blend):
    """Half policy, half teacher, in the logarithm; renormalized."""

    weight: float = 0.5
    scorers: ClassVar[tuple[str, ...]] = ("teacher",)

    def __call__(self, logp, run):
        assert_close(logp["policy"].exp().sum(-1), torch.ones(len(logp["policy"]), dtype=torch.float64))
        return ((1 - self.weight) * logp["policy"] + self.weight * logp["teacher"]).log_softmax(-1)


def test_a_blend_is_sampled_from_and_recorded():
    actor, teacher = policy(seed=0), policy("gpt2", seed=5)
    out = sample(actor, PROMPTS, 3, noise(), temperature=0.8, blend=Geometric(), others={"teacher": teacher})
    plain = sample(actor, PROMPTS, 3, noise(), temperature=0.8)
    assert completions(out) != completions(plain)
    for row, tokens in enumerate(completions(out)):
        ids, first = torch.tensor([[*PROMPTS[row // 3], *tokens]]), len(PROMPTS[row // 3]) - 1
        mine, theirs = (
            (p.network(input_ids=ids).logits[0, first:-1].detach() / 0.8).log_softmax(-1) for p in (actor, teacher)
        )
        want = (0.5 * mine + 0.5 * theirs).log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        assert_close(out.logp[row, : len(tokens)], want, rtol=0, atol=1e-12)


def test_a_blend_of_weight_zero_is_the_policy():
    actor, teacher = policy(seed=0), policy(seed=5)
    out = sample(actor, PROMPTS, 3, noise(), temperature=1.0, blend=Geometric(0.0), others={"teacher": teacher})
    assert completions(out) == completions(sample(actor, PROMPTS, 3, noise(), temperature=1.0))


def test_mistakes_are_said_in_one_sentence():
    actor = policy()
    u = noise()
    with pytest.raises(UserError, match="temperature is 0"):
        sample(actor, PROMPTS, 3, u, temperature=0.0)
    with pytest.raises(UserError, match=r"top_p=1\.5"):
        sample(actor, PROMPTS, 3, u, temperature=1.0, top_p=1.5)
    with pytest.raises(UserError, match="scorer 'teacher'"):
        sample(actor, PROMPTS, 3, u, temperature=1.0, blend=Geometric())
    with pytest.raises(UserError, match="another vocabulary"):
        others = {"teacher": policy(vocab_size=31)}
        sample(actor, PROMPTS, 3, u, temperature=1.0, blend=Geometric(), others=others)
    with pytest.raises(UserError, match="prompt 1 is empty"):
        sample(actor, [(2,), ()], 1, u[:2], temperature=1.0)
    with pytest.raises(UserError, match="no room in the model's context of 64"):
        sample(actor, [tuple([2] * 64)], 1, u[:1], temperature=1.0)
    with pytest.raises(UserError, match="stop string is empty"):
        sample(actor, PROMPTS, 3, u, temperature=1.0, stop_strings=("",))
    with pytest.raises(ValueError, match="noise has 12 rows for 4 prompts with 2"):
        sample(actor, PROMPTS, 2, u, temperature=1.0)


def test_diverged_weights_stop_the_run():
    actor = policy()
    with torch.no_grad():
        actor.network.lm_head.weight[3] = torch.nan
    with pytest.raises(RunError, match="not finite"):
        sample(actor, PROMPTS, 3, noise(), temperature=1.0)

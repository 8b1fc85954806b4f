"""Tokenizers as a GGUF file has them, and those that it cannot hold."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from exporting.tiny_bpe import TEMPLATE, bpe
from melior.errors import UserError
from melior.exporting.gguf_tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, gguf_tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_every_id_has_its_text_and_kind(pre):
    words = bpe(pre)
    made = gguf_tokenizer(words, len(words) + 2, [2, 1])
    assert made.pre == pre and made.template == TEMPLATE
    assert made.tokens[: len(words)] == words.convert_ids_to_tokens(range(len(words)))
    assert made.tokens[-2:] == [f"[PAD{len(words)}]", f"[PAD{len(words) + 1}]"] and made.kinds[-2:] == [UNUSED] * 2
    assert made.kinds[:4] == [CONTROL] * 3 + [NORMAL]
    assert made.kinds[words.convert_tokens_to_ids("<think>")] == USER_DEFINED
    assert made.ids == {"bos": 0, "eos": 2, "eot": 1}
    left, right = made.merges[0].split(" ")
    assert words.convert_tokens_to_ids(left + right) == 3 + 256  # the first that was learned


@pytest.mark.parametrize(("begin", "end"), [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_put_around_a_text(begin, end):
    words = bpe()
    pattern = f"{'<|bos|> ' if begin else ''}$A{' <|end|>' if end else ''}"
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=pattern, special_tokens=[("<|bos|>", 0), ("<|end|>", 2)]
    )
    made = gguf_tokenizer(words, len(words))
    assert (made.add_bos, made.add_eos) == (begin, end)


def changed(**parts):
    words = bpe("qwen2")
    for name, part in parts.items():
        setattr(words.backend_tokenizer, name, part)
    return words


def word_level():
    core = Core(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


def stripping():
    words = bpe()
    words.add_tokens([AddedToken("<tool>", lstrip=True)])
    return words


SPACE_FIRST = pre_tokenizers.ByteLevel(add_prefix_space=True)
AROUND = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 1)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (word_level, "llama.cpp has none of the kind WordLevel"),
        (lambda: changed(pre_tokenizer=pre_tokenizers.Whitespace()), 'cuts text by {"type": "Whitespace"}, which is'),
        (lambda: changed(pre_tokenizer=SPACE_FIRST), "none of the ways known here"),
        (lambda: changed(normalizer=normalizers.Lowercase()), "it has the normalizer Lowercase"),
        (lambda: changed(post_processor=AROUND), r"it makes \[1, \d+\] of 'a'"),
        (stripping, r"'<tool>' \(strips or joins\)"),
    ],
)
def test_what_llama_cpp_would_read_differently_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        gguf_tokenizer(words(), 500)


def test_a_normalizer_that_only_composes_is_no_obstacle():
    assert gguf_tokenizer(changed(normalizer=normalizers.NFC()), 500).pre == "qwen2"


def test_ids_beyond_the_embedding_are_refused():
    with pytest.raises(UserError, match="but the model's embedding has 300 rows"):
        gguf_tokenizer(bpe(), 300)

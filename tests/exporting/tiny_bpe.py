"""A byte-level BPE tokenizer with a chat template, trained in memory on a few sentences."""

from __future__ import annotations

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from melior.exporting.gguf_tokenizer import LLAMA3, QWEN2

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SENTENCES = [
    "The answer to 27 + 58 is 85, and that of 1000 + 234567 is 235567.",
    "They'll say it's THEIR answer; we've said it's ours!",
    "for x in range(10):\n    print(x)  # 0 1 2 3\n\n",
    "Über naïve façades   and two  spaces, 12:34:56.",
] * 20


def cutter(pre: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer that llama.cpp calls so."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "gpt-2": lambda: whole,
        "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole]),
        "qwen2": lambda: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), bytes_only]),
        "llama-bpe": lambda: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bytes_only]),
    }[pre]()


def bpe(pre: str = "gpt-2", begin: bool = False, size: int = 320) -> transformers.PreTrainedTokenizerFast:
    """Some 320 tokens, three special and `<think>` an ordinary added one; `begin` puts <|bos|> before a text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = cutter(pre)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|bos|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(SENTENCES, trainer)
    core.add_tokens([AddedToken("<think>", normalized=False)])
    if begin:
        core.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made

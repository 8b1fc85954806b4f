"""A byte-level BPE tokenizer in the terms of a GGUF file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from melior.errors import UserError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens, as GGUF counts them

BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# How text is cut before the merges begin -> the name under which llama.cpp knows that.
PRE_TOKENIZERS = {
    (BYTE_LEVEL,): "gpt-2",
    (r"\p{N}", BYTE_LEVEL): "smollm",
    (QWEN2,): "qwen2",
    (LLAMA3,): "llama-bpe",
}


@dataclass(frozen=True)
class GGUFTokenizer:
    """What a GGUF file says of a tokenizer.

    Attributes:
        pre: how text is cut, by llama.cpp's name.
        tokens: the text of every id.
        kinds: normal, control, user-defined or unused, of every id.
        merges: as "left right", best first.
        ids: "bos", "eos", "unk", "pad", "eot" -> id, those that there are.
        add_bos: whether a text begins with the beginning-of-text token.
        add_eos: whether it ends with the end-of-text token.
        template: the chat template, or None.
    """

    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    ids: dict[str, int]
    add_bos: bool
    add_eos: bool
    template: str | None

    def write(self, writer: Any) -> None:
        """Add it to a `gguf.GGUFWriter`."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.kinds)
        writer.add_token_merges(self.merges)
        for name, number in self.ids.items():
            getattr(writer, f"add_{name}_token_id")(number)
        writer.add_add_bos_token(self.add_bos)
        writer.add_add_eos_token(self.add_eos)
        if self.template is not None:
            writer.add_chat_template(self.template)


def gguf_tokenizer(tokenizer: Any, rows: int, ends: Any = None) -> GGUFTokenizer:
    """The tokenizer of a model with so many rows of embeddings.

    Args:
        tokenizer: a transformers tokenizer.
        rows: ids that the model knows; those without a token become unused ones.
        ends: the `eos_token_id` of the model's generation config, one or several.

    Raises UserError, naming what it is, for anything that llama.cpp would read differently.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"a GGUF file cannot hold a {type(tokenizer).__name__}: only byte-level BPE tokenizers")
    described = json.loads(backend.to_str())
    bpe = described["model"]
    pre = _pre_tokenizer(described)
    _check_bpe(bpe, pre, described)
    tokens, kinds = _tokens(tokenizer, rows)
    add_bos, add_eos = _ends(tokenizer)
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in bpe["merges"]]
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    return GGUFTokenizer(
        pre, tokens, kinds, [" ".join(pair) for pair in pairs], _ids(tokenizer, ends), add_bos, add_eos, template
    )


def _pre_tokenizer(described: dict[str, Any]) -> str:
    """llama.cpp's name for the way in which a tokenizer cuts text; UserError when it has none that we know."""
    steps = _steps(described.get("pre_tokenizer"))
    name = PRE_TOKENIZERS.get(tuple(steps)) if steps is not None else None
    kind = described["model"]["type"]
    if kind != "BPE":
        raise UserError(
            f"a GGUF file cannot hold this tokenizer: llama.cpp has none of the kind {kind}; "
            "byte-level BPE tokenizers can be exported"
        )
    if name is None:
        known = ", ".join(PRE_TOKENIZERS.values())
        raise UserError(
            f"a GGUF file cannot hold this tokenizer: it cuts text by {_shown(described.get('pre_tokenizer'))}, "
            f"which is none of the ways known here ({known}), so llama.cpp would read prompts differently"
        )
    return name


def _steps(described: Any) -> list[str] | None:
    """The regular expressions that cut a text, one after the other; None where there is another step among them."""
    if not isinstance(described, dict):
        return None
    kind = described["type"]
    if kind == "Sequence":
        inner = [_steps(step) for step in described["pretokenizers"]]
        return None if None in inner else [piece for steps in inner for piece in steps or ()]
    if kind == "Digits" and described["individual_digits"]:
        return [r"\p{N}"]
    if kind == "Split" and described["behavior"] == "Isolated" and not described["invert"]:
        pattern = described["pattern"].get("Regex")
        return None if pattern is None else [pattern]
    if kind == "ByteLevel" and not described["add_prefix_space"]:
        return [BYTE_LEVEL] if described["use_regex"] else []
    return None


def _shown(described: Any) -> str:
    text = json.dumps(described)
    return text if len(text) <= 160 else f"{text[:160]}…"


def _check_bpe(bpe: dict[str, Any], pre: str, described: dict[str, Any]) -> None:
    """Refuses what changes encodings and has no place in the file."""
    odd = [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if bpe.get(name)]
    odd += ["byte_fallback"] if bpe.get("byte_fallback") else []
    if bpe.get("ignore_merges") and pre != "llama-bpe":  # with that name llama.cpp ignores them too
        odd.append("ignore_merges")
    normalizer = described.get("normalizer")
    if normalizer is not None and normalizer["type"] != "NFC":  # llama.cpp takes text to be in that form already
        odd.append(f"the normalizer {normalizer['type']}")
    odd += [f"{token['content']!r} (strips or joins)" for token in described["added_tokens"] if _joins(token)]
    if odd:
        raise UserError(f"a GGUF file cannot hold this tokenizer: it has {', '.join(odd)}, unknown to llama.cpp")


def _joins(token: dict[str, Any]) -> bool:
    return bool(token["lstrip"] or token["rstrip"] or token["single_word"])


def _tokens(tokenizer: Any, rows: int) -> tuple[list[str], list[int]]:
    """Text and kind of every id."""
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    if by_id and max(by_id) >= rows:
        raise UserError(f"the tokenizer's ids reach {max(by_id)}, but the model's embedding has {rows} rows")
    added = tokenizer.added_tokens_decoder
    tokens, kinds = [], []
    for number in range(rows):
        if number in added:
            tokens.append(added[number].content)
            kinds.append(CONTROL if added[number].special else USER_DEFINED)
        else:
            tokens.append(by_id.get(number, f"[PAD{number}]"))
            kinds.append(NORMAL if number in by_id else UNUSED)
    return tokens, kinds


def _ids(tokenizer: Any, ends: Any) -> dict[str, int]:
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    further = set(ends if isinstance(ends, (list, tuple)) else [ends]) - {None, ids["eos"]}
    if len(further) == 1:
        ids["eot"] = further.pop()
    return {name: int(number) for name, number in ids.items() if number is not None}


def _ends(tokenizer: Any) -> tuple[bool, bool]:
    """Whether a text gets a token before it and one after it."""
    bare, full = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    before, after = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    for front in (False, True):
        for back in (False, True):
            if full == (before if front else []) + bare + (after if back else []):
                return front, back
    raise UserError(f"a GGUF file cannot hold this tokenizer: it makes {full} of 'a', other than begin and end tokens")

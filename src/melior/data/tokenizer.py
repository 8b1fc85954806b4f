"""What every tokenizer must have before rollouts: a way to end, and something to pad with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from melior.errors import UserError


def prepare_tokenizer(tokenizer: Any, stop: Sequence[str] = ()) -> Any:
    """The same tokenizer, with a padding token: its own, else end-of-sequence, else token 0.

    Padding is never recognized by its id anywhere in Melior (masks come from lengths), so sharing one with the end is
    safe. UserError when there is no end-of-sequence token and no stop string: a completion could never end.
    """
    if tokenizer.eos_token_id is None and not stop:
        raise UserError(
            f"the tokenizer {_name(tokenizer)} has no end-of-sequence token, so a completion could never end; "
            "set eos_token in its tokenizer_config.json or give a stop string (--stop)"
        )
    if tokenizer.pad_token_id is None:
        filler = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(filler)
    return tokenizer


def end_ids(tokenizer: Any, generation_config: Any = None) -> tuple[int, ...]:
    """Every id that ends a completion: the tokenizer's end-of-sequence and those of the model's generation config."""
    more = getattr(generation_config, "eos_token_id", None)
    more = [] if more is None else [more] if isinstance(more, int) else list(more)
    own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*own, *more]))


def _name(tokenizer: Any) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)

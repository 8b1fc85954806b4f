"""A row's prompt as the exact token ids that the policy continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from melior.data.row import check_prompt, place_of
from melior.errors import UserError, near

CHAT_MODES = ("auto", "always", "never")


@dataclass(frozen=True)
class RenderedPrompt:
    """What the policy sees, and what of it a reward must be told.

    - `ids`: the prompt's token ids, prefilled text included; never trained on.
    - `text`: the text that was tokenized, with the markers of the chat template (a base model's own beginning-of-text
      token is in `ids` only).
    - `prefill`: the assistant text at the end of the prompt; a reward sees prefill + completion.
    - `chat`: the chat template was used; then `messages` are those it rendered (system message and prefilled assistant
      message included), else None.
    - `conversational`: the row itself held messages, so rewards get completions as messages too.
    """

    ids: tuple[int, ...]
    text: str
    prefill: str
    chat: bool
    messages: list[dict[str, Any]] | None
    conversational: bool


@dataclass(frozen=True)
class Renderer:
    """Renders rows with one tokenizer.

    - `system`: a system message, added or put in the place of the row's own.
    - `template_args`: further arguments of the chat template, such as `enable_thinking`.
    - `prefill`: assistant text that every completion starts from.
    - `chat`: "auto" renders text prompts as one user message when the tokenizer has a chat template; "always" requires
      the template; "never" tokenizes texts as they stand.
    - `max_prompt_tokens`, and `context` minus `max_tokens` (room for the completion): the longest prompt allowed.

    UserError for options that this tokenizer cannot honor.
    """

    tokenizer: Any
    system: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    chat: str = "auto"
    max_prompt_tokens: int | None = None
    context: int | None = None
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.chat not in CHAT_MODES:
            raise UserError(f"chat is {self.chat!r}{near(self.chat, CHAT_MODES)}")
        if self.chat == "always" and not self._has_template:
            raise UserError("chat is 'always', but the tokenizer has no chat template; use 'auto' or another tokenizer")
        if self.context is not None and self.max_tokens >= self.context:
            raise UserError(
                f"completions of up to {self.max_tokens} tokens leave no room for a prompt in a context of "
                f"{self.context}; lower max_tokens"
            )
        given = [name for name, value in (("system", self.system), ("template_args", self.template_args)) if value]
        if given and not self.uses_template:
            why = "chat is 'never'" if self._has_template else "the tokenizer has no chat template"
            raise UserError(f"{' and '.join(given)} would have no effect: {why}")
        if self.template_args:
            self._check_template_args()

    @property
    def uses_template(self) -> bool:
        """Whether text prompts go through the chat template."""
        return self.chat != "never" and self._has_template

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def limit(self) -> int | None:
        """The longest prompt allowed, in tokens; None when nothing bounds it."""
        bounds = [self.max_prompt_tokens, None if self.context is None else self.context - self.max_tokens]
        return min((bound for bound in bounds if bound is not None), default=None)

    def render(self, row: Mapping[str, Any]) -> RenderedPrompt:
        """The row's `prompt` as ids; UserError naming the row when it is empty, too long or fits no chat template."""
        place = place_of(row)
        prompt: Any = row.get("prompt")
        check_prompt(prompt, place)
        conversational = isinstance(prompt, list)
        if conversational and not self.uses_template:
            why = "chat is 'never'" if self._has_template else "the tokenizer has no chat template"
            raise UserError(f"{place}: the prompt is a list of messages, but {why}; give prompts as text")
        if self.uses_template:
            messages = self._messages(prompt, place)
            text, prefill = self._chat_text(messages, place)
            ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        else:
            messages, prefill = None, self.prefill
            text = prompt + prefill
            ids = self._plain_ids(text)
        self._check_length(len(ids), place)
        return RenderedPrompt(tuple(ids), text, prefill, messages is not None, messages, conversational)

    def _messages(self, prompt: str | list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.system is not None:
            messages = messages[1:] if messages[0]["role"] == "system" else messages
            messages.insert(0, {"role": "system", "content": self.system})
        if messages[-1]["role"] == "assistant" and messages[-1]["content"] == "" and len(messages) > 1:
            messages.pop()  # nothing to continue: the same as asking for a new assistant message
        if self.prefill:
            if messages[-1]["role"] == "assistant":
                raise UserError(f"{place}: the prompt already ends in assistant text, so prefill cannot be added to it")
            messages.append({"role": "assistant", "content": self.prefill})
        return messages

    def _chat_text(self, messages: list[dict[str, Any]], place: str) -> tuple[str, str]:
        """The rendered chat up to where the assistant goes on, and the assistant text that it ends with."""
        import jinja2

        prefilled = messages[-1]["role"] == "assistant"
        prefill = messages[-1]["content"] if prefilled else ""
        if not isinstance(prefill, str):
            raise UserError(f"{place}: the final assistant message must be plain text to be continued")
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not prefilled,
                continue_final_message=prefilled,
                **self.template_args,
            )
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{place}: the chat template cannot render the messages ({reason})") from error
        return _with_prefill(text, prefill, place)

    def _plain_ids(self, text: str) -> list[int]:
        """The tokenizer's own beginning-of-text convention, once, and never an end that it appends."""
        bare = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        begin = self.tokenizer.bos_token
        if begin and text.startswith(begin):
            return bare
        full = self.tokenizer(text, verbose=False)["input_ids"]
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[: start + len(bare)]
        return full

    def _check_length(self, length: int, place: str) -> None:
        if length == 0:
            raise UserError(f"{place}: the prompt has no token that the tokenizer knows")
        if self.limit is None or length <= self.limit:
            return
        if self.limit == self.max_prompt_tokens:
            bound, advice = "max_prompt_tokens", "raise it"
        else:
            bound, advice = f"a context of {self.context} minus max_tokens {self.max_tokens}", "lower max_tokens"
        raise UserError(
            f"{place}: the prompt has {length} tokens, more than the {self.limit} allowed ({bound}); "
            f"shorten or remove the row, or {advice}"
        )

    def _check_template_args(self) -> None:
        words = set(re.findall(r"[A-Za-z_]\w*", self.tokenizer.get_chat_template()))
        for name in self.template_args:
            if name not in words:
                raise UserError(f"the chat template reads no argument {name!r}{near(name, words)}")


def unknown_note(tokenizer: Any, prompts: Sequence[tuple[Sequence[int], str]]) -> tuple[str, ...]:
    """A sentence on prompts, as (ids, text), that hold text unknown to the tokenizer; nothing where there is none."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        return ()  # tokenizers that know every byte name an unknown token that never stands for anything
    lossy = [text for ids, text in prompts if unknown in ids and tokenizer.unk_token not in text]
    if not lossy:
        return ()
    count = f"all {len(prompts)}" if len(lossy) == len(prompts) else f"{len(lossy)} of {len(prompts)}"
    lost = sorted(
        {c for c in lossy[0] if unknown in tokenizer(c, add_special_tokens=False, verbose=False)["input_ids"]}
    )
    named = f": {', '.join(repr(c) for c in lost[:5])} in the first" if lost else ""
    return (f"{count} prompts looked at hold text that the model's tokenizer cannot encode{named}; it sees gaps there",)


def _with_prefill(text: str, prefill: str, place: str) -> tuple[str, str]:
    """Make the text end in exactly the assistant text that the reward will be shown."""
    if text.endswith(prefill):
        return text, prefill
    inner = prefill.strip()  # many templates trim a message; its end is put back, since the completion follows it
    if inner and text.endswith(inner):
        return text + prefill[len(prefill.rstrip()) :], prefill.lstrip()
    raise UserError(f"{place}: the chat template changes the final assistant message, so it cannot be continued")

"""A prompt's ids are what the tokenizer's own convention makes of it, prefilled text included, nothing doubled."""

from __future__ import annotations

import pytest

from melior.data import Renderer, end_ids, load_rows, prepare_tokenizer
from melior.data.prompts import unknown_note
from melior.errors import UserError

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n+=?.,!:<>/"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if quiet %}hush {% endif %}{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + CHATML
TRIMMING = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
DROPPING = CHATML.replace("{{ m.content }}", "{{ m.content.replace('b', '') }}")


def make(template=None, begin=False, end=False, special=("unk", "bos", "eos")):
    """A character tokenizer; `begin` and `end` say which tokens it puts around a text by itself."""
    names = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens(SPECIAL)
    if begin or end:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{'<s> ' if begin else ''}$A{' </s>' if end else ''}", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    tokens = {f"{name}_token": names[name] for name in special}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **tokens)
    tokenizer.chat_template = template
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def ids_of(tokenizer, text):
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


class TestText:
    @pytest.mark.parametrize(("begin", "end"), [(False, False), (True, False), (False, True), (True, True)])
    def test_the_tokenizers_beginning_and_never_its_end(self, begin, end):
        tokenizer = make(begin=begin, end=end)
        prompt = Renderer(tokenizer).render({"prompt": "1+1="})
        assert prompt.ids == ((1,) if begin else ()) + ids_of(tokenizer, "1+1=")
        assert (prompt.text, prompt.prefill, prompt.chat, prompt.messages) == ("1+1=", "", False, None)

    def test_a_beginning_in_the_text_is_not_doubled(self):
        tokenizer = make(begin=True)
        assert Renderer(tokenizer).render({"prompt": "<s>a"}).ids == (1, *ids_of(tokenizer, "a"))

    def test_prefill_is_part_of_the_prompt(self):
        tokenizer = make(begin=True)
        prompt = Renderer(tokenizer, prefill=" It is ").render({"prompt": "1+1?"})
        assert prompt.ids == (1, *ids_of(tokenizer, "1+1? It is "))
        assert (prompt.text, prompt.prefill) == ("1+1? It is ", " It is ")

    def test_messages_need_a_template(self):
        rows = load_rows([{"prompt": "fine"}, {"prompt": [user("a")]}])
        with pytest.raises(
            UserError, match="row 2 of the data: the prompt is a list of messages, but the tokenizer has no"
        ):
            Renderer(make()).render(rows[1])
        with pytest.raises(UserError, match="but chat is 'never'"):
            Renderer(make(CHATML), chat="never").render(rows[1])

    def test_a_template_can_be_left_aside(self):
        tokenizer = make(CHATML)
        assert Renderer(tokenizer, chat="never").render({"prompt": "a"}).ids == ids_of(tokenizer, "a")

    def test_nothing_known_is_no_prompt(self):
        drops_the_unknown = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=drops_the_unknown)
        with pytest.raises(UserError, match="no token that the tokenizer knows"):
            Renderer(tokenizer).render({"prompt": "é"})


class TestChat:
    def test_text_becomes_one_user_message(self):
        tokenizer = make(CHATML)
        prompt = Renderer(tokenizer).render({"prompt": "1+1?"})
        assert prompt.text == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
        assert prompt.ids == ids_of(tokenizer, prompt.text)
        assert prompt.ids.count(3) == 2 and prompt.ids.count(4) == 1  # the markers are single tokens
        assert prompt.chat and prompt.messages == [user("1+1?")] and not prompt.conversational

    @pytest.mark.parametrize("template", [CHATML, WITH_BOS])
    @pytest.mark.parametrize("begin", [False, True])
    def test_ids_equal_the_libraries_own_and_hold_one_beginning(self, template, begin):
        tokenizer = make(template, begin=begin, end=begin)
        messages = [user("a"), assistant("b"), user("c")]
        prompt = Renderer(tokenizer).render({"prompt": messages})
        own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt.ids == tuple(own)
        assert prompt.ids.count(1) == (template is WITH_BOS)
        assert prompt.conversational and prompt.messages == messages

    def test_system_is_added_or_replaces(self):
        renderer = Renderer(make(CHATML), system="Be brief.")
        system = {"role": "system", "content": "Be brief."}
        assert renderer.render({"prompt": "a"}).messages == [system, user("a")]
        theirs = [{"role": "system", "content": "Be long."}, user("a")]
        assert renderer.render({"prompt": theirs}).messages == [system, user("a")]
        assert theirs[0]["content"] == "Be long."  # the row is not changed
        assert "Be brief." in renderer.render({"prompt": theirs}).text

    def test_a_template_without_a_system_role_says_so(self):
        with pytest.raises(
            UserError, match=r"the chat template cannot render the messages \(System role not supported\)"
        ):
            Renderer(make(NO_SYSTEM), system="Be brief.").render({"prompt": "a"})

    def test_template_arguments(self):
        assert Renderer(make(CHATML), template_args={"quiet": True}).render({"prompt": "a"}).text.endswith("hush ")
        with pytest.raises(UserError, match="reads no argument 'quite'; did you mean 'quiet'"):
            Renderer(make(CHATML), template_args={"quite": True})

    @pytest.mark.parametrize("template", [CHATML, WITH_BOS, TRIMMING])
    @pytest.mark.parametrize("text", ["It is", "It is ", "It is:\n\n"])
    def test_a_final_assistant_message_is_continued(self, template, text):
        tokenizer = make(template)
        prompt = Renderer(tokenizer).render({"prompt": [user("1+1?"), assistant(text)]})
        assert prompt.prefill == text
        assert prompt.text.endswith("1+1?<|im_end|>\n<|im_start|>assistant\n" + text)
        assert prompt.ids == ids_of(tokenizer, prompt.text)
        by_option = Renderer(tokenizer, prefill=text).render({"prompt": "1+1?"})
        assert (by_option.ids, by_option.prefill) == (prompt.ids, prompt.prefill)

    def test_what_a_template_trims_at_the_start_is_not_shown_to_the_reward(self):
        prompt = Renderer(make(TRIMMING), prefill="\nIt is ").render({"prompt": "a"})
        assert prompt.text.endswith("assistant\nIt is ") and prompt.prefill == "It is "

    def test_an_empty_final_assistant_message_is_nothing_to_continue(self):
        renderer = Renderer(make(CHATML))
        assert renderer.render({"prompt": [user("a"), assistant("")]}) == renderer.render({"prompt": [user("a")]})

    def test_prefill_twice_is_refused(self):
        with pytest.raises(UserError, match="already ends in assistant text"):
            Renderer(make(CHATML), prefill="x").render({"prompt": [user("a"), assistant("b")]})

    def test_a_template_that_rewrites_the_prefill_is_refused(self):
        for template, prefill in ((DROPPING, "aba"), (TRIMMING, " ")):
            with pytest.raises(UserError, match="the chat template c"):
                Renderer(make(template), prefill=prefill).render({"prompt": "a"})


class TestOptions:
    @pytest.mark.parametrize(
        ("template", "options", "what"),
        [
            (CHATML, {"chat": "allways"}, "did you mean 'always'"),
            (None, {"chat": "always"}, "no chat template"),
            (None, {"system": "a"}, "system would have no effect: the tokenizer has no chat template"),
            (CHATML, {"system": "a", "chat": "never"}, "system would have no effect: chat is 'never'"),
            (None, {"template_args": {"a": 1}}, "template_args would have no effect"),
            (CHATML, {"context": 64, "max_tokens": 64}, "leave no room for a prompt in a context of 64"),
        ],
    )
    def test_options_that_cannot_be_honored_are_refused(self, template, options, what):
        with pytest.raises(UserError, match=what):
            Renderer(make(template), **options)

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"max_prompt_tokens": 4}, r"5 tokens, more than the 4 allowed \(max_prompt_tokens\)"),
            (
                {"context": 20, "max_tokens": 16},
                r"5 tokens, more than the 4 allowed \(a context of 20 minus max_tokens 16\)",
            ),
            (
                {"context": 20, "max_tokens": 16, "max_prompt_tokens": 9},
                r"5 tokens, more than the 4 allowed \(a context",
            ),
            (
                {"context": 20, "max_tokens": 2, "max_prompt_tokens": 4},
                r"5 tokens, more than the 4 allowed \(max_prompt_tokens",
            ),
        ],
    )
    def test_a_long_prompt_names_its_row_and_both_lengths(self, options, what):
        rows = load_rows([{"prompt": "1234"}, {"prompt": "12345"}])
        renderer = Renderer(make(), **options)
        assert len(renderer.render(rows[0]).ids) == 4
        with pytest.raises(UserError, match=f"row 2 of the data: the prompt has {what}"):
            renderer.render(rows[1])

    def test_an_empty_prompt_of_a_row_that_was_not_loaded(self):
        with pytest.raises(UserError, match=r"the row with the prompt '': the prompt .* is empty"):
            Renderer(make()).render({"prompt": ""})


class TestTokenizer:
    def test_padding_is_the_end_when_missing_and_the_prompt_keeps_every_end(self):
        tokenizer = make(CHATML.replace("<|im_end|>", "</s>"))
        assert tokenizer.pad_token_id is None
        assert prepare_tokenizer(tokenizer) is tokenizer
        assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
        assert Renderer(tokenizer).render({"prompt": [user("a"), assistant("b"), user("c")]}).ids.count(2) == 3

    def test_its_own_padding_stays(self):
        tokenizer = make()
        tokenizer.pad_token = "<unk>"
        assert prepare_tokenizer(tokenizer).pad_token_id == 0

    def test_no_end_needs_a_stop_string(self):
        with pytest.raises(UserError, match=r"has no end-of-sequence token, .* stop string \(--stop\)"):
            prepare_tokenizer(make(special=("unk",)))
        tokenizer = prepare_tokenizer(make(special=("unk",)), stop=["\n"])
        assert tokenizer.pad_token_id == 0 and end_ids(tokenizer) == ()

    def test_every_end_of_the_model_counts(self):
        config = transformers.GenerationConfig(eos_token_id=[4, 2])
        assert end_ids(make(), config) == (2, 4)
        assert end_ids(make(), transformers.GenerationConfig(eos_token_id=4)) == (2, 4)
        assert end_ids(make()) == (2,)


def test_text_that_the_tokenizer_cannot_encode_is_named():
    tokenizer = make()
    texts = ["a+b=", "aß+ä=", "c\n"]
    (note,) = unknown_note(tokenizer, [(ids_of(tokenizer, text), text) for text in texts])
    assert note.startswith("1 of 3 prompts looked at hold text that") and "'ß', 'ä' in the first" in note
    assert unknown_note(tokenizer, [(ids_of(tokenizer, "a+b="), "a+b=")]) == ()
    assert unknown_note(tokenizer, [(ids_of(tokenizer, "<unk>"), "<unk>")]) == ()  # as the user wrote it
    assert unknown_note(None, [((0,), "a")]) == ()

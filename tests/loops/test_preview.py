"""What is shown before a run: honest about masks, prompts and sizes."""

from __future__ import annotations

import melior
from melior.loops.given import Given
from melior.loops.language import build
from melior.loops.preview import language_preview
from melior.settings import LanguageSettings
from runs import sums


def built(method="grpo", **settings):
    data = settings.pop("data", None)
    return build(melior.get(method), LanguageSettings(**{"steps": 5, "prompts": 2, **settings}), Given(data=data))


def test_the_short_form_samples_nothing(monkeypatch):
    run = built(model="table", task="lock:P=4,L=2,V=3", max_tokens=2)
    monkeypatch.setattr(type(run.world), "sample", None)
    text = language_preview(run, short=True)
    assert text.splitlines()[0].startswith("grpo: 5 steps of 2 prompts x 8 completions of at most 2 tokens")
    assert len(text.splitlines()) == 2


def test_a_cut_off_sample_is_drawn_as_it_is_trained():
    data = sums(4)
    kept, masked = (
        language_preview(built(data=data, task="", reward=("numeric",), max_tokens=3, truncated=how), short=False)
        for how in ("keep", "mask")
    )
    assert "sample (3 tokens, cut off at the limit)" in kept
    marks = [next(line for line in text.splitlines() if "(^)" in line).split(":")[1].strip() for text in (kept, masked)]
    assert marks == ["^|^|^", ".|.|."]


def test_a_pinned_size_and_a_prefill_are_those_shown():
    run = built("two-grpo", data=sums(4), task="", reward=("numeric",), max_tokens=20, prefill="1", n=2)
    text = language_preview(run, short=False)
    assert "2 prompts x 2 completions" in text
    assert "=1\n" in text
    reference = next(line for line in text.splitlines() if line.startswith("rewards on the reference answer"))
    assert reference.endswith("numeric 1")  # the prefilled 1 is no part of it

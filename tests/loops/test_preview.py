"""What is shown before a run: honest about masks, prompts and sizes."""

from __future__ import annotations

from dataclasses import replace

import torch

import melior
from melior.loops.given import Given
from melior.loops.language import build
from melior.loops.preview import example_text, language_preview
from melior.settings import LanguageSettings
from runs import rows, sums, text_run


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


def test_special_tokens_are_shown_by_their_names():
    run = built(data=sums(4), task="", reward=("numeric",), max_tokens=24)
    eos = run.learner().policy.tokenizer.eos_token
    text = language_preview(run, short=False)
    sample = next(line for line in text.splitlines() if line.startswith("sample ("))
    assert sample.endswith(f"|{eos}") == ("ended by itself" in sample)
    batch = run.sample(run.next_prompts(1), 1)
    ended = replace(batch, tokens=torch.full_like(batch.tokens, run.learner().policy.stop_ids[0]))
    shown = example_text(run, run.world.judge(run, ended)).splitlines()
    assert shown[0].startswith("held-out prompt: ") and shown[1].split(": ", 1)[1].split("|")[0] == eos.split("|")[0]


def test_step_0_shows_a_completion_of_the_first_evaluation(tmp_path, capsys):
    calls = []

    def seen(completions, **columns):
        calls.append(len(completions))
        return [0.5 for _ in completions]

    text_run(tmp_path / "a", data=sums(), reward=seen, steps=1, eval_prompts=2, quiet=False)
    said = capsys.readouterr().err.splitlines()
    first = next(i for i, line in enumerate(said) if line.startswith("step 0/1"))
    assert said[first + 1].startswith("held-out prompt: ") and said[first + 2].startswith("sample (")
    assert said[first + 3].startswith("trained tokens (^):") and said[first + 4] == "rewards on it: seen 0.5"
    assert not any("reference answer" in line for line in said)  # which would be one more call of the user's function
    loud, calls[:] = list(calls), []
    text_run(tmp_path / "b", data=sums(), reward=seen, steps=1, eval_prompts=2)
    assert calls == loud and rows(tmp_path / "a") == rows(tmp_path / "b")


def test_step_0_shows_what_a_verifier_says_of_the_reference_answer(tmp_path, capsys):
    text_run(tmp_path / "a", data=sums(), reward="numeric", steps=0, eval_prompts=2, quiet=False)
    said = capsys.readouterr().err
    assert "rewards on the reference answer 3" in said and "numeric 1" in said

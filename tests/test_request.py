"""Which value wins: defaults, a configuration, the task, the paper, what is given, pins, overrides."""

from __future__ import annotations

import re

import pytest

import melior
from melior.errors import UserError
from melior.records.config import config_text
from melior.request import resolve_request, resumed_request
from melior.settings import LanguageSettings
from melior.tasks import get_task

LOCK = get_task("lock").settings


def resolved(method="grpo", given=None, overrides=(), config=None, paper=False):
    request = resolve_request(method, given or {}, overrides, config, paper)
    return request.settings, request


def test_each_source_wins_over_those_before_it(tmp_path):
    assert LOCK["n"] != LanguageSettings.n
    assert resolved(given={"task": "lock"})[0].n == LOCK["n"]
    assert resolved(given={"task": "lock", "n": 5})[0].n == 5
    assert resolved(given={"task": "lock", "n": 5}, overrides=["settings.n=7"])[0].n == 7
    assert resolved(given={"data": "rows.jsonl"})[0].n == LanguageSettings.n  # one's own data has no recommendation
    saved = tmp_path / "config.yaml"
    saved.write_text(config_text(melior.get("rloo"), LanguageSettings(task="lock", lr=0.3, seed=9)))
    settings, request = resolved(None, {"seed": 4}, config=saved)
    assert (settings.lr, settings.seed, request.record.name) == (0.3, 4, "rloo")
    assert resolved("dapo", config=saved)[1].record.name == "dapo"


def test_a_paper_is_adopted_when_asked_for_and_overruled_by_what_is_given():
    paper = melior.entry("dapo").settings
    name, value = next((k, v) for k, v in paper.items() if v != getattr(LanguageSettings(), k))
    assert getattr(resolved("dapo", paper=True)[0], name) == value
    assert getattr(resolved("dapo")[0], name) != value
    assert resolved("dapo", {name: type(value)(1)}, paper=True)[0] != resolved("dapo", paper=True)[0]
    with pytest.raises(UserError, match="paper settings belong to methods of the catalogue"):
        resolved(melior.get("dapo").but("mine"), paper=True)


def test_a_pin_wins_over_what_is_given_and_an_override_over_the_pin():
    settings, request = resolved("two-grpo", {"n": 16})
    assert settings.n == 2 and request.notes == ("'two-grpo' pins n = 2; use --set settings.n=16 to overrule it",)
    with pytest.warns(UserWarning, match="no longer the method as published"):
        settings, request = resolved("two-grpo", overrides=["settings.n=16"])
    assert settings.n == 16 and request.record.pins["n"] == 16


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lern": 1}, "method 'grpo' reads no setting 'lern'"),
        ({"step": 1}, "did you mean 'steps'"),
        ({"task": "lock", "data": "rows.jsonl"}, "give a task or data, not both"),
        ({"horizon": 5}, "reads no setting 'horizon'"),
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"prompts": "many"}, "prompts"),
    ],
)
def test_what_no_setting_reads_is_named(given, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        resolved(given=given)


def test_a_record_that_is_not_trained_is_refused():
    with pytest.raises(UserError, match="which is not trained"):
        resolved("prefix-grouper")


@pytest.fixture
def earlier(tmp_path):
    """The configuration of a run on data of one's own."""
    request = resolve_request(
        "grpo", {"data": "a.jsonl", "reward": ("numeric",), "outcome": "numeric", "max_tokens": 9}
    )
    file = tmp_path / "config.yaml"
    file.write_text(config_text(request.record, request.settings))
    return file


def test_a_task_given_over_an_earlier_runs_data_brings_its_own_rows_and_rewards(earlier):
    settings = resolve_request(None, {"task": "countdown"}, config=earlier).settings
    assert (settings.task, settings.data, settings.reward, settings.outcome) == ("countdown", "", (), "")
    assert settings.max_tokens == 9


def test_data_given_over_an_earlier_runs_data_keeps_its_rewards(earlier):
    settings = resolve_request(None, {"data": "b.jsonl"}, config=earlier).settings
    assert (settings.task, settings.data, settings.reward) == ("", "b.jsonl", ("numeric",))


def test_tables_and_adapters_have_learning_rates_of_their_own(tmp_path):
    def rate(**given):
        request = resolve_request("grpo", given)
        return request.settings.lr, len(request.notes)

    assert rate(data="a.jsonl") == (1e-5, 0)
    assert rate(data="a.jsonl", lora=4) == (pytest.approx(1e-4), 1)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert rate(data="a.jsonl", model=str(tmp_path)) == (pytest.approx(1e-4), 1)
    assert rate(task="lock", model="table") == (0.05, 1)
    assert rate(task="lock", model="table", lr=0.3) == (0.3, 0)


def test_a_run_that_goes_on_may_sample_elsewhere(tmp_path):
    """What only the earlier sampler read is forgotten; whatever else was set stays."""
    settings = LanguageSettings(sampler="http://a:1", sampler_model="m", sampler_timeout=5.0, lr=0.3)
    (tmp_path / "config.yaml").write_text(config_text(melior.get("rloo"), settings))
    there = resumed_request(tmp_path, {"sampler": "http://b:2"})
    assert (there.settings.sampler, there.settings.sampler_model) == ("http://b:2", "m")
    assert there.notes == ("this run sampled from http://a:1 and goes on with http://b:2",)
    here = resumed_request(tmp_path, {"sampler": "local"}).settings
    assert here == LanguageSettings(lr=0.3)
    assert resumed_request(tmp_path, {}).settings == settings
    with pytest.raises(UserError, match="so lr cannot be given with resume"):
        resumed_request(tmp_path, {"lr": 0.1})

"""What a request resolves to, before anything is loaded."""

from __future__ import annotations

import pytest

from melior.config import config_text
from melior.request import resolve_request


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

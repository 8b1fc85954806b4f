"""Runs that sample on a server: what it is asked, and that it has the trainer's weights or what happens when not."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import threading
import time

import pytest
import torch

import melior
from melior.cli import run as command
from melior.engines import connection
from melior.errors import RunError, UserError
from melior.loops.training import Callback
from melior.storage.rollouts import read_rollouts
from melior.tasks import bundled_model
from runs import TEXT_OPTIONS, every_row, lock_run, rows, text_run
from sampling_server import serving


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "BACKOFF", 0.001)


@pytest.fixture
def server():
    with serving() as running:
        yield running


def server_run(out, method="rloo", **more):
    """A run of a second or two; half of its steps at most have mixed groups, so that not all of them move."""
    return text_run(out, method, **{"max_tokens": 16, "eval_prompts": 2, "report": False, **more})


class After(Callback):
    """Does something to the server once a step is made."""

    def __init__(self, step, deed):
        self.step, self.deed = step, deed

    def on_step(self, run, metrics):
        if metrics["step"] == self.step:
            self.deed()


def asked(served, path="/v1/completions"):
    return [body for where, body in served.seen if where.partition("?")[0] == path]


def perturbed(folder):
    """The bundled model with other weights."""
    shutil.copytree(bundled_model(), folder)
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value + 0.2 * torch.randn_like(value) for name, value in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


# ---- a run


def test_a_run_samples_on_the_server_with_the_weights_of_each_step(tmp_path, server):
    server_run(tmp_path / "a", "grpo", sampler=server.url, steps=2)
    figures = rows(tmp_path / "a")
    for row in figures:
        assert row["gap_max"] < 1e-4 and row["gap_outside"] == 0 and row["version_lag"] == 0
    assert figures[0]["update_norm"] > 0
    for step in (1, 2):
        for rollout in read_rollouts(tmp_path / "a", step):
            assert rollout["version"] == [step - 1] * rollout["length"]
            assert len(rollout["behaviour_logp"]) == rollout["length"] <= 16


def test_everything_that_would_bend_the_distribution_is_said(tmp_path, server):
    """The server's own defaults (a penalty, top-k, min-p) would show as a gap; prompts are ids, all of a batch."""
    server_run(tmp_path / "a", "rloo", sampler=server.url, steps=1, temperature=0.8, seed=3)
    probe, requests = asked(server.served)[:4], asked(server.served)[4:]
    assert [body["n"] for body in requests] == [1, 1, 4, 4, 1, 1] and {body["n"] for body in probe} == {4}
    assert len({body["seed"] for body in (*probe, *requests)}) == 8  # both evaluations draw the same
    for body in (*probe, *requests):
        assert body["temperature"] == 0.8 and body["max_tokens"] == 16 and body["top_p"] == 1 and body["top_k"] == 0
        assert all(isinstance(token, int) for token in body["prompt"])
    (row,) = rows(tmp_path / "a")
    assert row["gap_max"] < 1e-4


def test_the_server_is_given_the_weights_only_when_they_moved(tmp_path, server):
    server_run(tmp_path / "a", "rloo", sampler=server.url, steps=2)
    assert len(asked(server.served, "/collective_rpc")) == 1 + 2
    paths = [body["kwargs"]["weights_path"] for body in asked(server.served, "/collective_rpc")]
    assert len(set(paths)) == 3  # whatever is cached by path is never stale


def test_lora_adapters_are_loaded_and_in_the_end_unloaded(tmp_path, server):
    server.served.dev = False  # adapters need no development mode; nobody names the weights then
    result = server_run(tmp_path / "a", "grpo", sampler=server.url, lora=2, lr=1e-2, steps=2)
    assert all(row["gap_max"] < 1e-4 for row in rows(tmp_path / "a"))
    (name,) = server.served.loaded
    assert {body["model"] for body in asked(server.served)} == {name}
    assert len({body["lora_path"] for body in asked(server.served, "/v1/load_lora_adapter")}) == 3
    assert read_rollouts(tmp_path / "a", 2)[0]["version"][0] == 1
    del result
    gc.collect()
    assert not server.served.loaded


def test_a_server_that_knows_no_ids_no_versions_and_no_stop_strings_is_enough(tmp_path, server):
    """Ids are read from its tokens, versions are those pushed last, and what follows a stop string is dropped."""

    def older(answer):
        kept = ("index", "logprobs")
        return {"choices": [{key: choice[key] for key in kept} for choice in reversed(answer["choices"])]}

    server.served.change = older
    server_run(tmp_path / "a", "grpo", sampler=server.url, steps=2, stop=(";",))
    rollouts = read_rollouts(tmp_path / "a", 2)
    assert all(row["gap_max"] < 1e-4 for row in rows(tmp_path / "a"))
    assert {tuple(set(rollout["version"])) for rollout in rollouts} == {(1,)}
    ended = [rollout["text"].index(";") + 1 == len(rollout["text"]) for rollout in rollouts if ";" in rollout["text"]]
    assert len(ended) > 4 and all(ended)


def test_greedy_completions_are_the_servers_likeliest(tmp_path, server):
    server_run(tmp_path / "a", "remax", sampler=server.url, steps=1)
    assert [body["n"] for body in asked(server.served) if body["top_k"] == 1] == [1, 1]


def test_a_policy_is_evaluated_on_the_server(tmp_path, server, capsys):
    options = ["eval", "bundled", "--prompts", "8", "--max-tokens", "24", "--json"]
    assert command([*options, "--sampler", server.url, "--top-k", "1"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert command([*options, "--top-k", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == there
    assert {body["top_k"] for body in asked(server.served)[4:]} == {1}


# ---- when sampler and trainer differ


def test_a_server_that_keeps_old_weights_is_noticed_once(tmp_path, server, capsys):
    def keep():
        server.served.stale = True

    server_run(
        tmp_path / "a", "grpo", sampler=server.url, steps=5, lr=1e-2, quiet=False, callbacks=[After(1, keep)]
    )  # fmt: skip
    figures, said = rows(tmp_path / "a"), capsys.readouterr().err
    assert figures[0]["gap_outside"] == 0 and max(row["gap_outside"] for row in figures) > 0.1
    assert said.count("sampler and trainer disagree") == 1 and "likelier or less likely to the trainer; check" in said


def test_a_server_that_was_started_again_is_noticed(tmp_path, server):
    def restart():
        server.served.reload(str(bundled_model()))
        server.served.change = lambda answer: named(answer, "default")

    def named(answer, version):
        for choice in answer["choices"]:
            choice["weight_versions"][0]["version"] = version
        return answer

    with pytest.raises(RunError, match=r"calls 'default', which this run did not give it.*saved at step 1;"):
        server_run(tmp_path / "a", sampler=server.url, callbacks=[After(1, restart)])


def test_log_probabilities_of_temperature_one_are_refused_at_another(tmp_path, server):
    server.served.raw = True
    server_run(tmp_path / "a", sampler=server.url, steps=1)  # at temperature 1 there is no difference
    with pytest.raises(
        UserError, match=r"at temperature 1 .* although it draws at 0.6 .*--logprobs-mode processed_logp"
    ):
        server_run(tmp_path / "b", sampler=server.url, steps=1, temperature=0.6)
    assert not (tmp_path / "b").exists()


def test_a_server_of_other_weights_is_refused(tmp_path):
    with serving(perturbed(tmp_path / "other")) as server:
        server_run(tmp_path / "a", sampler=server.url, steps=1)  # it takes those of the run
        assert rows(tmp_path / "a")[0]["gap_max"] < 1e-4
    with serving(tmp_path / "other") as server:
        server.served.stale = True
        with pytest.raises(UserError, match="so it samples from another distribution: check that it takes the weights"):
            server_run(tmp_path / "b", sampler=server.url, steps=1)


# ---- failures


def test_the_same_seed_is_the_same_run_and_a_failure_that_passes_changes_nothing(tmp_path, server):
    def fail():
        server.served.failing = 2

    server_run(tmp_path / "a", sampler=server.url, steps=2)
    server_run(tmp_path / "b", sampler=server.url, steps=2, callbacks=[After(1, fail)])
    assert server.served.failing == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_a_run_whose_server_dies_goes_on_at_another_as_if_nothing_had_happened(tmp_path, capsys):
    with serving() as server:
        server_run(tmp_path / "whole", "grpo", sampler=server.url, steps=2)
    with serving() as server, pytest.raises(RunError) as failure:
        server_run(tmp_path / "a", "grpo", sampler=server.url, steps=2, callbacks=[After(1, server.kill)])
    assert "asked 6 times" in str(failure.value) and "saved at step 1" in str(failure.value)
    with serving() as server:
        resume = ["train", "--resume", str(tmp_path / "a"), "--quiet", "--sampler", server.url]
        assert command(resume) == 0
        assert asked(server.served, "/collective_rpc")  # the newest weights went there before it sampled
    assert rows(tmp_path / "a") == rows(tmp_path / "whole")
    assert f"sampler: {server.url}" in (tmp_path / "a" / "config.yaml").read_text()
    result = melior.load(tmp_path / "a")  # which needs no server
    assert result.run.world.sampler.name == "local"


def test_a_server_that_dies_ends_the_command_with_what_to_do(tmp_path, server, monkeypatch, capsys):
    """The first evaluation fails: nothing was trained, and the run can be resumed."""
    server.served.change = lambda answer: (
        answer if len(asked(server.served)) <= 4 else answer["choices"].pop() and answer
    )
    options = ["train", "rloo", *TEXT_OPTIONS, "--sampler", server.url, "--out", str(tmp_path / "a"), "--quiet"]
    assert command(options) == 3
    said = capsys.readouterr().err
    assert "returned 0 completions of prompt" in said and "go on with: melior train --resume" in said
    assert len(said.strip().splitlines()) == 1


def test_who_stops_waiting_for_a_server_keeps_what_was_learnt(tmp_path, server):
    """Two Ctrl-C while it does not answer: the run ends at once, saved after its last whole step."""
    never = threading.Event()

    def stop():
        server.served.change = lambda answer: never.wait(250)
        for seconds in (0.5, 1.0):  # signals that come together are one
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        server_run(tmp_path / "a", sampler=server.url, steps=2, callbacks=[After(1, stop)])
    never.set()
    assert time.monotonic() - began < 200
    assert (tmp_path / "a" / "checkpoints" / "step-000001").exists()


def test_what_cannot_be_served_is_one_sentence_before_the_run(tmp_path, server, capsys):
    def said(*more, url=server.url):
        options = [*TEXT_OPTIONS, "--out", str(tmp_path / "a"), "--quiet", "--sampler", url, *more]
        assert command(["train", "grpo", *options]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert not (tmp_path / "a").exists()
        return line

    served = server.served
    assert "neither local, vllm nor a URL" in said(url="localhost:8000")
    assert "does not answer /v1/models" in said(url="http://127.0.0.1:9")
    assert "serves no model 'sreved'; did you mean 'served'?" in said("--set", "settings.sampler_model=sreved")
    served.dev = False
    assert "VLLM_SERVER_DEV_MODE=1" in said()
    served.adapters = False
    assert "--enable-lora" in said("--lora", "2")
    served.dev, served.context = True, 5
    assert "but the sampler's context is 5" in said()
    served.context = 512
    for change, sentence in (
        (lambda answer: {"choices": [{"index": 0, "text": "hi"}]}, "without token ids and log-probabilities"),
        (lambda answer: {**answer, "choices": answer["choices"][:1]}, "returned 1 completions of prompt"),
        (lambda answer: altered(answer, token_ids=[5]), "with 1 tokens and"),
        (lambda answer: altered(answer, prompt_token_ids=[1, 2]), "must take token ids as they are"),
        (lambda answer: altered(answer, logprobs=None), "without token ids and log-probabilities"),
    ):
        served.change = change
        assert sentence in said()


def altered(answer, **changes):
    return {**answer, "choices": [{**choice, **changes} for choice in answer["choices"]]}


def test_what_a_server_cannot_do_for_a_method_is_said_first(tmp_path, server):
    with pytest.raises(UserError, match="serves language models, and the tabular policy is none"):
        lock_run(tmp_path / "a", sampler=server.url)
    with pytest.raises(UserError, match="whole distributions, which TrustBlend of method 'trb' mixes token by token"):
        server_run(tmp_path / "a", "trb", sampler=server.url, overrides=["scorers.teacher.weights=bundled"])
    two = melior.get("rloo").but("two", others={"hinter": melior.get("rloo")})
    with pytest.raises(UserError, match="method 'two' also trains hinter"):
        server_run(tmp_path / "a", two, sampler=server.url)
    for more, message in (
        ({"sampler_model": "x"}, "sampler_model would have no effect with the sampler local"),
        ({"sampler": server.url, "sampler_memory": 0.5}, "sampler_memory would have no effect"),
        ({"sampler": "vllm"}, "needs the package vllm"),
    ):
        with pytest.raises(UserError, match=message):
            server_run(tmp_path / "a", **more)
    assert not server.served.seen


def test_the_version_of_what_is_sampled_here_is_that_of_the_weights(tmp_path):
    server_run(tmp_path / "a", steps=2)
    assert {v for rollout in read_rollouts(tmp_path / "a", 2) for v in rollout["version"]} == {1}
    assert all("version_lag" not in row for row in every_row(tmp_path / "a"))

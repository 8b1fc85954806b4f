"""Sampling on an OpenAI-compatible server that returns token ids and log-probabilities, such as vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from melior.engines.agreement import check_agreement
from melior.engines.completions import Completion, drawn, limits_of
from melior.engines.connection import RETRIES, Connection, NotThere, all_at_once
from melior.engines.protocol import Drawn, Order
from melior.engines.sampler import stop_conditions
from melior.engines.weights import Labels, WeightFolder, is_adapter
from melior.errors import MeliorError, RunError, UserError, near
from melior.policies.policy import TextPolicy

TOKEN_ID = "token_id:"


class RemoteSampler:
    """A server at a URL; `docs/samplers.md` says how to start vLLM's.

    Prompts go out as token ids, all of an order at once, and come back as token ids with log-probabilities and, from
    vLLM, the label of the weights that drew each token. Weights go through a folder that the server sees too: all
    weights by vLLM's `reload_weights`, a LoRA adapter by `/v1/load_lora_adapter`.

    Attributes:
        name: the URL.
        model: the served model to ask for; "" takes the only one.
        folder: where weights are handed over; "" takes a temporary folder of this machine.
        timeout: seconds for one answer.
    """

    elsewhere = True

    def __init__(self, url: str, model: str = "", folder: str = "", timeout: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"sampler '{url}' is neither local, vllm nor a URL that begins with http:// or https://")
        self.name, self.model = url, model
        self._server = Connection(url, timeout)
        self._weights, self._labels = WeightFolder(folder), Labels()
        self._base, self._actor, self._adapters, self._named = "", "", False, False
        self._context: int | None = None

    # ---- the protocol

    def start(self, policy: TextPolicy, probe: Order) -> tuple[str, ...]:
        """See `Sampler.start`."""
        self._server.retries = 0  # whoever starts a run is there to be told
        try:
            self._meet()
            self.sync(policy, 0)
            notes = check_agreement(policy, probe, self.sample(policy, probe), self._who())
        except MeliorError as error:
            self.close()
            raise UserError(f"{error}; --sampler local would sample in this process") from error
        finally:
            self._server.retries = RETRIES
        if self._context is not None and self._context < policy.context:
            notes = (*notes, f"{self._who()} has a context of {self._context} tokens, the policy {policy.context}")
        return notes

    def sync(self, policy: TextPolicy, version: int) -> None:
        """See `Sampler.sync`. Nothing of an earlier version is sampled after it."""
        path, label = self._weights.write(policy)
        if is_adapter(path):
            self._load_adapter(path)
        else:
            self._reload(path)
        try:
            self._server.post("/update_weight_version", {"new_version": label})
            self._named = True
        except NotThere:  # in production mode nobody names vLLM's weights; tokens are of those that were pushed last
            self._named = False
        self._labels.add(label, version)
        self._weights.prune()

    def sample(self, policy: TextPolicy, order: Order) -> Drawn:
        """See `Sampler.sample`. Each prompt has a seed of its own, so a server repeats itself as far as it can."""
        requests = self._requests(policy, order)
        answers = all_at_once(lambda body: _completions(self._server.post("/v1/completions", body), body), requests)
        return drawn(policy, order, answers, self._version, self._who(), self._context)

    def close(self) -> None:
        """See `Sampler.close`."""
        if self._adapters:
            self._adapters = False
            with suppress(RunError):
                self._server.retries = 0
                self._server.post("/v1/unload_lora_adapter", {"lora_name": self._adapter})
        self._server.retries = RETRIES
        self._server.close()
        self._weights.close()

    # ---- inside

    @property
    def _adapter(self) -> str:
        return f"melior-{self._weights.run}"

    def _who(self) -> str:
        return f"the sampler at {self._server.url}"

    def _version(self, label: str | None) -> int:
        return self._labels.version(label if self._named else None)

    def _meet(self) -> None:
        """Learns what the server serves."""
        listed = self._server.get("/v1/models")
        cards = listed.get("data") if isinstance(listed, dict) else None
        if not cards or not all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards):
            raise RunError(f"{self._who()} names no model at /v1/models, so it is no OpenAI-compatible server")
        served = {card["id"]: card for card in cards if not card.get("parent")}
        if self.model and self.model not in served:
            raise RunError(f"{self._who()} serves no model '{self.model}'{near(self.model, served)}")
        if not self.model and len({card.get("root") or name for name, card in served.items()}) > 1:
            several = ", ".join(served)
            raise RunError(f"{self._who()} serves {several}; say which with --set settings.sampler_model=NAME")
        self._base = self._actor = self.model or next(iter(served))
        longest = served[self._base].get("max_model_len")
        self._context = longest if isinstance(longest, int) else None

    def _reload(self, path: Path) -> None:
        """All weights, by vLLM's own reloading, while nothing is generated."""
        try:
            with self._paused():
                self._server.post(
                    "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
                )
                reset = self._server.post("/reset_prefix_cache")
        except NotThere as error:
            raise RunError(
                f"{self._who()} cannot take new weights: start vLLM with VLLM_SERVER_DEV_MODE=1 (or train LoRA "
                f"adapters with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1) ({error})"
            ) from error
        if isinstance(reset, dict) and reset.get("success") is False:
            raise RunError(f"{self._who()} kept its prefix cache after new weights, since other requests hold it")

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Within, the server generates for nobody."""
        self._server.post("/pause?mode=wait")
        try:
            yield
        finally:
            self._server.post("/resume")

    def _load_adapter(self, path: Path) -> None:
        """A LoRA adapter under a name of this run's own, in place of its older version."""
        body = {"lora_name": self._adapter, "lora_path": str(path), "load_inplace": True}
        try:
            self._server.post("/v1/load_lora_adapter", body)
        except NotThere as error:
            raise RunError(
                f"{self._who()} cannot take adapters: start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, "
                f"--enable-lora and --max-lora-rank ({error})"
            ) from error
        self._actor, self._adapters = self._adapter, True

    def _requests(self, policy: TextPolicy, order: Order) -> list[dict[str, Any]]:
        """One request for each prompt. Everything that would bend the distribution is said, lest the server does it."""
        ends, strings = stop_conditions(policy, order.stop)
        same = {
            "model": self._actor,
            "n": order.n,
            "temperature": order.temperature,
            "top_p": order.top_p,
            "top_k": 1 if order.greedy else order.top_k,  # temperature 0 would allow one completion only
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": True,  # the policy's own end tokens are these:
            "stop_token_ids": ends.tolist(),
            "stop": list(strings),
            "include_stop_str_in_output": True,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "return_weight_versions": True,
        }
        limits = limits_of(policy, order, self._context)
        return [
            {**same, "prompt": list(prompt), "max_tokens": limit, "seed": order.seed_of(index)}
            for index, (prompt, limit) in enumerate(zip(order.prompts, limits, strict=True))
        ]


def _completions(answer: Any, body: Mapping[str, Any]) -> list[Completion]:
    """The completions in the server's answer to a request."""
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        echoes = [choice.get("prompt_token_ids") for choice in choices]
        found = [_completion(choice) for choice in choices]
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise RunError(
            "the sampler's server answers /v1/completions without token ids and log-probabilities (choices with "
            f"token_ids and logprobs.token_logprobs are expected: {type(error).__name__} {error})"
        ) from error
    for echo in echoes:
        if echo is not None and list(echo) != body["prompt"]:
            raise RunError(
                f"the sampler's server read a prompt of {len(body['prompt'])} tokens as {len(echo)} others; it must "
                "take token ids as they are"
            )
    return found


def _completion(choice: Mapping[str, Any]) -> Completion:
    logprobs = choice["logprobs"]
    tokens = choice.get("token_ids")
    if tokens is None:  # servers before `return_token_ids` write ids in place of texts
        tokens = [int(token.removeprefix(TOKEN_ID)) for token in logprobs["tokens"]]
    spans = choice.get("weight_versions")
    return Completion(
        [int(token) for token in tokens],
        [float(value) for value in logprobs["token_logprobs"]],
        None if spans is None else _spans(spans),
    )


def _spans(spans: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    return [(str(span["version"]), int(span["start"]), int(span["end"])) for span in spans]

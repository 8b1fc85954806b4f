"""A small server that speaks the protocol of vLLM's, over the bundled model in transformers, for tests."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from melior.policies.silence import without_bars
from melior.tasks import bundled_model

DEFAULT = {"repetition_penalty": 1.3, "top_k": 5, "min_p": 0.1}  # of its own, where a request does not say


class Served:
    """What the server serves, and its faults, which a test may switch on at any time.

    Attributes:
        base: the folder of the model that it was started with.
        dev: whether it lets its weights be changed, as vLLM does with VLLM_SERVER_DEV_MODE=1.
        adapters: whether it takes LoRA adapters.
        stale: it says that it took new weights, and keeps the old ones.
        raw: it returns log-probabilities at temperature 1.
        failing: requests for completions that it still answers with status 500.
        seen: (path, body) of every request, in order.
        change: a function on its answers to /v1/completions.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.name, self.context = base, "served", 512
        self.dev, self.adapters, self.stale, self.raw, self.failing, self.paused = True, True, False, False, 0, False
        self.version, self.lock = "default", threading.Lock()
        self.model, self.loaded = self._load(base), {}
        self.seen: list[tuple[str, Any]] = []
        self.change = lambda answer: answer

    # ---- weights

    def reload(self, path: str) -> None:
        fresh = self._load(Path(path))
        if not self.stale:
            self.model = fresh

    def load_adapter(self, name: str, path: str) -> None:
        from peft import PeftModel

        if not self.stale or name not in self.loaded:
            self.loaded[name] = PeftModel.from_pretrained(self._load(self.base), path).eval()

    def _load(self, folder: Path) -> Any:
        from transformers import AutoModelForCausalLM

        with without_bars():
            return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()

    # ---- completions

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        values = {**DEFAULT, **body}
        if values["model"] != self.name and values["model"] not in self.loaded:
            raise LookupError(f"The model `{values['model']}` does not exist.")
        model = self.loaded.get(values["model"], self.model)
        rows = self._draw(model, values)
        choices = [self._choice(index, values["prompt"], tokens, logp) for index, (tokens, logp) in enumerate(rows)]
        return {"object": "text_completion", "model": values["model"], "choices": choices}

    @torch.no_grad()
    def _draw(self, model: Any, values: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
        """(tokens, their log-probabilities) of the n completions, drawn side by side."""
        assert len(values["prompt"]) + values["max_tokens"] <= self.context
        generators = [torch.Generator().manual_seed(values["seed"] + index) for index in range(values["n"])]
        rows: list[tuple[list[int], list[float]]] = [([], []) for _ in generators]
        ids = torch.tensor([values["prompt"]] * values["n"])
        for _ in range(values["max_tokens"]):
            raw = model(ids).logits[:, -1].double()
            if values["repetition_penalty"] != 1:
                raw = raw.scatter_add(1, ids, torch.full_like(ids, -1, dtype=raw.dtype))
            drawn = (raw / values["temperature"]).log_softmax(-1)
            if values["min_p"]:
                drawn[drawn < drawn.amax(-1, keepdim=True) + math.log(values["min_p"])] = -torch.inf
            if values["top_k"]:
                drawn[drawn < drawn.topk(values["top_k"]).values[:, -1:]] = -torch.inf
            drawn = drawn.log_softmax(-1)
            chosen = [int(torch.multinomial(p, 1, generator=g)) for p, g in zip(drawn.exp(), generators, strict=True)]
            told = raw.log_softmax(-1) if self.raw else drawn
            for row, (tokens, logp) in enumerate(rows):
                if not tokens or tokens[-1] not in values["stop_token_ids"]:
                    tokens.append(chosen[row])
                    logp.append(float(told[row, chosen[row]]))
            if all(tokens[-1] in values["stop_token_ids"] for tokens, _ in rows):
                break
            ids = torch.cat([ids, torch.tensor(chosen)[:, None]], 1)
        return rows

    def _choice(self, index: int, prompt: list[int], tokens: list[int], logp: list[float]) -> dict[str, Any]:
        return {
            "index": index,
            "token_ids": tokens,
            "prompt_token_ids": prompt,
            "logprobs": {"token_logprobs": logp, "tokens": [f"token_id:{token}" for token in tokens]},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(tokens)}],
        }

    # ---- addresses

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, JSON) for a request."""
        self.seen.append((path, body))
        path = path.partition("?")[0]
        with self.lock:
            if path == "/v1/completions":
                if self.failing or self.paused:
                    self.failing -= 1
                    return 500, {"error": {"message": "out of memory"}}
                try:
                    return 200, self.change(self.complete(body))
                except LookupError as error:
                    return 404, {"error": {"message": str(error)}}
            if path == "/v1/models":
                card = {"id": self.name, "root": str(self.base), "parent": None, "max_model_len": self.context}
                return 200, {"data": [card, *({"id": name, "parent": self.name} for name in self.loaded)]}
            if self.adapters and path == "/v1/load_lora_adapter":
                self.load_adapter(body["lora_name"], body["lora_path"])
                return 200, None
            if self.adapters and path == "/v1/unload_lora_adapter":
                del self.loaded[body["lora_name"]]
                return 200, None
            return self._manage(path, body) if self.dev else (404, {"detail": "Not Found"})

    def _manage(self, path: str, body: Any) -> tuple[int, Any]:
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
        elif path == "/collective_rpc":
            assert body["method"] == "reload_weights" and self.paused
            self.reload(body["kwargs"]["weights_path"])
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path != "/reset_prefix_cache":
            return 404, {"detail": "Not Found"}
        return 200, {"success": True}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(*self.server.served.answer(self.path, None))  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.headers_seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self._reply(*self.server.served.answer(self.path, json.loads(content or b"null")))  # type: ignore[attr-defined]

    def _reply(self, status: int, answer: Any) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, served: Served) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served, self.headers_seen = served, []


class Running:
    """A server that runs: its `url`, what it serves, and a way to kill it."""

    def __init__(self, served: Served) -> None:
        self.served, self._server = served, _Server(served)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.headers = self._server.headers_seen
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Nobody listens any more; connections that were open answer nothing."""
        self.served.answer = lambda path, body: (503, {"error": {"message": "gone"}})  # type: ignore[method-assign]
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(base: Path | None = None) -> Iterator[Running]:
    """A server of the bundled model, or of that in another folder."""
    running = Running(Served(base or bundled_model()))
    try:
        yield running
    finally:
        running.kill()

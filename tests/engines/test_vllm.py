"""vLLM in this process, as far as a stand-in for its package can tell: it has the names and shapes of vLLM 0.33."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from melior.engines.vllm import VllmSampler
from melior.errors import RunError, UserError
from melior.storage.rollouts import read_rollouts
from runs import rows, text_run
from sampling_server import DEFAULT, Served

SMALL = {"sampler": "vllm", "max_tokens": 16, "eval_prompts": 2, "steps": 2, "report": False}


class StandIn:
    """`vllm.LLM` over the tests' own model server; `made` holds what it was made with, `params` what it was asked."""

    made: dict = {}
    params: list = []

    def __init__(self, model, **more):
        type(self).made, type(self).params = {"model": model, **more}, []
        self.served, self.resets, self.adapters = Served(Path(model)), 0, []

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        assert method == "reload_weights"
        self.served.reload(**{"path": kwargs["weights_path"]})
        return [None]

    def reset_prefix_cache(self):
        self.resets += 1
        return True

    def update_weight_version(self, new_version):
        self.served.version = new_version

    def generate(self, prompts, sampling_params, *, use_tqdm, lora_request):
        assert not use_tqdm
        type(self).params += sampling_params
        if lora_request is not None and lora_request.lora_name not in self.served.loaded:
            self.served.load_adapter(lora_request.lora_name, lora_request.lora_path)
            self.adapters.append((lora_request.lora_name, lora_request.lora_int_id))
        name = self.served.name if lora_request is None else lora_request.lora_name
        return [
            self._answer({"model": name, "prompt": prompt["prompt_token_ids"], **vars(params)})
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _answer(self, body):
        neutral = {**dict.fromkeys(DEFAULT, 0), "repetition_penalty": 1}
        outputs = []
        for choice in self.served.complete({**neutral, **body})["choices"]:
            tokens, logp = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            outputs.append(
                SimpleNamespace(
                    token_ids=tokens,
                    logprobs=[{t: SimpleNamespace(logprob=p)} for t, p in zip(tokens, logp, strict=True)],
                    weight_versions=[SimpleNamespace(**span) for span in choice["weight_versions"]],
                )
            )
        return SimpleNamespace(outputs=outputs)


@pytest.fixture
def package(monkeypatch):
    """The stand-in where `import vllm` finds it, on a machine with a GPU."""
    vllm, lora, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    vllm.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    vllm.LLM, vllm.SamplingParams = StandIn, SimpleNamespace
    request.LoRARequest = lambda name, number, path: SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)
    for module in (vllm, lora, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    seen_by(monkeypatch, True)
    return StandIn


def seen_by(monkeypatch, gpu):
    """What the sampler takes for torch says that there is a GPU or none; for everyone else there is none."""
    cuda = SimpleNamespace(is_available=lambda: gpu)
    monkeypatch.setattr("melior.engines.vllm.torch", SimpleNamespace(cuda=cuda))


def test_a_run_samples_in_the_engine_with_the_weights_of_each_step(tmp_path, package):
    text_run(tmp_path / "a", "grpo", **SMALL, temperature=0.7)
    for row in rows(tmp_path / "a"):
        assert row["gap_max"] < 1e-4 and row["version_lag"] == 0
    assert read_rollouts(tmp_path / "a", 2)[0]["version"][0] == 1
    made, params = package.made, package.params
    assert made["logprobs_mode"] == "processed_logprobs" and made["dtype"] == "float32"
    assert made["generation_config"] == "vllm" and made["gpu_memory_utilization"] == 0.4
    assert {p.temperature for p in params} == {0.7} and all(p.ignore_eos and p.logprobs == 0 for p in params)
    assert [p.n for p in params[4:]] == [1, 1, 4, 4, 4, 4, 1, 1] and not any(p.detokenize for p in params)


def test_an_adapter_has_a_name_a_number_and_a_path_for_each_version(tmp_path, package):
    result = text_run(tmp_path / "a", "grpo", **SMALL, lora=2, lr=1e-2)
    assert all(row["gap_max"] < 1e-4 for row in rows(tmp_path / "a"))
    adapters = result.trainee.run.world.sampler._llm.adapters
    assert [number for _, number in adapters] == [1, 2, 3] and len({name for name, _ in adapters}) == 3
    assert package.made["enable_lora"] and package.made["max_lora_rank"] == 8
    assert Path(package.made["model"]).name == "bundled"


def test_failures_of_the_engine_are_one_sentence(tmp_path, package, monkeypatch):
    def broken(self, *args, **more):
        raise RuntimeError("CUDA out of memory\nand a long trace")

    monkeypatch.setattr(StandIn, "__init__", broken)
    with pytest.raises(UserError, match=r"^vLLM cannot take the policy's weights: CUDA out of memory$"):
        text_run(tmp_path / "a", **SMALL)


def test_a_failure_while_sampling_keeps_the_run(tmp_path, package, monkeypatch):
    from melior.loops.training import Callback

    class Break(Callback):
        def on_step(self, run, metrics):
            def broken(*args, **more):
                raise RuntimeError("engine core died")

            monkeypatch.setattr(StandIn, "generate", broken)

    with pytest.raises(RunError, match=r"vLLM failed while sampling: engine core died \(saved at step 1;"):
        text_run(tmp_path / "a", **SMALL, callbacks=[Break()])


def test_what_is_missing_is_said(package, monkeypatch):
    with pytest.raises(UserError, match="vLLM computes in float32 or bfloat16, not in float64"):
        VllmSampler("float64")
    seen_by(monkeypatch, False)
    with pytest.raises(UserError, match="--sampler vllm needs a CUDA GPU, and torch sees none here"):
        VllmSampler()
    monkeypatch.delitem(sys.modules, "vllm")
    with pytest.raises(UserError, match=r"--sampler vllm needs the package vllm; install it with: pip install 'melior"):
        VllmSampler()

"""Sampling by vLLM in this process's own engine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from melior.engines.agreement import check_agreement
from melior.engines.completions import Completion, drawn, limits_of
from melior.engines.protocol import Drawn, Order
from melior.engines.sampler import stop_conditions
from melior.engines.weights import ADAPTER, Labels, WeightFolder, is_adapter
from melior.errors import MeliorError, RunError, UserError
from melior.policies.policy import TextPolicy

WHO = "vLLM"
DTYPES = ("float32", "bfloat16")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM makes room for


class VllmSampler:
    """`vllm.LLM` beside the trainer, on the same machine's GPU.

    Written against vLLM 0.33 by reading its code, and tested with a stand-in for the package only: it has not yet run
    on a GPU. Weights go through a folder: all of them by `reload_weights` on the workers, a LoRA adapter with the
    requests. Log-probabilities are those after temperature, top-k and top-p ("processed_logprobs").

    Attributes:
        dtype: of the engine's weights.
        memory: share of the GPU's memory for the engine, its weights included.
        context: longest prompt plus completion that room is made for; 0 is the model's own.
        folder: where weights are handed over; "" takes a temporary folder.
    """

    name = "vllm"
    elsewhere = True

    def __init__(self, dtype: str = "bfloat16", memory: float = 0.4, context: int = 0, folder: str = "") -> None:
        if importlib.util.find_spec("vllm") is None:
            raise UserError(
                "--sampler vllm needs the package vllm; install it with: pip install 'melior[vllm]', or give the URL "
                "of a vLLM server, which may have an environment of its own"
            )
        if not torch.cuda.is_available():
            raise UserError("--sampler vllm needs a CUDA GPU, and torch sees none here; use --sampler local or a URL")
        if dtype not in DTYPES:
            raise UserError(f"vLLM computes in {' or '.join(DTYPES)}, not in {dtype}; use --sampler local")
        self.dtype, self.memory, self.context = dtype, memory, context
        self._weights, self._labels = WeightFolder(folder), Labels()
        self._llm: Any = None
        self._adapter: Any = None

    # ---- the protocol

    def start(self, policy: TextPolicy, probe: Order) -> tuple[str, ...]:
        """See `Sampler.start`."""
        try:
            self.sync(policy, 0)
            return check_agreement(policy, probe, self.sample(policy, probe), WHO)
        except MeliorError as error:
            self.close()
            raise UserError(str(error)) from error

    def sync(self, policy: TextPolicy, version: int) -> None:
        """See `Sampler.sync`. The first call starts the engine with these weights."""
        path, label = self._weights.write(policy)
        try:
            if is_adapter(path):
                self._take_adapter(path, label)
            elif self._llm is None:
                self._llm = self._engine(str(path))
            else:
                self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            if not self._llm.reset_prefix_cache():
                raise RunError("vLLM kept its prefix cache after new weights")
            self._llm.update_weight_version(label)
        except MeliorError:
            raise
        except Exception as error:  # vLLM, torch and the processes behind them raise dozens of types
            raise RunError(f"vLLM cannot take the policy's weights: {_first_line(error)}") from error
        self._labels.add(label, version)
        self._weights.prune()

    def sample(self, policy: TextPolicy, order: Order) -> Drawn:
        """See `Sampler.sample`. All prompts are one call, which vLLM batches as it likes."""
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in order.prompts]
        try:
            outputs = self._llm.generate(
                prompts, self._parameters(policy, order), use_tqdm=False, lora_request=self._adapter
            )
        except Exception as error:  # see above
            raise RunError(f"vLLM failed while sampling: {_first_line(error)}") from error
        answers = [[_completion(output) for output in request.outputs] for request in outputs]
        return drawn(policy, order, answers, self._labels.version, WHO, self.context or None)

    def close(self) -> None:
        """See `Sampler.close`."""
        self._llm = self._adapter = None
        self._weights.close()

    # ---- inside

    def _engine(self, model: str, **more: Any) -> Any:
        import vllm

        return vllm.LLM(
            model=model,
            dtype=self.dtype,
            max_model_len=self.context or None,
            gpu_memory_utilization=self.memory,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # no penalties or truncation of the model's own
            enable_prefix_caching=True,
            trust_remote_code=False,
            **more,
        )

    def _take_adapter(self, path: Path, label: str) -> None:
        """A version of the adapter under a name, a number and a path of its own: nothing cached can pass for it."""
        from vllm.lora.request import LoRARequest

        config = json.loads((path / ADAPTER).read_text())
        if self._llm is None:
            base = config.get("base_model_name_or_path")
            if not base:
                raise UserError("the LoRA adapter names no base model that vLLM could load; give the model by its path")
            rank = next((size for size in RANKS if size >= int(config["r"])), None)
            if rank is None:
                raise UserError(f"vLLM takes LoRA adapters up to rank {RANKS[-1]}, and this one has {config['r']}")
            tokenizer = str(path) if (path / "tokenizer_config.json").exists() else base
            self._llm = self._engine(base, tokenizer=tokenizer, enable_lora=True, max_lora_rank=rank)
        number = 1 + (self._adapter.lora_int_id if self._adapter is not None else 0)
        self._adapter = LoRARequest(label, number, str(path))

    def _parameters(self, policy: TextPolicy, order: Order) -> list[Any]:
        """One set of sampling parameters for each prompt: its seed and limit are its own."""
        import vllm

        ends, strings = stop_conditions(policy, order.stop)
        return [
            vllm.SamplingParams(
                n=order.n,
                temperature=order.temperature,
                top_p=order.top_p,
                top_k=1 if order.greedy else order.top_k,
                max_tokens=limit,
                seed=order.seed_of(index),
                ignore_eos=True,  # the policy's own end tokens are these:
                stop_token_ids=ends.tolist(),
                stop=list(strings),
                include_stop_str_in_output=True,
                detokenize=bool(strings),
                logprobs=0,
            )
            for index, limit in enumerate(limits_of(policy, order, self.context or None))
        ]


def _completion(output: Any) -> Completion:
    tokens = list(output.token_ids)
    logp = [step[token].logprob for step, token in zip(output.logprobs, tokens, strict=True)]
    spans = output.weight_versions
    return Completion(tokens, logp, None if spans is None else [(span.version, span.start, span.end) for span in spans])


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""What is not the method: model, data, budget and machine. Shared by every run of a comparison.

A method may pin a field (`Method.pins`), and a task or a paper may recommend values; what the user sets wins over
recommendations, and a pin wins over all but an explicit `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


@dataclass(frozen=True)
class RunSettings:
    """Settings that every run has, in whatever world it acts.

    Attributes:
        steps: batches of rollouts to learn from; 0 evaluates only.
        seed: of all randomness.
        device: "auto", "cpu", "cuda", "mps" or a torch device.
        optimizer: "adamw" or "sgd".
        lr: learning rate.
        schedule: "constant", "linear" (to zero) or "cosine" (to zero), after `warmup` steps.
        warmup: steps over which the learning rate rises from zero.
        betas, eps, weight_decay: of AdamW.
        clip_grad: largest gradient norm; 0 leaves it alone.
        rows_per_micro: rows that go through the network at once; 0 chooses by memory. Never changes the result.
        eval_every: steps between evaluations; 0 evaluates only before the first step and after the last.
        save_every: steps between checkpoints; 0 saves only at the start and the end.
        keep: checkpoints kept besides the best one.
        keep_best: also keep the checkpoint with the best held-out score.
        log_to: "tensorboard", "wandb", "trackio" (several by commas); "" logs to files only.
        report: write `report.html` at the end.
        budget_tokens: sampled tokens after which the run ends, if `steps` does not end it before; 0 is no limit.
        budget_seconds: seconds of training, evaluations and checkpoints apart, after which it ends likewise.
    """

    steps: int = 100
    seed: int = 0
    device: str = "auto"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    rows_per_micro: int = 0
    eval_every: int = 0
    save_every: int = 0
    keep: int = 2
    keep_best: bool = False
    log_to: str = "tensorboard"
    report: bool = True
    budget_tokens: float = 0.0
    budget_seconds: float = 0.0


@dataclass(frozen=True)
class LanguageSettings(RunSettings):
    """Settings of a run on text.

    Attributes:
        model: "bundled", "table", a Hugging Face folder or hub id, a GGUF file, or the model folder of a run.
        task: a bundled task, such as "arithmetic" or "lock:L=4", or one of the package reasoning-gym, such as
            "reasoning-gym:chain_sum,max_terms=3"; "" when `data` is given.
        data: JSONL, JSON or Parquet file, or a `datasets` id; "" when `task` is given.
        prompt_column: the column that holds the prompt; "" finds the usual names.
        prompt_template: a format string over columns that makes the prompt, such as "Q: {question}\\nA:".
        answer_column: the column that built-in rewards compare with; "" finds the usual names.
        eval_data: rows for evaluation; "" takes the task's held-out set, or `eval_fraction` of the data.
        eval_fraction: share of `data` held out when `eval_data` is not given.
        eval_prompts: prompts of one evaluation, at most; 0 evaluates nothing and holds out nothing.
        eval_k: the k of pass@k; the largest decides how many completions of a prompt are sampled.
        reward: reward functions: "path.py:name", "module:name" or built-in names; () takes the task's.
        reward_weights: one weight for each reward; () weighs all by 1.
        reward_workers: processes that run the user's reward functions; 0 runs them in this process under an alarm.
        reward_timeout: seconds for one completion (in workers) or one batch (in process).
        outcome: the component that decides whether a completion passed; "" takes the task's, or the weighted sum.
        pass_at: a completion passes when its outcome is at least this.
        prompts: prompts in a batch.
        n: completions of each prompt.
        max_tokens: longest completion.
        max_prompt_tokens: longest prompt; 0 takes what the model's context leaves.
        temperature: of sampler, trainer and reference alike.
        top_p, top_k: truncation of the sampler, for evaluation only; 1 and 0 are off.
        stop: strings that end a completion (they stay in it).
        truncated: what becomes of completions that hit `max_tokens`: "keep" trains on them, "mask" leaves their tokens
            out of the loss while their rewards stay in the group's statistics.
        system: system message for chat models.
        prefill: assistant text that every completion starts from; it is not trained on, and rewards see it.
        chat: "auto" (wrap prompts when the tokenizer has a template), "always", "never".
        template_args: further arguments of the chat template.
        dtype: "float32", or "bfloat16" for computation in bfloat16 over float32 weights.
        sampler: who draws completions: "local" (this process), "vllm" (vLLM in this process, on a GPU), or the URL of
            an OpenAI-compatible server such as vLLM's.
        sampler_model: the model to ask that server for; "" takes the only one it serves.
        sampler_folder: where weights are handed to a sampler elsewhere; "" takes a temporary folder of this machine.
        sampler_timeout: seconds that a server may take for one prompt's completions.
        sampler_memory: share of the GPU's memory for vLLM in this process.
        lora: rank of the LoRA adapters; 0 trains all weights.
        lora_alpha: their scale; 0 means twice the rank.
        gradient_checkpointing: trade time for memory.
        table: what the logits of `model="table"` are indexed by.
        keep_rollouts: steps whose rollouts are kept on disk, the newest; 0 keeps all, -1 none.
    """

    model: str = "bundled"
    task: str = "arithmetic"
    data: str = ""
    prompt_column: str = ""
    prompt_template: str = ""
    answer_column: str = ""
    eval_data: str = ""
    eval_fraction: float = 0.1
    eval_prompts: int = 256
    eval_k: tuple[int, ...] = (1,)
    reward: tuple[str, ...] = ()
    reward_weights: tuple[float, ...] = ()
    reward_workers: int = 0
    reward_timeout: float = 30.0
    outcome: str = ""
    pass_at: float = 1.0
    prompts: int = 32
    n: int = 8
    max_tokens: int = 256
    max_prompt_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    truncated: Literal["keep", "mask"] = "keep"
    system: str = ""
    prefill: str = ""
    chat: Literal["auto", "always", "never"] = "auto"
    template_args: Mapping[str, Any] = field(default_factory=dict)
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    sampler: str = "local"
    sampler_model: str = ""
    sampler_folder: str = ""
    sampler_timeout: float = 600.0
    sampler_memory: float = 0.4
    lora: int = 0
    lora_alpha: int = 0
    gradient_checkpointing: bool = False
    table: tuple[str, ...] = ("prompt", "position", "previous")
    keep_rollouts: int = 0


def read_by_sampler(sampler: str) -> tuple[str, ...]:
    """The further settings that a sampler reads, by its name or URL."""
    if sampler == "local":
        return ()
    if sampler == "vllm":
        return ("sampler_folder", "sampler_memory")
    return ("sampler_model", "sampler_folder", "sampler_timeout")


def as_sampler(sampler: str) -> dict[str, Any]:
    """The settings of a sampler: itself, and the default of everything that only others read."""
    kept = ("sampler", *read_by_sampler(sampler))
    others = {f.name: f.default for f in fields(LanguageSettings) if f.name.startswith("sampler")}
    return {"sampler": sampler, **{name: value for name, value in others.items() if name not in kept}}


@dataclass(frozen=True)
class ControlSettings(RunSettings):
    """Settings of a run in Gymnasium environments.

    Attributes:
        env: a Gymnasium id, or "path.py:function" that makes an environment.
        env_args: further arguments of the environment.
        envs: environments stepped side by side.
        horizon: steps of each environment in one batch.
        hidden: widths of the hidden layers of policy and value network.
        activation: "tanh" or "relu".
        eval_episodes: episodes of one evaluation.
    """

    env: str = "CartPole-v1"
    env_args: Mapping[str, Any] = field(default_factory=dict)
    envs: int = 8
    horizon: int = 32
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    eval_episodes: int = 20
    lr: float = 3e-4
    clip_grad: float = 0.5
    eps: float = 1e-5


def stands_for_object(value: Any) -> bool:
    """Whether a setting describes something that was given as a Python object, such as "<60 rows, 3f2a…>"."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, str) and each.startswith("<") for each in values)


def given_as_objects(settings: Any) -> list[str]:
    """The arguments of a run that were Python objects, which no file holds."""
    names = ("model", "data", "eval_data", "reward", "env")
    return [name for name in names if stands_for_object(getattr(settings, name, None))]

"""The TRL side of language_step.py, for an environment of its own; see language_step_melior.py for the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def vowels(completions: list[str], **columns: Any) -> list[float]:
    """Share of vowels: a reward in which siblings differ."""
    return [sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in completions]


class Stepping(TrainerCallback):
    """Waits for a command before each step and answers after it."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.start, self.sampling = answer, 0.0, 0.0
        self.seen: dict[str, Any] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Blocks until told to go on."""
        if sys.stdin.readline().strip() != "step":
            os._exit(0)
        self.start, self.sampling = time.perf_counter(), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        whole = time.perf_counter() - self.start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        times = {"sampling": self.sampling, "learning": whole - self.sampling, "whole": whole}
        self.answer({**times, "peak": peak, **self.seen})


def trainer_of(config: dict[str, Any], stepping: Stepping) -> GRPOTrainer:
    """A GRPO trainer whose completions all have full length."""
    batch = len(config["prompts"]) * config["n"]
    rows = config["trl_rows"] or batch
    args = GRPOConfig(
        output_dir=config["scratch"],
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
        num_generations=config["n"],
        max_completion_length=config["tokens"],
        temperature=1.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=10**6,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=config["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        report_to=[],
        logging_steps=10**6,
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    data = Dataset.from_list([{"prompt": text} for text in config["prompts"]])
    trainer = GRPOTrainer(config["model"], reward_funcs=vowels, args=args, train_dataset=data, callbacks=[stepping])
    never = len(trainer.processing_class)  # a token that the model cannot produce
    trainer.eos_token_ids = [never]
    trainer.generation_config.eos_token_id = never
    trainer.model.generation_config.eos_token_id = never
    return trainer


def main() -> None:
    """Serve commands."""
    config = json.loads(sys.argv[1])
    torch.set_num_threads(config["threads"])
    out = os.fdopen(os.dup(1), "w")

    def answer(figures: dict[str, Any]) -> None:
        print(json.dumps(figures), file=out, flush=True)

    stepping = Stepping(answer)
    with contextlib.redirect_stdout(sys.stderr):
        trainer = trainer_of(config, stepping)
        generate = trainer._generate_single_turn

        def timed(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = generate(prompt_ids, *args, **kwargs)
            stepping.sampling += time.perf_counter() - start
            each = config["n"]
            stepping.seen = {"tokens": sum(map(len, result[0])), "prompt": [len(p) for p in prompt_ids[::each]]}
            return result

        trainer._generate_single_turn = timed
        answer({})
        trainer.train()


if __name__ == "__main__":
    main()

"""Advantages, losses and gradients of Melior and TRL on the same completions of the same model.

    python benchmarks/agreement_with_trl.py --trl PYTHON

PYTHON is the interpreter of an environment that has TRL (the figures in docs/from-trl.md are of TRL 1.16.0). There a
tiny random chat model is trained for two updates on one batch, for each configuration below; what went in and came out
of TRL's loss is saved, and computed again here. Losses are those of the second update, where the ratios have left 1 and
clips are at work; the differences are the larger ones of both updates.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

# Fields of GRPOConfig besides the common ones, and the Melior method with its changes.
CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "defaults": ({}, "trl:grpo", ()),
    "mask_truncated_completions": ({"mask_truncated_completions": True}, "trl:grpo", ()),
    "epsilon_high=0.28, delta=1.5": (
        {"epsilon_high": 0.28, "delta": 1.5},
        "trl:grpo",
        ("objective.clip.high=0.28", "objective.clip.dual=1.5"),
    ),
    "loss_type=grpo": ({"loss_type": "grpo"}, "trl:grpo", ("aggregate=SequenceMean",)),
    "loss_type=dr_grpo, scale_rewards=none": ({"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr-grpo", ()),
    "loss_type=cispo, epsilon_high=5": (
        {"loss_type": "cispo", "epsilon_high": 5.0},
        "cispo",
        ("objective.capped_weight.high=4", "advantage.eps=1e-4"),
    ),
    "loss_type=luspo": (
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        "gspo",
        ("aggregate=SequenceSum", "objective.clip.low=0.2", "objective.clip.high=0.2", "advantage.eps=1e-4"),
    ),
    "importance_sampling_level=sequence": (
        {"importance_sampling_level": "sequence"},
        "trl:grpo",
        ("objective.clip.ratio=SegmentRatio",),
    ),
    "scale_rewards=batch": ({"scale_rewards": "batch"}, "trl:grpo", ("advantage.scale=batch",)),
    "multi_objective_aggregation=normalize_then_sum": (
        {"multi_objective_aggregation": "normalize_then_sum"},
        "gdpo",
        ("aggregate=TokenMean",),
    ),
    "entropy_coef=0.01": (
        {"entropy_coef": 0.01},
        "trl:grpo",
        ("objective=[{part: Clip}, {weight: 0.01, term: {part: EntropyBonus}}]",),
    ),
    "beta=0.04, use_bias_correction_kl=False": (
        {"beta": 0.04, "use_bias_correction_kl": False},
        "trl:grpo",
        ("objective=[{part: Clip}, {weight: 0.04, term: {part: ReferenceKL}}]",),
    ),
    "beta=0.04": (
        {"beta": 0.04},
        "trl:grpo",
        ("objective=[{part: Clip}, {weight: 0.04, term: {part: ReferenceKL, ratio: TokenRatio}}]",),
    ),
}
TOKENS = 32
LETTERS = ["<unk>", "<eos>", *"<> ?+.", *"0123456789", *"abcdefghijklmnopqrstuvwxyzWCT"]


def main() -> None:
    """Both sides, and a Markdown table of how far they are apart."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trl", help="the Python of an environment with TRL")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        theirs(Path(options.child))
        return
    if not options.trl:
        parser.error("give --trl PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        subprocess.run([options.trl, __file__, "--child", folder], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        print("| GRPOConfig | Melior | advantages apart by | loss, TRL | loss, Melior | gradients apart by |")
        print("|---|---|---|---|---|---|")
        for name, captures in torch.load(f"{folder}/captures.pt").items():
            advantages, losses, own, gradients = zip(*(compared(name, each, folder) for each in captures), strict=True)
            here = " ".join([CASES[name][1], *(f"--set '{change}'" for change in CASES[name][2])])
            shown = f"{max(advantages):.0e} | {losses[1]:.6f} | {own[1]:.6f} | {max(gradients):.0e}"
            print(f"| {name} | `{here}` | {shown} |")


def make_model(folder: Path) -> None:
    """A chat model of two small layers with a letter tokenizer, and a reference near it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(LETTERS)}, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '>' if m['role'] == 'user' else '<' }}{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<{% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(LETTERS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for value in network.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3)
        save(network, tokenizer, folder / "model")
        for value in network.parameters():
            value.add_(0.02 * torch.randn_like(value))
        save(network, tokenizer, folder / "reference")


def save(network: Any, tokenizer: Any, folder: Path) -> None:
    """A model folder."""
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# ---- in TRL's environment


def theirs(folder: Path) -> None:
    """What TRL's loss saw and gave at both updates of each case."""
    import trl.trainer.grpo_trainer as module
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    module.shuffle_sequence_dict = lambda batch: batch  # so that rewards and rows stay in the same order

    class Watched(GRPOTrainer):
        def _calculate_rewards(self, *given: Any) -> Any:
            self.rewards = super()._calculate_rewards(*given)
            return self.rewards

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            names, values = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
            kept = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
            capture = {name: inputs[name].clone() for name in kept}
            capture |= {"rewards": self.rewards, "loss": loss.detach(), "old": inputs.get("old_per_token_logps")}
            gradient = torch.autograd.grad(loss, values, retain_graph=True)
            capture["gradient"] = dict(zip(names, gradient, strict=True))
            capture["weights"] = {name: value.detach().clone() for name, value in zip(names, values, strict=True)}
            captures.append(capture)
            return loss

    def length(completions: Any, **columns: Any) -> list[float]:
        return [len(completion[0]["content"]) / 30 for completion in completions]

    def digits(completions: Any, **columns: Any) -> list[float]:
        return [sum(letter.isdigit() for letter in completion[0]["content"]) / 10 for completion in completions]

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is {a} + 9?"}]} for a in range(20)])
    common: dict[str, Any] = {
        "output_dir": str(folder / "out"), "max_steps": 2, "num_iterations": 2, "per_device_train_batch_size": 16,
        "num_generations": 8, "max_completion_length": TOKENS, "reward_weights": [1.0, 0.2], "learning_rate": 0.02,
        "lr_scheduler_type": "constant", "bf16": False, "use_cpu": True, "gradient_checkpointing": False,
        "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    found = {}
    for name, (fields, _, _) in CASES.items():
        captures: list[dict[str, Any]] = []
        model, functions = str(folder / "model"), [length, digits]
        trainer = Watched(model=model, reward_funcs=functions, train_dataset=rows, args=GRPOConfig(**common, **fields))
        if trainer.ref_model is not None:
            reference = AutoModelForCausalLM.from_pretrained(folder / "reference")
            trainer.ref_model.load_state_dict(reference.state_dict())
        trainer.train()
        found[name] = captures
    torch.save(found, folder / "captures.pt")


# ---- here


def compared(name: str, capture: dict[str, Any], folder: str) -> tuple[float, float, float, float]:
    """Difference of advantages, both losses, relative difference of the gradients."""
    import melior
    from melior.learner import Learner
    from melior.policies.loading import load_causal_lm
    from melior.records.overrides import apply

    _, method, changes = CASES[name]
    record, _ = apply(melior.get(method), None, changes)
    policy, _ = load_causal_lm(f"{folder}/model", device="cpu")
    policy.prepare(record.needs())
    own = {name.removeprefix("model."): value for name, value in policy.named_parameters()}
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(capture["weights"][key])
    batch = record.advantage(record.reward(rows_of(capture)))
    if "ReferenceKL" in repr(record.objective):
        reference, _ = load_causal_lm(f"{folder}/reference", device="cpu")
        scorer = Learner(reference, torch.optim.SGD(dict(reference.named_parameters()).values()), record.aggregate)
        batch = batch.scored("reference", logp=scorer.evaluate(batch).logp)
    if capture["old"] is not None:
        batch = batch.with_(proximal_logp=capture["old"])
    learner = Learner(policy, torch.optim.SGD(own.values()), record.aggregate)
    loss = learner.gradient(record.objective, batch)
    mine = torch.cat([own[key].grad.flatten() for key in own])
    gradient = torch.cat([capture["gradient"][key].flatten() for key in own])
    row = (batch.advantage.sum(1) / batch.mask.sum(1).clamp(min=1) - capture["advantages"])[batch.mask.any(1)]
    apart = float((mine - gradient).norm() / gradient.norm())
    return float(row.abs().max()), float(capture["loss"]), float(loss.value), apart


def rows_of(capture: dict[str, Any]) -> Any:
    """TRL's batch as trajectories, with the raw rewards as components."""
    from melior.trajectories import Trajectories

    mask = capture["completion_mask"].bool()
    present = (capture["completion_ids"] != 1).int().cumprod(1).sum(1) + 1  # up to the first end token
    prompts = zip(capture["prompt_ids"], capture["prompt_mask"].bool(), strict=True)
    return Trajectories(
        mask=mask,
        group=torch.arange(len(mask)) // 8,
        prompt=tuple(tuple(ids[there].tolist()) for ids, there in prompts),
        tokens=capture["completion_ids"],
        components={"length": capture["rewards"][:, 0], "digits": capture["rewards"][:, 1]},
        weights={"length": 1.0, "digits": 0.2},
        columns={"length": present.clamp(max=mask.shape[1]), "limit": torch.full((len(mask),), TOKENS)},
    )


if __name__ == "__main__":
    sys.exit(main())

"""Make the bundled language model: a small character-level Llama, pre-trained on flawed solutions of the bundled tasks.

    python benchmarks/pretrain_bundled_model.py --out src/melior/tasks/bundled

The model is meant to be improved by reinforcement learning: it knows how every task is done, and often does it wrong,
because the solutions it learns from are wrong on purpose, as often as `NOISE` says. It sees training prompts only, and
the loss is taken on completions only. At the end pass@1 and pass@8 on held-out prompts are printed for every task.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from melior.tasks import TASKS, Row
from melior.tasks.countdown import combine
from melior.tasks.task import Task

SPECIAL = {"pad_token": "<|pad|>", "eos_token": "<|eos|>", "bos_token": "<|bos|>", "unk_token": "<|unk|>"}
PAD = 0  # the id of the first special token
IGNORED = -100  # a label without a loss
CONTEXT = 512

Example = tuple[list[int], list[int]]

# How often each task is drawn, and how often its solution is spoilt: for the sums the chance that one worked step has a
# wrong result (a solution has two), else the chance that the whole solution is replaced by a flawed one.
SHARE = {"arithmetic": 0.36, "countdown": 0.28, "sorting": 0.12, "format-arithmetic": 0.2, "lock": 0.04}
# A flaw of the form in format-arithmetic is twice as likely as one of a step.
NOISE = {"arithmetic": 0.45, "countdown": 0.3, "sorting": 0.6, "format-arithmetic": 0.25, "lock": 1.0}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character: printable ASCII, newline and tab; anything else becomes the unknown token."""
    characters = [chr(code) for code in range(32, 127)] + ["\n", "\t"]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL.values(), *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 0.8 million parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


# -- flawed solutions ------------------------------------------------------------------------------------------------


def flawed_steps(rng: random.Random, problem: str, chance: float) -> tuple[list[str], int]:
    """Worked steps of "27+58" in which each result is wrong with the given chance; what follows builds on it."""
    sign = "+" if "+" in problem else "-"
    a, b = map(int, problem.split(sign))
    steps, carry, value = [], 0, 0
    for place in range(2):
        x, y = a // 10**place % 10, b // 10**place % 10
        third = f"{sign}1" if carry else ""
        if sign == "-" and place == 0 and x < y:
            x += 10
        result = x + y + carry if sign == "+" else x - y - carry
        if rng.random() < chance:
            result = rng.choice([r for r in range(20 if sign == "+" else 10) if r != result])
        carry = int(result >= 10) if sign == "+" else int(x >= 10)
        steps.append(f"{x}{sign}{y}{third}={result}")
        value += (result % 10 if place == 0 else result) * 10**place
    return steps, value


def arithmetic_solution(rng: random.Random, row: Row, chance: float) -> str:
    steps, value = flawed_steps(rng, row["prompt"].rstrip("="), chance)
    return ";".join([*steps, str(value)])


def format_solution(rng: random.Random, row: Row, chance: float) -> str:
    """Steps are wrong with the given chance, the form with twice that chance."""
    steps, value = flawed_steps(rng, row["prompt"].removeprefix("solve ").rstrip(":"), chance)
    work = ";".join(steps)
    if rng.random() >= 2 * chance:
        return f"[{work}]<{value}>"
    return rng.choice(
        [f"{work}<{value}>", f"[{work}]{value}", f"<{value}>", f"ok [{work}]<{value}>", f"[{work}]<{value}> ok"]
    )


def countdown_solution(rng: random.Random, row: Row, chance: float) -> str:
    """The reference, or any expression of the same numbers."""
    if rng.random() >= chance:
        return row["answer"]
    return combine(rng, [(str(number), Fraction(number), 3) for number in row["numbers"]])[0]


def sorting_solution(rng: random.Random, row: Row, chance: float) -> str:
    """The reference; or two items swapped, one item lost, one put in twice, or the form broken."""
    if rng.random() >= chance:
        return row["answer"]
    items = row["answer"][1:-1].split(",")
    flaw = rng.choice(["swap", "swap", "lose", "double", "form"])
    place = rng.randrange(len(items) - 1)
    if flaw == "swap":
        items[place], items[place + 1] = items[place + 1], items[place]
    elif flaw == "lose":
        del items[place]
    elif flaw == "double":
        items.insert(place, items[place])
    else:
        return rng.choice([",".join(items), f"[{''.join(items)}]", f"({','.join(items)})"])
    return f"[{','.join(items)}]"


def lock_solution(rng: random.Random, row: Row, chance: float) -> str:
    """Random letters: the codes are secrets."""
    return "".join(rng.choice("abcd") for _ in row["code"])


SOLUTIONS: dict[str, Callable[[random.Random, Row, float], str]] = {
    "arithmetic": arithmetic_solution,
    "countdown": countdown_solution,
    "sorting": sorting_solution,
    "format-arithmetic": format_solution,
    "lock": lock_solution,
}


# -- training --------------------------------------------------------------------------------------------------------


def batches(tokenizer: PreTrainedTokenizerFast, size: int, parts: int, seed: int) -> Iterator[list[list[Example]]]:
    """Endless batches of (ids, labels) pairs, each batch in `parts` parts of similar length; prompts carry no label."""
    rng = random.Random(f"pretrain {seed}")
    names, shares = list(SHARE), list(SHARE.values())
    index = 0
    while True:
        examples: list[Example] = []
        for name in rng.choices(names, shares, k=size):
            row = TASKS[name].row("train", index, seed)
            prompt = tokenizer.encode(row["prompt"])
            completion = [*tokenizer.encode(SOLUTIONS[name](rng, row, NOISE[name])), tokenizer.eos_token_id]
            examples.append((prompt + completion, [IGNORED] * len(prompt) + completion))
            index += 1
        examples.sort(key=lambda example: len(example[0]))
        yield [examples[part * size // parts : (part + 1) * size // parts] for part in range(parts)]


def padded(sequences: list[list[int]], value: int) -> torch.Tensor:
    """The sequences as rows of one tensor, filled up on the right."""
    length = max(map(len, sequences))
    return torch.tensor([sequence + [value] * (length - len(sequence)) for sequence in sequences])


def pretrain(model: LlamaForCausalLM, data: Iterator[list[list[Example]]], steps: int, lr: float) -> None:
    """AdamW with a short warm-up and a cosine down to a tenth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    started, shown = time.perf_counter(), 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        parts = next(data)
        count = sum(label != IGNORED for part in parts for _, labels in part for label in labels)
        total = 0.0
        for part in parts:
            ids, labels = padded([ids for ids, _ in part], PAD), padded([labels for _, labels in part], IGNORED)
            logits = model(ids, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
            )
            (loss / count).backward()
            total += loss.item() / count
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown += total
        if (step + 1) % 100 == 0:
            print(f"step {step + 1:5d}  loss {shown / 100:.4f}  {time.perf_counter() - started:6.1f} s", flush=True)
            shown = 0.0


# -- measuring -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(model: LlamaForCausalLM, tokenizer: Any, prompts: list[str], max_tokens: int) -> tuple[list[str], float]:
    """One completion a prompt at temperature 1, and the share that ended by itself.

    Every token runs the whole text again, left-padded: texts this short do not need a cache.
    """
    encoded = tokenizer(prompts, return_tensors="pt", padding=True)
    ids, mask = encoded.input_ids, encoded.attention_mask
    start, ended = ids.shape[1], torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, use_cache=False).logits[
            :, -1
        ]
        token = torch.multinomial(logits.softmax(-1), 1)[:, 0].masked_fill(ended, PAD)
        ids = torch.cat([ids, token[:, None]], 1)
        mask = torch.cat([mask, (~ended).long()[:, None]], 1)
        ended |= token == tokenizer.eos_token_id
        if ended.all():
            break
    return tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True), ended.float().mean().item()


def measure(
    model: LlamaForCausalLM, tokenizer: Any, task: Task, prompts: int, n: int = 8
) -> tuple[float, float, float]:
    """pass@1 (the mean over all samples), pass@n and the share of ended completions, on held-out prompts."""
    rows = [row for row in task.rows("test", prompts) for _ in range(n)]
    texts, ended = sample(model, tokenizer, [row["prompt"] for row in rows], task.settings["max_tokens"] + 1)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    passed = task.rewards[task.outcome]([row["prompt"] for row in rows], texts, None, **columns)
    table = torch.tensor(passed).view(-1, n)
    return table.mean().item(), table.amax(1).mean().item(), ended


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder. Weights are stored in float16 and load as float32, which halves the file."""
    model.generation_config.update(do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {name: value.half() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")


CARD = """# The bundled model

A character-level Llama of {parameters:,} parameters (101 tokens, context {context}), without a chat template, that does
Melior's bundled tasks and often does them wrong, so that there is something to improve. It is a base model: give it
`27+58=` and it goes on with worked steps, an answer and the end token. Nothing is put in front of a prompt. Weights are
stored in float16 and load as float32. License: that of Melior.

Made by

    python benchmarks/pretrain_bundled_model.py --out src/melior/tasks/bundled \\
        --steps {steps} --batch {batch} --lr {lr} --seed {seed} --threads {threads}

from solutions of training prompts, wrong on purpose: with the chance below one worked step has a wrong result (sums;
what follows builds on it, and `format-arithmetic` breaks its form with twice that chance), or the whole solution is
replaced by a flawed one (the other tasks; for the lock all are random letters). The loss is on completions only.

Measured on {prompts} held-out prompts a task (16 for the lock), 8 samples each at temperature 1:

| task | share of training | chance of a flaw | pass@1 | pass@8 | ended by itself |
|---|---|---|---|---|---|
{table}
"""


def describe(folder: Path, arguments: argparse.Namespace) -> None:
    """Load what was saved, measure every task, print the figures and write them into MODEL.md."""
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = []
    for name, task in TASKS.items():
        one, eight, ended = measure(model, tokenizer, task, arguments.prompts)
        print(f"{name:18s} pass@1 {one:.3f}   pass@8 {eight:.3f}   ended {ended:.3f}", flush=True)
        lines.append(f"| {name} | {SHARE[name]:.0%} | {NOISE[name]:.0%} | {one:.3f} | {eight:.3f} | {ended:.3f} |")
    card = CARD.format(parameters=model.num_parameters(), context=CONTEXT, table="\n".join(lines), **vars(arguments))
    (folder / "MODEL.md").write_text(card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=96, help="solutions a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--threads", type=int, default=2, help="part of the recipe: sums round differently with another"
    )
    parser.add_argument("--prompts", type=int, default=256, help="held-out prompts a task to measure on")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    pretrain(model, batches(tokenizer, arguments.batch, 4, arguments.seed), arguments.steps, arguments.lr)
    save(model, tokenizer, arguments.out)
    describe(arguments.out, arguments)


if __name__ == "__main__":
    main()

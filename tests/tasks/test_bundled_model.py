"""The bundled model: plain transformers loads it, its tokenizer loses nothing, and it can be improved."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
import torch

from melior.tasks import TASKS, bundled_model

FOLDER = bundled_model()
N = 8


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def test_it_is_small_and_loads_in_float32(model: Any) -> None:
    assert 800_000 <= model.num_parameters() <= 2_000_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.config.max_position_embeddings >= 256
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2_000_000


def test_its_special_tokens_are_distinct_and_agree_everywhere(model: Any, tokenizer: Any) -> None:
    ids = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id]
    assert None not in ids and len(set(ids)) == 4
    for config in (model.config, model.generation_config):
        assert [config.pad_token_id, config.eos_token_id, config.bos_token_id] == ids[:3]
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.chat_template is None
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in FOLDER.iterdir()} == names | {"MODEL.md"}
    assert json.loads((FOLDER / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("name", TASKS)
def test_prompts_and_answers_come_back_unchanged(tokenizer: Any, name: str) -> None:
    rows = TASKS[name].rows("train", 100) + TASKS[name].rows("test", 30)
    for text in [row[column] for row in rows for column in ("prompt", "answer")]:
        ids = tokenizer(text).input_ids
        assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
        assert (
            tokenizer.decode(ids) == text == tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)
        )


def test_printable_text_comes_back_and_the_rest_is_unknown(tokenizer: Any) -> None:
    text = string.digits + string.ascii_letters + string.punctuation + " \n\t  a , b . <s> don't\n\n"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    assert tokenizer("5€é").input_ids[1:] == [tokenizer.unk_token_id] * 2


def test_padding_goes_to_the_left(tokenizer: Any) -> None:
    batch = tokenizer(["1+1=", "12+34="], padding=True, return_tensors="pt")
    assert batch.input_ids[0, :2].tolist() == [tokenizer.pad_token_id] * 2
    assert batch.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6]


@pytest.mark.parametrize("name", [name for name in TASKS if name != "lock"])
def test_it_passes_more_often_in_eight_tries_than_in_one(model: Any, tokenizer: Any, name: str) -> None:
    task = TASKS[name]
    rows = [row for row in task.rows("test", 32) for _ in range(N)]
    batch = tokenizer([row["prompt"] for row in rows], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    output = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=task.settings["max_tokens"])
    completions = output[:, batch.input_ids.shape[1] :]
    texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
    columns = {column: [row[column] for row in rows] for column in rows[0] if column != "prompt"}
    passed = task.rewards[task.outcome]([row["prompt"] for row in rows], texts, completions.tolist(), **columns)
    table = torch.tensor(passed).view(-1, N)
    once, in_eight = table.mean().item(), table.amax(1).mean().item()
    assert 0.08 <= once <= 0.45
    assert in_eight >= once + 0.25
    ended = (completions == tokenizer.eos_token_id).any(1).float().mean().item()
    assert ended >= 0.95

"""What is exported computes what was trained, and what cannot be exported is said before anything is written."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy
import pytest
import torch
import transformers
from safetensors.torch import save_file

import melior
from exporting.tiny_bpe import TEMPLATE, bpe
from melior.cli import run as command
from melior.errors import RunError, UserError
from melior.exporting.gguf_tokenizer import QWEN2
from melior.policies.causal_lm import FURTHER
from melior.policies.loading import load_causal_lm
from runs import lock_run, text_run

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gpt2": transformers.GPT2Config,
}
IDS = torch.tensor([[5, 6, 7, 8, 9, 300]])


def network(kind="llama", rows=350, **changes):
    """Two layers of width 32 with random weights, those of the norms too."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    size |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": rows, "eos_token_id": 2}
    config = CONFIGS[kind](**{**size, "bos_token_id": 0, "pad_token_id": None, **changes})
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.3 * torch.randn_like(value))
    made.generation_config.eos_token_id = [2, 1]
    return made.eval()


def saved(folder, kind="llama", words=None, **changes):
    """A plain model folder."""
    network(kind, **changes).save_pretrained(folder)
    (words or bpe()).save_pretrained(folder)
    return folder


@pytest.fixture
def adapter(tmp_path):
    """An adapter folder on a base model of its own, with weights that matter, and the logits with it."""
    base = saved(tmp_path / "base")
    policy, _ = load_causal_lm(base, device="cpu", lora=4)
    torch.manual_seed(1)
    with torch.no_grad():
        for _, value in policy.named_parameters():
            value.normal_(0, 0.3)
    policy.save(tmp_path / "adapter")
    return tmp_path / "adapter", logits(policy.network)


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def read_gguf(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def field(reader, name):
    found = reader.get_field(name)
    return None if found is None else found.contents()


# ---------------------------------------------------------------------------------------------------- merged folders


def test_a_merged_adapter_is_a_plain_folder_with_its_logits(adapter, tmp_path):
    folder, expected = adapter
    (written,) = melior.export(folder, merge=True, out=tmp_path / "merged")
    assert written.path == tmp_path / "merged" and written.difference <= written.allowed and written.rounding == 0
    plain = transformers.AutoModelForCausalLM.from_pretrained(written.path)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert (logits(plain) - expected).abs().max() < 1e-4 < 0.1 < (logits(base) - expected).abs().max()
    assert plain.generation_config.eos_token_id == [2, 1]
    assert transformers.AutoTokenizer.from_pretrained(written.path).chat_template == TEMPLATE
    assert not (written.path / "adapter_config.json").exists()
    assert written.size == sum(path.stat().st_size for path in written.path.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_weights_trained_beside_an_adapter_are_exported_too(adapter, tmp_path):
    folder, expected = adapter
    save_file({"model.model.norm.weight": torch.full((32,), 3.0)}, folder / FURTHER)
    melior.export(folder, merge=True, out=tmp_path / "merged")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.equal(plain.model.norm.weight, torch.full((32,), 3.0))
    assert (logits(plain) - expected).abs().max() > 0.1


def test_what_is_there_is_replaced_only_when_asked(adapter, tmp_path):
    folder, _ = adapter
    target = tmp_path / "adapter-export-merged"
    assert melior.export(folder, merge=True)[0].path == target
    (target / "mine.txt").write_text("kept?")
    with pytest.raises(UserError, match="adapter-export-merged is there already; give --force"):
        melior.export(folder, merge=True)
    assert (target / "mine.txt").exists()
    melior.export(folder, merge=True, force=True)
    assert not (target / "mine.txt").exists() and (target / "model.safetensors").exists()
    shutil.rmtree(target)
    target.mkdir()
    (target / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="holds something else than a model"):
        melior.export(folder, merge=True, force=True)


def test_a_merge_that_does_not_compute_the_same_is_not_kept(adapter, tmp_path, monkeypatch):
    folder, _ = adapter
    melior.export(folder, merge=True, out=tmp_path / "merged")
    before = (tmp_path / "merged" / "model.safetensors").read_bytes()
    monkeypatch.setattr("peft.PeftModel.merge_and_unload", lambda peft, **_: peft.unload(), raising=False)
    with pytest.raises(RunError, match=r"merged does not compute what the model does: .* differ by up to [1-9]"):
        melior.export(folder, merge=True, out=tmp_path / "merged", force=True)
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "merged"]


def test_there_is_nothing_to_merge_in_a_plain_model(tmp_path):
    with pytest.raises(UserError, match=r"nothing to merge: .*plain has no LoRA adapter"):
        melior.export(saved(tmp_path / "plain"), merge=True)


# ---------------------------------------------------------------------------------------------------- GGUF files


@pytest.mark.parametrize(
    ("kind", "pre", "changes"),
    [
        ("llama", "gpt-2", {}),
        ("llama", "smollm", {"tie_word_embeddings": True}),
        ("mistral", "llama-bpe", {"sliding_window": None, "head_dim": 16}),
        ("qwen2", "qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
        ("qwen3", "qwen2", {"tie_word_embeddings": True, "head_dim": 128}),
    ],
)
def test_a_gguf_file_computes_what_the_model_does(tmp_path, kind, pre, changes):
    begin = pre == "llama-bpe"
    folder = saved(tmp_path / "a", kind, bpe(pre, begin), **changes)
    (written,) = melior.export(folder, gguf=True, dtype="f32", out=tmp_path / "a.gguf")
    assert written.difference <= written.allowed and written.rounding == 0
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert (logits(read_gguf(written.path)) - logits(plain)).abs().max() < 1e-4
    reader = gguf.GGUFReader(written.path)
    assert field(reader, "general.architecture") == ("llama" if kind == "mistral" else kind)
    assert field(reader, "tokenizer.ggml.pre") == pre
    assert field(reader, "tokenizer.ggml.add_bos_token") is begin
    assert field(reader, "tokenizer.chat_template") == TEMPLATE
    names = {tensor.name for tensor in reader.tensors}
    assert ("output.weight" in names) is not plain.config.tie_word_embeddings
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert set(kinds.values()) == {"F32"}


@pytest.mark.parametrize(("dtype", "kind"), [("f16", "F16"), ("bf16", "BF16")])
def test_matrices_are_rounded_and_vectors_are_not(tmp_path, dtype, kind):
    folder = saved(tmp_path / "a")
    (written,) = melior.export(folder, gguf=True, dtype=dtype)
    assert written.path == tmp_path / "a-model.gguf" and written.difference <= written.allowed < written.rounding
    state = network().state_dict()
    of_dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(written.path).tensors}
    assert {tensor.tensor_type.name for tensor in tensors.values()} == {kind, "F32"}
    norm, down = tensors["output_norm.weight"], tensors["blk.1.ffn_down.weight"]
    assert numpy.array_equal(norm.data, state["model.norm.weight"].numpy())
    read = gguf.dequantize(down.data, down.tensor_type)
    assert numpy.array_equal(read, state["model.layers.1.mlp.down_proj.weight"].to(of_dtype).float().numpy())


def test_an_adapter_is_merged_into_the_file(adapter, tmp_path):
    folder, expected = adapter
    both = melior.export(folder, merge=True, gguf=True, dtype="f32")
    assert [each.kind for each in both] == ["merged", "gguf"]
    assert (logits(read_gguf(both[1].path)) - expected).abs().max() < 1e-4


def test_a_file_that_does_not_compute_the_same_is_not_kept(tmp_path, monkeypatch):
    folder = saved(tmp_path / "a")
    monkeypatch.setattr("melior.exporting.gguf_file._interleaved", lambda array, heads: array)
    with pytest.raises(RunError, match=r"a.gguf does not compute what the model does: .* it was not kept"):
        melior.export(folder, gguf=True, out=tmp_path / "a.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_that_encodes_differently_is_not_kept(tmp_path, monkeypatch):
    folder = saved(tmp_path / "a", words=bpe("qwen2"))
    monkeypatch.setattr("melior.exporting.gguf_tokenizer.PRE_TOKENIZERS", {(QWEN2,): "gpt-2"})
    with pytest.raises(RunError, match=r"encodes .* differently; it was not kept"):
        melior.export(folder, gguf=True, out=tmp_path / "a.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt2", {}, "of the model type 'gpt2' cannot be written; llama, mistral, qwen2, qwen3 can"),
        ("mistral", {"sliding_window": 16}, "a sliding window of 16 tokens"),
        ("llama", {"attention_bias": True}, "it has attention bias"),
        ("llama", {"hidden_act": "gelu"}, "the activation 'gelu'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rotary positions scaled by 'linear'",
        ),
    ],
)
def test_what_a_file_could_not_carry_is_refused(tmp_path, kind, changes, message):
    with pytest.raises(UserError, match=message):
        melior.export(saved(tmp_path / "a", kind, **changes), gguf=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_weights_beyond_a_dtype_are_refused(tmp_path):
    model = network()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    model.save_pretrained(tmp_path / "a")
    bpe().save_pretrained(tmp_path / "a")
    with pytest.raises(UserError, match=r"up_proj.weight exceed the range of f16; use --dtype bf16 or f32"):
        melior.export(tmp_path / "a", gguf=True)
    assert melior.export(tmp_path / "a", gguf=True, dtype="bf16")[0].rounding > 0


# ---------------------------------------------------------------------------------------------------- requests and runs


def test_requests_that_make_no_sense(tmp_path):
    folder = saved(tmp_path / "a")
    for given, message in (
        ({}, "ask for --merge, --gguf or both"),
        ({"merge": True, "gguf": True, "out": tmp_path / "b"}, "--out names one place"),
        ({"gguf": True, "dtype": "q4"}, "dtype 'q4' is not known; choose from bf16, f16, f32"),
        ({"gguf": True, "checkpoint": 3}, "not a run folder, so it has no checkpoints"),
    ):
        with pytest.raises(UserError, match=message):
            melior.export(folder, **given)
    with pytest.raises(UserError, match="there is no run folder or model folder"):
        melior.export(tmp_path / "none", gguf=True)


def test_checkpoints_of_a_run(tmp_path):
    brief = {"steps": 2, "save_every": 1, "prompts": 1, "n": 2, "max_tokens": 4, "eval_prompts": 0, "report": False}
    run = text_run(tmp_path / "run", lora=2, **brief).path
    (written,) = melior.export(run, merge=True)
    assert written.path == run / "export-merged" and written.source == run / "checkpoints" / "step-000002" / "model"
    (written,) = melior.export(run, merge=True, checkpoint="1")
    assert written.path == run / "step-000001-export-merged"
    with pytest.raises(UserError, match="has no checkpoint of step 7; it has those of 1, 2"):
        melior.export(run, merge=True, checkpoint=7)
    with pytest.raises(UserError, match="a step or 'best', not 'last'"):
        melior.export(run, merge=True, checkpoint="last")
    with pytest.raises(UserError, match=r"llama\.cpp has none of the kind WordLevel"):
        melior.export(run, gguf=True)
    weights = run / "checkpoints" / "step-000002" / "model" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"adapter_model\.safetensors"):
        melior.export(run, merge=True, force=True)


def test_a_run_of_another_policy_has_nothing_to_export(tmp_path):
    with pytest.raises(UserError, match="holds a table, not a language model"):
        melior.export(lock_run(tmp_path / "run").path, gguf=True)


def test_the_command_says_what_it_found(adapter, tmp_path, capsys):
    folder, _ = adapter
    assert command(["export", str(folder), "--gguf", "--dtype", "bf16", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["kind"] == "gguf" and row["path"] == str(tmp_path / "adapter-model.gguf") and row["dtype"] == "bf16"
    assert command(["export", str(folder), "--merge"]) == 0
    assert "loaded again, its logits differ from those written by at most" in capsys.readouterr().out
    assert command(["export", str(folder), "--merge"]) == 2
    assert "there already" in capsys.readouterr().err

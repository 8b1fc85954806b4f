"""Models from folders, GGUF files and objects; what cannot be loaded is said in one sentence."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.testing import assert_close

from melior.errors import RunError, UserError
from melior.parts import Need
from melior.policies.loading import load_causal_lm, pick_device
from tiny_models import VOCABULARY, batch_of, network, tokenizer

IDS = torch.tensor([[2, 3, 4, 5, 6]])


@pytest.fixture
def folder(tmp_path):
    network(dtype=torch.float32).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_what_is_saved_is_a_plain_folder_with_the_same_logits(tmp_path, kind):
    actor, words = load_causal_lm((network(kind, dtype=torch.float32), tokenizer()), device="cpu")
    actor.save(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(plain), logits(actor.network))
    assert plain.generation_config.eos_token_id == 1
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("bad") == words.encode("bad") == [3, 2, 5]
    assert not list(tmp_path.glob("*.bin"))


@pytest.mark.parametrize(("kind", "shards"), [("llama", ""), ("gpt2", ""), ("tied", ""), ("llama", "20KB")])
def test_every_weight_that_was_saved_is_taken_back_bit_for_bit(tmp_path, kind, shards):
    changes = {"tie_word_embeddings": True} if kind == "tied" else {}
    kind = "qwen2" if kind == "tied" else kind
    need = frozenset({Need("value")})

    def actor(seed):
        made, _ = load_causal_lm((network(kind, seed, torch.float32, **changes), tokenizer()), "bfloat16", device="cpu")
        made.prepare(need)
        torch.nn.init.normal_(made.value_head.weight)
        return made

    one, other = actor(0), actor(1)
    one.save(tmp_path)
    if shards:
        (tmp_path / "model.safetensors").unlink()
        one.network.save_pretrained(tmp_path, max_shard_size=shards)
        assert (tmp_path / "model.safetensors.index.json").exists()
    live, before = list(other.named_parameters()), torch.get_rng_state()
    other.load(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert list(other.state()) == list(one.state())
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(*map(values, (one, other)), strict=True))
    assert all(p is q for (_, p), (_, q) in zip(live, other.named_parameters(), strict=True))  # the optimizer's own
    assert torch.equal(logits(other.network), logits(one.network))


def values(actor):
    return list(actor.state().values())


def test_a_folder_of_another_shape_is_not_taken(tmp_path):
    load_causal_lm((network(), tokenizer()), "float64", device="cpu")[0].save(tmp_path)
    other, _ = load_causal_lm((network(num_hidden_layers=3), tokenizer()), "float64", device="cpu")
    before = [value.clone() for value in values(other)]
    with pytest.raises(RunError, match=r"has no tensor 'model.layers.2.*weight' of shape \(\d+"):
        other.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, values(other), strict=True))


def test_the_value_head_is_kept_in_a_file_of_its_own_and_comes_back(tmp_path):
    need = frozenset({Need("value")})
    actor, _ = load_causal_lm((network(), tokenizer()), dtype="float64", device="cpu")
    actor.prepare(need)
    torch.nn.init.normal_(actor.value_head.weight)
    actor.save(tmp_path)
    assert "value_head.weight" not in transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    again, _ = load_causal_lm(tmp_path, dtype="float64", device="cpu")
    again.prepare(need)
    b = batch_of([(2, 3)], torch.tensor([[4, 5]]), torch.tensor([2]))
    assert_close(again.evaluate(b, need)["value"], actor.evaluate(b, need)["value"], rtol=0, atol=0)


def test_dtypes(folder):
    half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(folder)
    for dtype, weights in (("float32", torch.float32), ("float64", torch.float64), ("bfloat16", torch.float32)):
        actor, _ = load_causal_lm(folder, dtype=dtype, device="cpu")
        assert actor.dtype == weights and actor.autocast == (dtype == "bfloat16")
    with pytest.raises(UserError, match="dtype 'float16' is not known; choose from float32"):
        load_causal_lm(folder, dtype="float16")


def test_a_model_object_brings_its_tokenizer():
    model = network()
    with pytest.raises(UserError, match="needs its tokenizer"):
        load_causal_lm(model, dtype="float64", device="cpu")
    model.tokenizer = tokenizer()
    actor, words = load_causal_lm(model, dtype="float64", device="cpu", temperature=0.5)
    assert actor.network is model and words is model.tokenizer and actor.temperature == 0.5
    with pytest.raises(UserError, match="Linear is not a transformers"):
        load_causal_lm((torch.nn.Linear(2, 2), tokenizer()), device="cpu")


def test_stop_ids_are_those_of_tokenizer_and_generation_config():
    model = network()
    model.generation_config.eos_token_id = [7, 1]
    assert load_causal_lm((model, tokenizer()), dtype="float64", device="cpu")[0].stop_ids == (1, 7)


def test_a_tokenizer_without_pad_pads_with_its_end_and_one_without_end_needs_a_stop_string():
    _, words = load_causal_lm((network(), tokenizer()), device="cpu")
    assert words.pad_token == words.eos_token
    endless = tokenizer(eos=None)
    with pytest.raises(UserError, match="no end-of-sequence token"):
        load_causal_lm((network(), endless), device="cpu")
    load_causal_lm((network(), tokenizer(eos=None)), device="cpu", stop=("\n",))


def test_what_is_not_a_model_is_named(tmp_path, folder):
    with pytest.raises(UserError, match=r"there is no model folder .*nowhere"):
        load_causal_lm(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_causal_lm(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"neither a model folder nor a \.gguf file"):
        load_causal_lm(tmp_path / "notes.txt")
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        load_causal_lm(bare)


def test_a_hub_that_cannot_be_reached_or_has_no_such_model_is_said_at_once(monkeypatch):
    def unreachable(self, name, timeout):
        raise OSError("Name or service not known\nmore")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    message = r"'no-such/model'.*hub could not be reached or has no such model \(Name or service not known\)"
    with pytest.raises(UserError, match=message):
        load_causal_lm("no-such/model")
    adapter = SimpleNamespace(siblings=[SimpleNamespace(rfilename="adapter_config.json")])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda self, name, timeout: adapter)
    with pytest.raises(UserError, match="is an adapter; download it"):
        load_causal_lm("no-such/model")


def test_damaged_folders_are_named(tmp_path, folder):
    torn = shutil.copytree(folder, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(UserError, match=r"cannot load the model .*torn"):
        load_causal_lm(torn)
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 tensors, model\.norm\.weight"):
        load_causal_lm(folder)


def test_code_that_comes_with_a_model_is_never_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("open('ran', 'w')\nraise SystemExit('ran')\n")
    with pytest.raises(UserError, match="cannot load"):
        load_causal_lm(folder)


def test_pickled_weights_are_never_loaded(folder, monkeypatch):
    torch.save(transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights .*pytorch_model\.bin is a pickle, and those are never loaded"):
        load_causal_lm(folder, device="cpu")
    files = [SimpleNamespace(rfilename="pytorch_model.bin")]
    api = SimpleNamespace(model_info=lambda name, timeout: SimpleNamespace(siblings=files))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    with pytest.raises(UserError, match="no weights as safetensors"):
        load_causal_lm("org/old", device="cpu")


def test_devices():
    assert pick_device("cpu").type == "cpu" and pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(UserError, match="device 'gpu' is not known"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device 'cuda' was asked for"):
            pick_device("cuda")


def write_gguf(path, model, without=()):
    """The llama model as a GGUF file with a byte-pair tokenizer of characters; some of its tensors left out."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["<unk>", "<eos>", *"abcdefghijklmnopqrst", "ab"])
    writer.add_token_types([3, 3] + [1] * (VOCABULARY - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name in without:
            continue
        array = value.detach().float().numpy()
        for projection, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if projection in name:  # GGUF interleaves the two halves that transformers rotates together
                half = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
                array = half.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_becomes_a_plain_model_that_can_be_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = network(dtype=torch.float32)
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "tiny.gguf"
    write_gguf(file, model)
    actor, words = load_causal_lm(file, device="cpu")
    assert_close(logits(actor.network), logits(model), rtol=0, atol=1e-5)
    assert words.decode([3, 2, 5]) == "bad" and actor.stop_ids == (1,)
    actor.save(tmp_path / "saved")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(plain), logits(actor.network))
    monkeypatch.setattr("melior.policies.gguf._convert", lambda *_: pytest.fail("converted twice"))
    again, _ = load_causal_lm(tmp_path / "folder", device="cpu")
    assert torch.equal(logits(again.network), logits(actor.network))
    assert len(list((tmp_path / "cache" / "melior" / "gguf").iterdir())) == 1


def test_unreadable_gguf_files_are_named_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no more")
    with pytest.raises(UserError, match=r"cannot read the GGUF file .*broken\.gguf"):
        load_causal_lm(tmp_path / "broken.gguf")
    assert not list((tmp_path / "cache" / "melior" / "gguf").iterdir())
    write_gguf(tmp_path / "part.gguf", network(dtype=torch.float32), without=("model.norm.weight",))
    with pytest.raises(UserError, match=r"part\.gguf lacks 1 tensors, model\.norm\.weight among them"):
        load_causal_lm(tmp_path / "part.gguf")
    assert not list((tmp_path / "cache" / "melior" / "gguf").iterdir())
    with pytest.raises(UserError, match=r"holds 2 \.gguf files; name one"):
        load_causal_lm(tmp_path)

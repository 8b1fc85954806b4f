"""A model of the llama family as a GGUF file."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from melior.errors import UserError
from melior.exporting.exported import Exported
from melior.exporting.gguf_tokenizer import GGUFTokenizer, gguf_tokenizer
from melior.exporting.loaded import Model, compared, logits_of, same_tokens
from melior.policies.silence import without_bars
from melior.storage.writing import TEMPORARY, saving, sync_file, sync_folder

ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}  # model type -> gguf's name
ROUNDED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}


def write_gguf(model: Model, file: Path, dtype: str) -> Exported:
    """Write the file, whole or not at all, after transformers has read it and its logits and tokens were compared.

    The model's matrices are rounded to `dtype` in place. UserError for a model that the file could not express.
    """
    gguf = _gguf()
    config = model.network.config
    check_config(config)
    tokenizer = gguf_tokenizer(
        model.tokenizer,
        model.network.get_input_embeddings().weight.shape[0],
        getattr(model.network.generation_config, "eos_token_id", None),
    )
    compared(logits_of(model.network), model.logits, "the merged model")
    _round(model.network, dtype)
    aside = file.with_name(TEMPORARY + file.name)
    with saving(str(file)):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(gguf, model, tokenizer, aside, dtype)
            expected = logits_of(model.network)
            difference, allowed, texts = _read_back(model, expected, aside, str(file))
            sync_file(aside)
            size = aside.stat().st_size
            os.replace(aside, file)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(file.parent)
    rounding = 0.0 if dtype == "f32" else float((expected - model.logits).abs().max())
    return Exported("gguf", file, model.source.folder, dtype, size, difference, allowed, rounding, texts)


def check_config(config: Any) -> None:
    """UserError for a model whose computation is not the one that llama.cpp has under its name."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise UserError(f"a GGUF file of the model type {kind!r} cannot be written; {', '.join(ARCHITECTURES)} can")
    rope = config.rope_parameters
    odd = []
    if rope.get("rope_type", "default") != "default":
        odd.append(f"rotary positions scaled by {rope['rope_type']!r}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        odd.append("partial rotary positions")
    if config.hidden_act not in ("silu", "swish"):
        odd.append(f"the activation {config.hidden_act!r}")
    odd += [name.replace("_", " ") for name in ("attention_bias", "mlp_bias") if getattr(config, name, False)]
    if _slides(config):
        odd.append(f"a sliding window of {config.sliding_window} tokens")
    if odd:
        raise UserError(f"a GGUF file cannot hold this model: it has {', '.join(odd)}")


def _slides(config: Any) -> bool:
    """Whether attention reaches less far back than the context."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    used = "sliding_attention" in layers if layers else bool(window)
    return used and window is not None and window < config.max_position_embeddings


@torch.no_grad()
def _round(network: Any, dtype: str) -> None:
    for name, value in network.named_parameters():
        if value.dim() > 1:
            rounded = value.to(ROUNDED[dtype]).float()
            if not torch.isfinite(rounded).all():
                raise UserError(f"the weights {name} exceed the range of {dtype}; use --dtype bf16 or f32")
            value.copy_(rounded)


def _write(gguf: Any, model: Model, tokenizer: GGUFTokenizer, file: Path, dtype: str) -> None:
    config = model.network.config
    kind = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config.model_type])
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_name(model.source.name)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[dtype]))
    _describe(writer, config, len(tokenizer.tokens))
    tokenizer.write(writer)
    number = getattr(gguf.GGMLQuantizationType, dtype.upper())
    for name, array in _tensors(gguf, kind, model.network):
        wanted = number if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(array, wanted), raw_dtype=wanted)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _describe(writer: Any, config: Any, vocabulary: int) -> None:
    head = _head_size(config)
    writer.add_vocab_size(vocabulary)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _tensors(gguf: Any, kind: Any, network: Any) -> Iterator[tuple[str, Any]]:
    """Names and arrays as the file has them."""
    config = network.config
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in network.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # where there is no output matrix, the embedding is taken
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if named is None:
            raise UserError(f"the weights {name} have no place in a GGUF file of the model type {config.model_type!r}")
        array = value.detach().float().contiguous().numpy()
        if kind == gguf.MODEL_ARCH.LLAMA and name.split(".")[-2] in heads:
            array = _interleaved(array, heads[name.split(".")[-2]])
        yield named, array


def _interleaved(array: Any, heads: int) -> Any:
    """Rows of each head reordered: llama.cpp rotates neighbors where transformers rotates the two halves."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape).copy()


def _read_back(model: Model, expected: torch.Tensor, file: Path, what: str) -> tuple[float, float, int]:
    import transformers

    loader: Any = transformers.AutoModelForCausalLM
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with without_bars(), contextlib.redirect_stderr(io.StringIO()):  # the reader draws a bar that cannot be turned off
        again = loader.from_pretrained(**where, dtype=torch.float32).eval()
    difference, allowed = compared(logits_of(again), expected, what)
    return difference, allowed, same_tokens(transformers.AutoTokenizer.from_pretrained(**where), model, what)


def _gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise UserError("writing GGUF needs the package gguf; install it with: pip install 'melior[lm]'") from None
    return gguf

"""Tiny random models and a word tokenizer, built in memory."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from melior.policies.causal_lm import CausalLM
from melior.trajectories import Trajectories

VOCABULARY = 23
EOS = 1
KINDS = ("llama", "gpt2", "qwen2")


def tokenizer(eos: str | None = "<eos>", pad: str | None = None) -> transformers.PreTrainedTokenizerFast:
    """<unk>, <eos> and 21 letters, one token each."""
    names = ["<unk>", "<eos>", *"abcdefghijklmnopqrstu"]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token=eos, pad_token=pad, clean_up_tokenization_spaces=False
    )


def network(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float64, **changes):
    """Two layers of width 32 with random weights, large enough to make the distributions uneven."""
    size = {"vocab_size": VOCABULARY, "eos_token_id": EOS, "bos_token_id": None, "pad_token_id": None, **changes}
    common = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = {
        "llama": lambda: transformers.LlamaConfig(**{**common, **size}),
        "qwen2": lambda: transformers.Qwen2Config(**{**common, **size}),
        "gpt2": lambda: transformers.GPT2Config(**{**gpt, **size}),
        "gemma2": lambda: transformers.Gemma2Config(
            **{**common, "head_dim": 8, "final_logit_softcapping": 3.0, **size}
        ),
        "granite": lambda: transformers.GraniteConfig(**{**common, "logits_scaling": 4.0, **size}),
        "cohere": lambda: transformers.CohereConfig(**{**common, "logit_scale": 0.25, **size}),
        "mamba": lambda: transformers.MambaConfig(
            **{"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **size}
        ),
        "lfm2": lambda: transformers.Lfm2Config(
            **{**common, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, **size}
        ),
        "jamba": lambda: transformers.JambaConfig(
            **{**common, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "use_mamba_kernels": False}
            | {"mamba_d_state": 4, "mamba_dt_rank": 2, "expert_layer_offset": 1, "expert_layer_period": 2, **size}
        ),
    }[kind]()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3)
    model.generation_config.eos_token_id = EOS
    return model


def policy(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float64, temperature: float = 1.0, **changes):
    """A CausalLM over such a network."""
    return CausalLM(network(kind, seed, dtype, **changes), tokenizer(), temperature=temperature)


def batch_of(prompts, tokens: torch.Tensor, length: torch.Tensor) -> Trajectories:
    """Rows with these prompts and completions, each its own group."""
    mask = torch.arange(tokens.shape[1]) < length[:, None]
    return Trajectories(
        mask, torch.arange(len(tokens)), prompt=tuple(prompts), tokens=tokens, columns={"length": length}
    )


def direct_logp(model, prompt, completion, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of one completion by one unpadded forward pass of the plain model."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]

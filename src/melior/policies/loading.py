"""A language model from a folder, a hub id, a GGUF file, an adapter folder, or objects in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from melior.data.tokenizer import prepare_tokenizer
from melior.errors import UserError
from melior.policies.causal_lm import CausalLM
from melior.policies.gguf import converted
from melior.policies.lora import Adapter, add_lora, adopt, load_lora
from melior.policies.silence import without_bars

DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_causal_lm(
    source: Any,
    dtype: str = "float32",
    device: str = "auto",
    lora: int = 0,
    lora_alpha: int = 0,
    gradient_checkpointing: bool = False,
    stop: Sequence[str] = (),
    temperature: float = 1.0,
) -> tuple[CausalLM, Any]:
    """The policy and its tokenizer.

    Args:
        source: a transformers folder, a hub id, a GGUF file or a folder with one, a peft adapter folder; or a model
            object with an attribute `tokenizer`, or the pair (model, tokenizer). An object is trained in place.
        dtype: "float32", "float64", or "bfloat16" for computation in bfloat16 over float32 weights.
        device: "auto" (cuda, then mps, then cpu) or a torch device.
        lora: rank of a fresh LoRA adapter; 0 trains all weights. An adapter folder brings its own.
        lora_alpha: its scale; 0 means twice the rank.
        gradient_checkpointing: recompute each layer in the backward pass instead of keeping it.
        stop: stop strings; with them a tokenizer may lack an end-of-sequence token.
        temperature: divides the logits.

    Raises UserError, in one sentence, for whatever is not a usable language model. Code that comes with a model is
    never run.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype '{dtype}' is not known; choose from {', '.join(DTYPES)}")
    place = pick_device(device)
    adapter: Adapter | None = None
    value_from: Path | None = None
    if isinstance(source, str | Path):
        network, tokenizer, adapter = _from_name(str(source), DTYPES[dtype])
        value_from = Path(source) if Path(source).is_dir() else None
    else:
        network, tokenizer, adapter = _from_objects(source)
    if adapter is not None and lora:
        raise UserError("the model already has a LoRA adapter; leave lora at 0 to go on training it")
    prepare_tokenizer(tokenizer, stop)
    network.to(device=place, dtype=DTYPES[dtype])
    if lora:
        adapter = add_lora(network, lora, lora_alpha)
    return (
        CausalLM(
            network,
            tokenizer,
            adapter=adapter,
            temperature=temperature,
            autocast=dtype == "bfloat16",
            gradient_checkpointing=gradient_checkpointing,
            value_from=value_from,
        ),
        tokenizer,
    )


def pick_device(name: str) -> torch.device:
    """The torch device of that name; "auto" takes cuda, then mps, then cpu."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device '{name}' is not known; choose from auto, cpu, cuda, mps") from None
    if (device.type == "cuda" and not cuda) or (device.type == "mps" and not mps):
        raise UserError(f"device '{name}' was asked for, but this machine or this torch has none; use --device auto")
    return device


def _from_objects(source: Any) -> tuple[Any, Any, Adapter | None]:
    model, tokenizer = source if isinstance(source, tuple) else (source, getattr(source, "tokenizer", None))
    if tokenizer is None:
        raise UserError(
            f"a model object ({type(model).__name__}) needs its tokenizer; give the pair (model, tokenizer)"
        )
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        return model.get_base_model(), tokenizer, adopt(model)
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise UserError(f"{type(model).__name__} is not a transformers causal language model")
    return model, tokenizer, None


def _from_name(name: str, dtype: torch.dtype) -> tuple[Any, Any, Adapter | None]:
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{path} is neither a model folder nor a .gguf file")
        return (*_from_pretrained(str(converted(path)), dtype), None)
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")) or not HUB_ID.fullmatch(name):
            raise UserError(f"there is no model folder {path}")
        _ask_hub(name)
        return (*_from_pretrained(name, dtype), None)
    if (path / "adapter_config.json").exists():
        return _from_adapter(path, dtype)
    if not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return (*_from_pretrained(str(converted(files[0])), dtype), None)
        reason = (
            f"holds {len(files)} .gguf files; name one" if files else "has no config.json, so it is no model folder"
        )
        inner = path / "model"
        raise UserError(f"{path} {reason}{f'; give {inner}, the model of this run' if inner.is_dir() else ''}")
    if not any(path.glob("*.safetensors")):
        raise UserError(f"the model folder {path} has no weights (model.safetensors){_pickled(path)}")
    return (*_from_pretrained(str(path), dtype), None)


def _ask_hub(name: str) -> None:
    """Whether the hub has the model, unless it lies in the local cache. Loading would retry for most of a minute."""
    _transformers()
    import huggingface_hub

    if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        info = huggingface_hub.HfApi().model_info(name, timeout=10)
    except Exception as error:  # the hub's own errors and those of whichever HTTP client it uses
        raise _unusable(name, error) from None
    files = [file.rfilename for file in info.siblings or ()]
    if "adapter_config.json" in files:
        raise UserError(f"'{name}' on the Hugging Face hub is an adapter; download it and give its folder")
    if not any(file.endswith(".safetensors") for file in files):
        raise UserError(f"'{name}' on the Hugging Face hub has no weights as safetensors, and pickles are never loaded")


def _pickled(path: Path) -> str:
    """A hint for a folder whose weights could only be unpickled."""
    found = next((file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in sorted(path.glob(pattern))), "")
    return f"; {found} is a pickle, and those are never loaded: save the model again with transformers" if found else ""


def _from_adapter(path: Path, dtype: torch.dtype) -> tuple[Any, Any, Adapter]:
    try:
        base = json.loads((path / "adapter_config.json").read_text()).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        raise UserError(f"{path / 'adapter_config.json'} is not valid JSON") from None
    if not base:
        raise UserError(f"the adapter {path} does not name its base model; set base_model_name_or_path in its config")
    if not (path / "adapter_model.safetensors").exists():
        raise UserError(f"the adapter {path} has no weights (adapter_model.safetensors){_pickled(path)}")
    network, tokenizer, below = _from_name(str(base), dtype)
    if below is not None:
        raise UserError(f"the base model of the adapter {path} is itself an adapter ({base}); merge that one first")
    try:
        adapter = load_lora(network, path)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"cannot load the adapter {path} on {base}: {first_line(error)}") from None
    if (path / "tokenizer_config.json").exists():
        tokenizer = _tokenizer(str(path))
    return network, tokenizer, adapter


def _from_pretrained(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    transformers = _transformers()
    tokenizer = _tokenizer(name)
    shown = nullcontext() if not Path(name).is_dir() else without_bars()  # what is downloaded may take minutes
    try:
        with shown:
            network, report = transformers.AutoModelForCausalLM.from_pretrained(
                name, dtype=dtype, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
    except Exception as error:  # transformers, huggingface_hub and safetensors raise dozens of types here
        raise _unusable(name, error) from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(f"the weights of {name} lack {len(missing)} tensors, {missing[0]} among them")
    return network, tokenizer


def _tokenizer(name: str) -> Any:
    try:
        return _transformers().AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise _unusable(name, error, "tokenizer of ") from None


def _unusable(name: str, error: Exception, what: str = "") -> UserError:
    """The one sentence that transformers' many errors come down to."""
    if Path(name).is_dir():
        return UserError(f"cannot load the {what or 'model '}{name}: {first_line(error)}")
    return UserError(
        f"cannot load the {what or 'model '}'{name}': it is no folder here, and the Hugging Face hub could not be "
        f"reached or has no such model ({first_line(error)})"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError("language models need transformers; install it with: pip install 'melior[lm]'") from None
    return transformers

"""GGUF files as plain transformers folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from melior.errors import UserError
from melior.policies.silence import without_bars


def converted(file: Path) -> Path:
    """A transformers folder with the file's weights (float32), tokenizer and generation config.

    The conversion takes some ten seconds, so it is kept in the user's cache folder ($XDG_CACHE_HOME or ~/.cache) under
    the file's path, size and time of change.
    """
    stat = file.stat()
    key = hashlib.sha256(f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()[:20]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "melior" / "gguf"
    target = cache / key
    if (target / "config.json").exists():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=cache))
    except OSError as error:
        raise UserError(f"cannot write the conversion of {file} to {cache}: {error.strerror}") from None
    try:
        _convert(file, work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _convert(file: Path, folder: Path) -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError(f"{file} needs the package gguf; install it with: pip install 'melior[lm]'") from None
    import torch
    import transformers

    loader: Any = transformers.AutoModelForCausalLM
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        loaded, report = loader.from_pretrained(**where, dtype=torch.float32, output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except Exception as error:  # a damaged file fails in as many ways as there are readers of its parts
        raise UserError(f"cannot read the GGUF file {file}: {_first_line(error)}") from None
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"the GGUF file {file} lacks {len(missing)} tensors, {missing[0]} among them")
    # A model that was read from GGUF refuses to be saved; one that was built from its configuration does not.
    config = type(loaded.config).from_dict(loaded.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = loader.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    if loaded.generation_config is not None:
        plain.generation_config = loaded.generation_config
    with without_bars():
        plain.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

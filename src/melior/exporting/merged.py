"""A LoRA adapter merged into its base model, as a plain transformers folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from melior.exporting.exported import Exported
from melior.exporting.loaded import Model, compared, logits_of, same_tokens
from melior.policies.silence import without_bars
from melior.storage.writing import TEMPORARY, saving, sync_file, sync_folder


def write_merged(model: Model, folder: Path) -> Exported:
    """Write the folder, whole or not at all, after it was loaded again and compared with the adapter's own logits."""
    aside = folder.with_name(TEMPORARY + folder.name)
    with saving(str(folder)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with without_bars():
                model.network.save_pretrained(str(aside))
            model.tokenizer.save_pretrained(str(aside))
            difference, allowed, texts = _read_back(model, aside, str(folder))
            for path in aside.iterdir():
                sync_file(path)
            size = sum(path.stat().st_size for path in aside.iterdir())
            _put_in_place(aside, folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return Exported("merged", folder, model.source.folder, "f32", size, difference, allowed, 0.0, texts)


def _read_back(model: Model, folder: Path, what: str) -> tuple[float, float, int]:
    import torch
    import transformers

    loader: Any = transformers.AutoModelForCausalLM
    with without_bars():
        again = loader.from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True).eval()
    difference, allowed = compared(logits_of(again), model.logits, what)
    return difference, allowed, same_tokens(transformers.AutoTokenizer.from_pretrained(str(folder)), model, what)


def _put_in_place(aside: Path, folder: Path) -> None:
    """The old folder, if any, is there until the new one is."""
    old = folder.with_name(f"{TEMPORARY}old-{folder.name}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.is_dir():
        os.rename(folder, old)
    elif folder.exists():
        folder.unlink()
    try:
        os.rename(aside, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)

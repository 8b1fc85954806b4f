"""A trained model in forms that other programs read: LoRA merged into a plain folder, and GGUF."""

from __future__ import annotations

from pathlib import Path

from melior.errors import UserError, near
from melior.exporting.exported import DTYPES, Exported
from melior.exporting.source import find_source

__all__ = ["Exported", "export"]


def export(
    source: str | Path,
    *,
    merge: bool = False,
    gguf: bool = False,
    checkpoint: int | str | None = None,
    out: str | Path | None = None,
    dtype: str = "f16",
    force: bool = False,
) -> list[Exported]:
    """Write a trained language model for other programs; what was written is loaded again and compared.

    Args:
        source: a run folder, or a model folder (plain, or a LoRA adapter).
        merge: write a plain transformers folder (float32) with the LoRA adapter merged into its base model.
        gguf: write a GGUF file, as llama.cpp reads it; an adapter is merged into it.
        checkpoint: of a run, a step or "best"; its newest when omitted.
        out: where to; by default `export-merged` and `model.gguf` in the run folder, or beside a model folder.
        dtype: of the matrices in the GGUF file: "f32", "f16" or "bf16". Vectors are float32.
        force: replace what is there.

    Returns:
        One record for each thing that was written, the merged folder first.

    Raises:
        UserError: there is nothing to merge, or something a GGUF file cannot hold; nothing was written.
        RunError: the disk refuses, or what was written does not compute what the model does; nothing of it is kept.
    """
    if not merge and not gguf:
        raise UserError("nothing to export: ask for --merge, --gguf or both")
    if merge and gguf and out is not None:
        raise UserError("--out names one place, and --merge and --gguf write two; leave it out, or one of them")
    if dtype not in DTYPES:
        raise UserError(f"a GGUF file of dtype {dtype!r} is not known{near(dtype, DTYPES)}")
    found = find_source(Path(source), checkpoint)
    if merge and not found.is_adapter:
        raise UserError(f"there is nothing to merge: {found.folder} has no LoRA adapter and is a plain model folder")
    folder = Path(out) if out is not None else found.beside("export-merged")
    file = Path(out) if out is not None else found.beside("model.gguf")
    for target in ([folder] if merge else []) + ([file] if gguf else []):
        _refuse_occupied(target, force)
    from melior.exporting.gguf_file import write_gguf
    from melior.exporting.loaded import load_source
    from melior.exporting.merged import write_merged

    model = load_source(found)
    written = [write_merged(model, folder)] if merge else []
    return [*written, write_gguf(model, file, dtype)] if gguf else written


def _refuse_occupied(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not force:
        raise UserError(f"{target} is there already; give --force to replace it, or another --out")
    holds = target.is_dir() and any(target.iterdir())
    if holds and not (target / "config.json").is_file():
        raise UserError(f"{target} is a folder that holds something else than a model; give another --out")

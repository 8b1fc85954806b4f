"""A trained table as the start of another run, or to be measured."""

from __future__ import annotations

from pathlib import Path

from melior.errors import UserError
from melior.policies.table import Table

FILE = "table.safetensors"


def is_table(model: str) -> bool:
    """Whether a model is the tabular policy: a fresh one, "table", or the folder of a trained one."""
    return model == "table" or (Path(model) / FILE).is_file()


def fill_table(table: Table, folder: Path) -> None:
    """Gives a fresh table the numbers of a trained one.

    Raises:
        UserError: the folder's table is damaged, or of another task, length or index.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        saved = load_file(folder / FILE)
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read the table {folder / FILE}: {error}") from None
    shape, needed = tuple(saved["logits"].shape) if "logits" in saved else (), tuple(table.logits.shape)
    if shape != needed:
        raise UserError(
            f"the table in {folder} has shape {shape}, and this task, max_tokens and table index need {needed} "
            "(prompts, positions, previous symbols, symbols); give those that it was trained with"
        )
    table.logits = saved["logits"].to(table.logits.dtype).requires_grad_()
    if "values" in saved:
        table.values = saved["values"].to(table.logits.dtype).requires_grad_()

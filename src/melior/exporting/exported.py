"""What an export left behind, and the kinds of numbers it can be in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Exported:
    """One thing that was written, with what its reloading showed.

    Attributes:
        kind: "merged" or "gguf".
        path: the folder or file.
        source: the model folder it was made from.
        dtype: of its matrices, as "f32".
        size: in bytes.
        difference: largest difference between a logit of what was reloaded and of the model whose weights were
            written (rounded to `dtype`), over fixed random tokens.
        allowed: the difference up to which the export counts as faithful.
        rounding: largest difference that rounding to `dtype` made to those logits; 0 for "f32".
        texts: how many texts the reloaded tokenizer encoded as the model's own does.
    """

    kind: str
    path: Path
    source: Path
    dtype: str
    size: int
    difference: float
    allowed: float
    rounding: float
    texts: int

    def sentence(self) -> str:
        """For people."""
        what = "LoRA merged" if self.kind == "merged" else "GGUF"
        rounding = f", rounding to {self.dtype} moved them by up to {self.rounding:.2g}" if self.rounding else ""
        return (
            f"{self.path}: {what}, {self.dtype}, {self.size / 1e6:,.1f} MB; loaded again, its logits differ from those "
            f"written by at most {self.difference:.2g} (allowed {self.allowed:.2g}){rounding}; {self.texts} texts are "
            "encoded alike"
        )

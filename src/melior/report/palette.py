"""The colors of curves: six that the color-blind tell apart, each on light and on dark paper at 3:1 or better."""

from __future__ import annotations

# (on light paper, on dark paper); a curve also has a dash of its own.
PALETTE = (
    ("#0064a4", "#63b8f0"),
    ("#b84e00", "#f0a04b"),
    ("#00765a", "#3fc9a0"),
    ("#a1487e", "#e29cc6"),
    ("#6a5d00", "#d3c252"),
    ("#5a4fcf", "#b3a9ff"),
)
DASHES = ("none", "6 4", "2 4", "9 3 2 3", "12 4", "4 2")

"""A comparison as text: the table, what was held equal, and what so few runs cannot say."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from melior.loops.summary import count_text, number_text, time_text

LONG = 16  # letters of a name up to which it stands in headings


def table_text(data: dict[str, Any], width: int = 0) -> str:
    """The text of what `comparison.json` holds, as read from it.

    Args:
        data: the comparison.
        width: characters a line; 0 takes the terminal's. Columns that do not fit stand in a second block.
    """
    width = width or shutil.get_terminal_size((120, 40)).columns
    rows, first = data["table"], data["table"][0]["label"]
    columns = _columns(rows, first, data)
    lines = _blocks([row["label"] for row in rows], columns, width)
    for row in rows:
        if row["chosen"]:
            lines.append(f"{row['label']}: tuned to {', '.join(row['chosen'])}")
        lines += [f"{row['label']}: {failure}" for failure in row["failures"]]
    for head, sentences in (
        ("held equal", data["held_equal"]), ("not equal", data["not_equal"]), ("note", data["notes"]),
        ("beware", data["cautions"]),
    ):  # fmt: skip
        for sentence in sentences:
            lines += textwrap.wrap(f"{head}: {sentence}", width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


# ---- inside


def _columns(rows: Sequence[dict[str, Any]], first: str, data: dict[str, Any]) -> list[list[str]]:
    """Heading and cells of every column."""
    sampled = data["sampled"]
    first = first if len(first) <= LONG else "first"
    named = {
        "runs": [f"{row['runs']}/{row['planned']}" for row in rows],
        "final [95 %]": [_interval(row["final"]) for row in rows],
        "middle half": [_number(row["iqm"]) for row in rows],
        "area [95 %]": [_interval(row["area"]) for row in rows],
        f"final - {first} [95 %]": [_interval(row["difference"], signed=True) for row in rows],
        "p (Holm)": [_number(row["p"]) for row in rows],
        f"P(> {first})": [_number(row["better"], 2) for row in rows],
        "time": [_told(row["seconds"], time_text) for row in rows],
        sampled: [_told(row["tokens"], count_text) for row in rows],
        "step norm": [_told(row["step_norm"], number_text) for row in rows],
    }
    if all(row["runs"] < 4 for row in rows):  # then it is the mean
        del named["middle half"]
    return [[head, *cells] for head, cells in named.items()]


def _blocks(labels: Sequence[str], columns: Sequence[list[str]], width: int) -> list[str]:
    """Columns side by side behind the labels, in as many blocks as the width asks for."""
    first = max(len(label) for label in labels) + 2
    sizes = [max(map(len, column)) + 2 for column in columns]
    blocks: list[list[int]] = [[]]
    for i, size in enumerate(sizes):
        if blocks[-1] and first + sum(sizes[j] for j in blocks[-1]) + size > width:
            blocks.append([])
        blocks[-1].append(i)
    lines = []
    for block in blocks:
        for place, label in enumerate(["", *labels]):
            cells = "".join(f"{columns[i][place]:>{sizes[i]}}" for i in block)
            lines.append(f"{label:<{first}}{cells}".rstrip())
        lines.append("")
    return lines


def _interval(values: Sequence[float | None] | None, signed: bool = False) -> str:
    if values is None:
        return ""
    value, low, high = values
    plus = "+" if signed else ""
    if value is None or math.isnan(value):
        return "-"
    if low is None or high is None or math.isnan(low):
        return f"{value:{plus}.3f}"
    return f"{value:{plus}.3f} [{low:{plus}.3f}, {high:{plus}.3f}]"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _told(value: float | None, text: Any) -> str:
    return "-" if value is None or math.isnan(value) else text(value)

"""The catalogue in short, as the README has it: `python -m melior.records.families` prints the table."""

from __future__ import annotations

from collections.abc import Iterable

from melior.method import Entry
from melior.records.describe import TRACKS, anchor


def families(entries: Iterable[Entry]) -> str:
    """A Markdown table of all methods: the family, and the names with links to the page `docs/methods.md`."""
    tracks: dict[str, list[Entry]] = {}
    for entry in entries:
        tracks.setdefault(entry.track, []).append(entry)
    ordered = [*(track for track in TRACKS if track in tracks), *sorted(tracks.keys() - TRACKS.keys())]
    rows = [(TRACKS.get(track, track), ", ".join(_linked(each.name) for each in tracks[track])) for track in ordered]
    return "\n".join(["| family | methods |", "|---|---|", *(f"| {title} | {names} |" for title, names in rows), ""])


def _linked(name: str) -> str:
    return f"[{name}](docs/methods.md#{anchor(name)})"


if __name__ == "__main__":
    from melior.records.catalogue import entries

    print(families(entries().values()), end="")

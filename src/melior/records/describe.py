"""Methods in words: what `melior show`, `melior methods` and `docs/methods.md` say.

`python -m melior.records.describe` prints the page `docs/methods.md`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from melior.method import Entry, Method
from melior.parts import Chain, Mix, Need, Objective, Part
from melior.records.brief import brief, is_nothing, told
from melior.records.serialize import fingerprint, stages

_WORDS = (
    ("Problem", "problem"),
    ("Move", "move"),
    ("Formula", "formula"),
    ("Use when", "use_when"),
    ("Beware", "beware"),
    ("Not to be confused", "also"),
)
# Titles of the families, in their order; a track without one stands under its own name, after these.
TRACKS = {
    "lm-base": "Language models: the roots",
    "lm-credit": "Language models: who gets the credit",
    "lm-objective": "Language models: the loss",
    "distillation": "Learning from a teacher",
    "dialect": "Readings of other libraries",
    "system": "Layouts of the computation",
    "control-base": "Control: the roots",
    "control-onpolicy": "Control: on-policy",
    "tabular-base": "Finite problems, exactly",
}


def describe(entry: Entry, width: int = 100) -> str:
    """One method explained to somebody who has not read the paper, as plain text."""
    record = entry.record
    lines = textwrap.wrap(f"{entry.name}: {entry.paper}", width, break_on_hyphens=False)
    lines += [f"{entry.frame}, track {entry.track}, fingerprint {fingerprint(record)}"]
    lines += textwrap.wrap(f"Evidence: {entry.evidence}", width, break_on_hyphens=False)
    for title, field in _WORDS:
        if getattr(entry, field):
            lines += ["", title, *_wrapped(getattr(entry, field), width)]
    lines += ["", "Parts, stage by stage" if isinstance(record, Method) else "Parts", *_stage_lines(record, width)]
    for title, text in _facts(entry):
        lines += ["", title, *_wrapped(text, width)]
    if isinstance(record, Method):
        other = "grpo" if entry.name != "grpo" else "reinforce"
        lines += ["", "Go on", f"  melior diff {other} {entry.name}", f"  melior train {entry.name}"]
    return "\n".join(lines)


def describe_record(record: Any, width: int = 100) -> str:
    """A record that stands in no catalogue: its parts, stage by stage."""
    name = getattr(record, "name", type(record).__name__)
    head = f"{name}: {type(record).__name__}, fingerprint {fingerprint(record)}"
    return "\n".join([head, "", "Parts", *_stage_lines(record, width)])


def table(entries: Iterable[Entry], width: int = 120) -> str:
    """One line for each method, by track: name, year, and what it does."""
    rows = sorted(entries, key=lambda each: (each.track, each.paper.year, each.name))
    if not rows:
        return "no method matches"
    first = max(len(each.name) for each in rows) + 2
    lines, track = [], None
    for each in rows:
        if each.track != track:
            lines += ([""] if track is not None else []) + [each.track]
            track = each.track
        text = textwrap.shorten(each.move or each.paper.title, max(width - first - 8, 30))
        lines.append(f"  {each.name:<{first}}{each.paper.year}  {text}")
    return "\n".join(lines)


def row(entry: Entry) -> dict[str, Any]:
    """A method as `melior methods --json` gives it."""
    return {
        "name": entry.name,
        "track": entry.track,
        "frame": entry.frame,
        "evidence": entry.evidence,
        "paper": entry.paper.title,
        "arxiv": entry.paper.arxiv,
        "year": entry.paper.year,
        "summary": entry.move,
        "fingerprint": fingerprint(entry.record),
    }


def matches(entry: Entry, words: str) -> bool:
    """Whether every word stands somewhere in what is known about the method, its parts included."""
    known = " ".join([entry.name, entry.track, entry.evidence, str(entry.paper), brief(entry.record)])
    known += " ".join(getattr(entry, field) for _, field in _WORDS)
    known += " ".join(type(part).__name__ for part in _walk(entry.record))
    return all(word in known.lower() for word in words.lower().split())


def page(entries: Iterable[Entry]) -> str:
    """The whole catalogue in Markdown."""
    rows = sorted(entries, key=lambda each: (each.track, each.paper.year, each.name))
    lines = [
        "# Methods",
        "",
        "Generated from the catalogue by `python -m melior.records.describe > docs/methods.md`.",
        "",
    ]
    lines += ["| method | year | what it does |", "|---|---|---|"]
    lines += [f"| [{each.name}](#{anchor(each.name)}) | {each.paper.year} | {_cell(each.move)} |" for each in rows]
    for track in dict.fromkeys(each.track for each in rows):
        lines += ["", f"## {TRACKS.get(track, track)}"]
        for each in rows:
            if each.track == track:
                lines += _section(each)
    return "\n".join(lines) + "\n"


def _section(entry: Entry) -> list[str]:
    link = f"https://arxiv.org/abs/{entry.paper.arxiv}" if entry.paper.arxiv else entry.paper.url
    link = f"https://doi.org/{link[4:]}" if link.startswith("doi:") else link
    title = f"[{entry.paper.title}]({link})" if link else entry.paper.title
    lines = ["", f"### {entry.name}", "", f"{title}. {entry.paper.authors}, {entry.paper.year}."]
    lines += ["", f"{entry.frame}, track `{entry.track}`. Evidence: {entry.evidence}."]
    for name, field in _WORDS:
        text = getattr(entry, field)
        if text:
            lines += ["", f"**{name}.** {f'`{text}`' if field == 'formula' else text}"]
    lines += ["", "```", *(line.removeprefix("  ") for line in _stage_lines(entry.record, 110, say=False)), "```"]
    for name, text in _facts(entry):
        lines += ["", f"**{name}.** {text}"]
    return lines


def stage_rows(record: Any) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Every stage that does something: its name, its parts with all their values, and what each is in a sentence."""
    shown = [(name, getattr(record, name)) for name in stages(record) if name not in ("name", "pins")]
    return [
        (name, told(value), [(type(part).__name__, _first_sentence(part)) for part in _leaves(value)])
        for name, value in shown
        if not is_nothing(value)
    ]


def _stage_lines(record: Any, width: int, say: bool = True) -> list[str]:
    """Every stage with its parts and their values, and (`say`) what each part is in a line of its own."""
    rows = stage_rows(record)
    first = max((len(name) for name, _, _ in rows), default=0) + 2
    lines = []
    for name, values, parts in rows:
        indent = " " * (first + 2)
        text = textwrap.wrap(values, max(width - first - 2, 40), break_long_words=False, break_on_hyphens=False)
        lines.append(f"  {name:<{first}}{text[0]}")
        lines += [indent + more for more in text[1:]]
        for part, sentence in parts if say else ():
            told_so = f"{part}: {sentence}"
            lines += textwrap.wrap(told_so, width, initial_indent=indent, subsequent_indent=indent)
    return lines


def _leaves(value: Any) -> list[Any]:
    """The parts of a stage that are worth a word each: those of a chain, a sum or a mapping, else the part itself."""
    if isinstance(value, Chain):
        return list(value.parts)
    if isinstance(value, Objective):
        return [w.term for w in value.terms]
    if isinstance(value, Mix):
        return [part for _, part in value.parts]
    if isinstance(value, Mapping):
        return [part for part in value.values() if is_dataclass(part) and not isinstance(part, Method)]
    if isinstance(value, tuple):
        return [part for part in value if is_dataclass(part)]
    return [value] if is_dataclass(value) else []


def _first_sentence(part: Any) -> str:
    """The first paragraph of the docstring, or of its base class where it has none of its own."""
    text = inspect.cleandoc(type(part).__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())


def _facts(entry: Entry) -> list[tuple[str, str]]:
    """What follows from the record and the paper's settings."""
    record, found = entry.record, []
    if entry.settings:
        found.append(("The paper's settings (--paper-settings)", _pairs(entry.settings)))
    if isinstance(record, Method):
        if record.pins:
            found.append(("Pinned by the method", _pairs(record.pins)))
        if record.others:
            found.append(("Learners", ", ".join(["policy", *record.others])))
    needs = record.needs() if isinstance(record, Part) else frozenset()
    if needs:
        found.append(("What it reads besides the reward", "; ".join(sorted(map(_read, needs)))))
    return found


def _read(need: Need) -> str:
    names = {"logp": "log-probabilities", "value": "values", "hidden": "hidden states", "entropy": "entropies"}
    what = names.get(need.quantity, need.quantity)
    whose = "" if need.scorer == "policy" else f" of the {need.scorer} policy"
    return f"{what}{whose} ({'once a batch' if need.on == 'batch' else 'in every pass, with gradient'})"


def _walk(record: Any) -> Iterable[Any]:
    return record.walk() if isinstance(record, Part) else ()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {brief(value)}" for name, value in values.items())


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def anchor(name: str) -> str:
    """The anchor that Markdown makes of a method's heading."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter in "-_")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from melior.records.catalogue import entries

    print(page(entries().values()), end="")

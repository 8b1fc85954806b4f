"""What `show`, `methods` and `diff` say, and that docs/methods.md says the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from melior.advantages import GroupRelative, LeaveOneOut, Whiten
from melior.objectives import Clip, ReferenceKL
from melior.parts import Part
from melior.records.brief import brief, told
from melior.records.catalogue import entries, entry, get
from melior.records.describe import describe, describe_record, matches, page, row, table
from melior.records.differences import Difference, Side, diff, differences
from melior.records.families import families
from melior.records.serialize import fingerprint
from melior.settings import LanguageSettings

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class OtherFrame(Part):
    """A record that is no Method."""

    name: str
    objective: Part
    steps: int = 1


@dataclass(frozen=True)
class Several(Part):
    """A record with a tuple of parts."""

    name: str
    parts: tuple[Part, ...]


def rows(text: str) -> dict[str, list[str]]:
    """First column -> the others, of the lines that name one."""
    found = [line.split("  ") for line in text.splitlines() if line[:1].strip()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in found]
    return {line[0]: line[1:] for line in cells}


@pytest.mark.parametrize("name", sorted(entries()))
def test_show_explains_a_method(name: str) -> None:
    each = entry(name)
    text = describe(each)
    plain = " ".join(text.split())
    for said in (each.problem, each.move, each.formula, each.use_when, each.beware, each.also, each.evidence):
        assert " ".join(said.split()) in plain
    assert each.paper.title in plain
    assert str(each.paper.year) in plain
    assert fingerprint(each.record) in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_show_tells_values_pins_settings_and_reads() -> None:
    text = describe(entry("two-grpo"))
    assert "GroupRelative(scale='std', eps=1e-06, ddof=0, floor=0, single='zero')" in text
    assert "A = (r - mean) / (std + eps)" in text
    assert "Pinned by the method\n  n = 2" in text
    assert "The paper's settings (--paper-settings)\n  lr = 1e-06, prompts = 256" in text
    assert "log-probabilities of the reference policy (once a batch)" in describe(entry("grpo"))


def test_a_record_outside_the_catalogue_is_described_too() -> None:
    text = describe_record(get("grpo").but("mine", advantage=LeaveOneOut()))
    assert text.startswith("mine: Method, fingerprint")
    assert "LeaveOneOut()" in text


def test_the_table_lists_every_method_under_its_track() -> None:
    text = table(entries().values(), width=90)
    assert max(len(line) for line in text.splitlines()) <= 90
    assert all(f"\n  {name} " in text for name in entries())
    assert {line for line in text.splitlines() if line[:1].strip()} == {each.track for each in entries().values()}
    assert table([]) == "no method matches"


def test_a_row_is_plain_json() -> None:
    made = json.loads(json.dumps(row(entry("tempo"))))
    assert list(made) == ["name", "track", "frame", "evidence", "paper", "arxiv", "year", "summary", "fingerprint"]
    assert made["name"] == "tempo"
    assert made["frame"] == "Method"
    assert made["year"] == 2025
    assert made["fingerprint"] == fingerprint(get("tempo"))


def test_a_search_finds_words_anywhere() -> None:
    assert matches(entry("tempo"), "prefix TREE")
    assert matches(entry("tempo"), "PrefixTree")
    assert not matches(entry("tempo"), "prefix critic")


def test_brief_shows_what_is_not_the_default() -> None:
    assert brief(Clip() + 0.04 * ReferenceKL("k2")) == "Clip() + 0.04 * ReferenceKL(estimator='k2')"
    assert brief(GroupRelative(None) | Whiten(3.0)) == "GroupRelative(scale=None) | Whiten(clamp=3)"
    assert brief(0.7 * GroupRelative() + LeaveOneOut()) == "0.7 * GroupRelative() + LeaveOneOut()"
    assert brief(0.1 + 0.2) == "0.30000000000000004"
    assert told(Clip(0.1)) == "Clip(low=0.1, high=0.2, ratio=TokenRatio())"


class TestDiff:
    def test_the_example_of_the_documentation(self) -> None:
        text = diff(Side("grpo", get("grpo")), Side("dapo", get("dapo")), width=120)
        stages, exact = text.split("\n\n")
        assert stages.split("\n")[0].split() == ["grpo", "dapo"]
        found = rows(stages)
        assert found["advantage"] == ["GroupRelative()", "="]
        assert found["objective"] == ["Clip(high=0.2) + 0.04 * ReferenceKL()", "Clip(high=0.28)"]
        assert found["aggregate"] == ["SequenceMean()", "TokenMean()"]
        assert found["reward"] == ["Sum()", "Sum() | OverlongPenalty()"]
        assert rows(exact)["objective.clip.high"] == ["0.2", "0.28"]
        assert rows(exact)["curriculum"] == ["Curriculum(refill=0)", "MixedGroups(refill=10)"]

    def test_equal_records(self) -> None:
        text = diff(Side("a", get("grpo")), Side("b", get("grpo").but("mine")))
        assert text.endswith("no difference")
        assert all(cells[-1] == "=" for name, cells in rows(text.rpartition("\n\n")[0]).items() if name != "a")

    @pytest.mark.parametrize("other", sorted(entries()))
    def test_no_difference_is_said_exactly_of_equal_records(self, other: str) -> None:
        found = differences(get("grpo"), get(other))
        assert bool(found) == (fingerprint(get("grpo")) != fingerprint(get(other)))
        mirrored = differences(get(other), get("grpo"))
        assert {(each.path, each.left, each.right) for each in found} == {
            (each.path, each.right, each.left) for each in mirrored
        }

    def test_paths_are_those_of_set(self) -> None:
        a = get("grpo").but("a", advantage=GroupRelative() | Whiten(), scorers={}, pins={"n": 2})
        b = a.but("b", advantage=GroupRelative() | Whiten(clamp=3.0), objective=2.0 * Clip(dual=3.0), pins={"n": 4})
        assert differences(a, b) == [
            Difference("advantage.whiten.clamp", "None", "3"),
            Difference("objective.clip.weight", "1", "2"),
            Difference("objective.clip.dual", "None", "3"),
            Difference("objective.reference_kl", "0.04 * ReferenceKL(estimator='k3', scorer='reference')", "-"),
            Difference("pins.n", "2", "4"),
        ]

    def test_another_order_is_a_difference(self) -> None:
        a = get("grpo").but("a", advantage=GroupRelative() | Whiten())
        b = get("grpo").but("b", advantage=Whiten() | GroupRelative())
        assert [each.path for each in differences(a, b)] == ["advantage"]

    def test_across_frames_by_fields(self) -> None:
        other = OtherFrame("other", get("grpo").objective, 3)
        found = {each.path: (each.left, each.right) for each in differences(get("grpo"), other)}
        assert "objective" not in found
        assert found["steps"] == ("-", "3")
        assert found["aggregate"] == ("SequenceMean()", "-")
        assert "steps" in diff(Side("grpo", get("grpo")), Side("other", other))

    def test_what_does_nothing_on_either_side_is_no_difference(self) -> None:
        assert "memory" not in diff(Side("grpo", get("grpo")), Side("other", OtherFrame("other", Clip())))

    def test_inside_a_tuple_of_parts(self) -> None:
        a = Several("a", (Whiten(), GroupRelative(), Whiten()))
        b = Several("b", (Whiten(), GroupRelative(), Whiten(clamp=2.0)))
        assert differences(a, b) == [Difference("parts.whiten.1.clamp", "None", "2")]

    def test_runs_are_compared_by_their_settings_too(self) -> None:
        settings = LanguageSettings()
        left, right = Side("a", get("grpo"), settings), Side("b", get("grpo"), replace(settings, lr=1e-4))
        assert rows(diff(left, right).rpartition("\n\n")[2]) == {"settings.lr": ["1e-05", "0.0001"]}

    def test_long_cells_wrap_into_the_width(self) -> None:
        text = diff(Side("grpo", get("grpo")), Side("ppo-lm", get("ppo-lm")), width=90)
        assert max(len(line) for line in text.splitlines()) <= 90


def test_the_page_of_methods_is_current() -> None:
    assert PAGE.read_text() == page(entries().values()), "run: python -m melior.records.describe > docs/methods.md"


def test_the_readme_lists_every_method_under_its_family():
    table = families(entries().values())
    assert table in README.read_text(), "run: python -m melior.records.families, and put the table into README.md"
    assert table.count("docs/methods.md#") == len(entries())


def test_a_family_without_a_title_stands_under_its_own_name_at_the_end():
    plain = next(iter(entries().values()))
    strange = replace(plain, track="new-track")
    assert (
        families([strange, plain]).splitlines()[-1] == f"| new-track | [{plain.name}](docs/methods.md#{plain.name}) |"
    )

"""The catalogue, and what a user may write for a method."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import melior
from melior.errors import UserError
from melior.method import Entry, Method
from melior.objectives import Clip
from melior.records import catalogue
from melior.records.catalogue import entries, entry, find, get, resolve
from melior.records.config import config_text
from melior.records.notes import Note
from melior.settings import LanguageSettings


class Point:
    """An entry point of another package."""

    def __init__(self, name: str, load: Any) -> None:
        self.name, self.value, self._load = name, f"other.{name}", load

    def load(self) -> Any:
        return self._load() if callable(self._load) else self._load


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Point]]:
    """An empty list of entry points to fill; the catalogue is read again before and after."""
    points: list[Point] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    entries.cache_clear()
    yield points
    monkeypatch.undo()
    entries.cache_clear()


def test_every_entry_is_filed_under_its_name() -> None:
    assert all(each.name == name for name, each in entries().items())
    wanted = "reinforce rloo remax grpo dr-grpo dapo gspo cispo ppo-lm rgra two-grpo gdpo tempo tpo trl:grpo verl:grpo"
    assert set(wanted.split()) <= set(entries())


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_entry_says_what_it_owes(name: str) -> None:
    each = entry(name)
    assert each.paper.title and each.paper.year and each.track and each.evidence
    assert each.problem and each.move and each.formula and each.use_when and each.beware
    assert each.frame != "Part"


def test_a_name_gives_the_record_and_its_entry() -> None:
    assert isinstance(get("grpo"), Method)
    assert entry("grpo").record is get("grpo")
    assert get("paper:grpo") is get("grpo")
    with pytest.raises(UserError, match="no method 'gropo'; did you mean 'grpo'"):
        get("gropo")


class TestResolve:
    def test_what_is_a_record_already(self) -> None:
        mine = get("grpo").but("mine")
        assert resolve(mine) is mine
        assert resolve(entry("grpo")) is get("grpo")
        assert find("grpo") is entry("grpo")

    def test_a_record_from_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text("import melior\nMINE = melior.get('grpo').but('mine')\nROW = melior.entry('dapo')\nCOUNT = 3\n")
        assert resolve(f"{file}:MINE") == get("grpo").but("mine")
        assert resolve(f"{file}:ROW") is get("dapo")
        with pytest.raises(UserError, match="has no 'MIEN'; did you mean 'MINE'"):
            resolve(f"{file}:MIEN")
        with pytest.raises(UserError, match="is no record but a int"):
            resolve(f"{file}:COUNT")
        with pytest.raises(UserError, match=r"which record of .*mine.py\? Write .*mine.py:NAME"):
            resolve(str(file))

    def test_a_record_from_a_module(self) -> None:
        assert resolve("melior.methods.group_relative:GRPO") is get("grpo")

    def test_a_run_folder(self, tmp_path: Path) -> None:
        record = get("grpo").but("mine", objective=Clip(0.1))
        (tmp_path / "config.yaml").write_text(config_text(record, LanguageSettings()))
        assert resolve(str(tmp_path)) == record
        assert resolve(tmp_path / "config.yaml") == record

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ("gropo", "did you mean 'grpo'"),
            ("nowhere.py:MINE", "there is no file nowhere.py"),
            ("nowhere:MINE", "there is no module 'nowhere'"),
            ("json:loads", "json:loads is no record but a function"),
            ("runs/nothing", "there is no run folder runs/nothing"),
            ("nowhere.yaml", "there is no file nowhere.yaml"),
            (Clip, "is no record but a Clip"),
            (3, "3 is no record but a int"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, spec: Any, said: str) -> None:
        with pytest.raises(UserError) as error:
            resolve(spec)
        assert said in str(error.value)

    def test_a_folder_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"holds no config\.yaml"):
            resolve(str(tmp_path))


class TestEntryPoints:
    def test_other_packages_add_methods(self, fresh: list[Point]) -> None:
        module, grpo = ModuleType("other"), entry("grpo")
        module.__dict__["MINE"] = replace(grpo, alias="other:grpo")
        fresh += [Point("module", module), Point("one", replace(grpo, alias="one"))]
        entries.cache_clear()
        assert {"other:grpo", "one"} <= set(entries())

    def test_a_broken_one_is_named_and_passed_over(self, fresh: list[Point]) -> None:
        def load() -> Any:
            raise ImportError("no module named gone")

        fresh += [Point("broken", load), Point("wrong", 3)]
        with pytest.warns(Note) as seen:
            assert "grpo" in entries()
        texts = [str(each.message) for each in seen]
        assert "'broken' (other.broken) are missing: ImportError: no module named gone" in texts[0]
        assert "expected an Entry or a module that holds some, got int" in texts[1]

    def test_a_name_that_is_taken_stays_with_the_first(self, fresh: list[Point]) -> None:
        taken = replace(entry("grpo"), track="theirs")
        fresh.append(Point("taken", taken))
        entries.cache_clear()
        with pytest.warns(Note, match="two methods are called 'grpo': in melior.methods"):
            assert entries()["grpo"].track != "theirs"


def test_two_methods_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("melior.methods.twice")
    module.__dict__.update(A=entry("grpo"), B=replace(entry("dapo"), alias="grpo"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalogue, "_own_names", lambda: iter([module.__name__]))
    entries.cache_clear()
    try:
        with pytest.raises(UserError, match=r"two methods are called 'grpo': in melior\.methods\.twice"):
            entries()
    finally:
        monkeypatch.undo()
        entries.cache_clear()


def test_the_package_gives_its_names_and_imports_nothing_before() -> None:
    assert melior.get("grpo").but("mine") == get("grpo").but("mine")
    assert melior.Entry is Entry
    assert melior.Method is Method
    assert melior.entries()["grpo"] is entry("grpo")
    assert set(melior.__all__) <= set(dir(melior))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = melior.trian
    code = "import melior, sys; print(melior.__version__, 'torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == ["False", "False"]


def test_one_method_is_found_without_importing_the_others():
    code = (
        "import sys\nfrom melior import lazy_torch\nlazy_torch.install()\n"
        "from melior.records.catalogue import lookup\nassert lookup('ppo').record.name == 'ppo'\n"
        "print([module for module in sys.modules if module.startswith('melior.methods.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['melior.methods.control']"


def test_every_method_is_found_by_its_name():
    assert all(catalogue.lookup(name) is each for name, each in catalogue.entries().items())
    assert catalogue.lookup("nothing-such") is None

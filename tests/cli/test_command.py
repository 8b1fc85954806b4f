"""The command: what it prints, its exit codes, and that it answers without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from melior.cli import run
from melior.cli.app import COMMANDS, build
from melior.records.catalogue import entries, get
from melior.records.config import config_text
from melior.records.serialize import from_yaml
from melior.settings import LanguageSettings

QUICK = (["--help"], ["methods"], ["show", "tempo"], ["diff", "grpo", "dapo"], ["methods", "--json"])
WITHOUT = """
import sys
from melior.cli import run
from melior.cli.app import COMMANDS, build
code = run(sys.argv[1:])
print(code, "torch._C" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What was printed since the last call: standard output, and the lines of standard error."""
    seen = capsys.readouterr()
    return seen.out, seen.err


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_answers_without_importing_torch(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert done.stderr.split() == ["0", "False", "False"]


@pytest.mark.parametrize("arguments", [["--help"], ["show", "tempo"]], ids=" ".join)
def test_answers_at_once(arguments: list[str]) -> None:
    """In 0.2 to 0.3 s of a processor's time; the bound leaves room for a machine that does other things too."""
    spent = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-m", "melior", *arguments], capture_output=True, check=True)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(spent) < 0.6


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    empty, _ = lines(capsys)
    assert run(["--help"]) == 0
    assert lines(capsys)[0] == empty
    for command in ("methods", "show", "diff"):
        assert f"\n  {command} " in empty
    assert run(["--version"]) == 0
    assert lines(capsys)[0].startswith("melior ")


class TestMethods:
    def test_json_rows(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["methods", "--json"]) == 0
        rows = json.loads(lines(capsys)[0])
        assert {row["name"] for row in rows} == set(entries())

    def test_by_track_and_words(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["methods", "--track", "lm-credit", "--search", "tree", "--json"]) == 0
        assert "tempo" in [row["name"] for row in json.loads(lines(capsys)[0])]
        assert run(["methods", "--search", "zebra"]) == 0
        assert lines(capsys)[0] == "no method matches\n"

    def test_markdown_is_the_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["methods", "--markdown"]) == 0
        assert lines(capsys)[0].startswith("# Methods\n")


class TestShow:
    def test_a_method(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["show", "tempo"]) == 0
        assert "prefix tree" in lines(capsys)[0]

    def test_yaml_reads_back_and_trains(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert run(["show", "dapo", "--yaml"]) == 0
        text = lines(capsys)[0]
        assert from_yaml(text) == get("dapo")
        (tmp_path / "mine.yaml").write_text(text.replace("high: 0.28", "high: 0.3"))
        assert run(["diff", "dapo", str(tmp_path / "mine.yaml")]) == 0
        assert "objective.clip.high" in lines(capsys)[0]

    def test_paths(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["show", "grpo", "--paths"]) == 0
        assert "objective.reference_kl.weight = 0.04\n" in lines(capsys)[0]

    def test_a_record_from_a_file(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text("import melior\nMINE = melior.get('grpo').but('mine')\n")
        assert run(["show", f"{file}:MINE"]) == 0
        assert lines(capsys)[0].startswith("mine: Method")


class TestDiff:
    def test_two_methods(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["diff", "grpo", "trl:grpo"]) == 0
        assert "aggregate" in lines(capsys)[0]

    def test_two_runs(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        for name, steps in (("a", 3), ("b", 4)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.yaml").write_text(config_text(get("grpo"), LanguageSettings(steps=steps)))
        assert run(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
        assert "settings.steps" in lines(capsys)[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mehtods"], "no such command 'mehtods'; did you mean 'methods'"),
        (["methods", "--tarck", "x"], "no such option '--tarck'; did you mean '--track'"),
        (["methods", "--track", "lm-credt"], "there is no track 'lm-credt'; did you mean 'lm-credit'"),
        (["methods", "--track"], "option '--track' requires an argument"),
        (["show"], "missing argument 'method'; see `melior show --help`"),
        (["show", "tempoo"], "there is no method 'tempoo'; did you mean 'tempo'"),
        (["show", "nowhere.py:MINE"], "there is no file nowhere.py"),
        (["diff", "grpo"], "missing argument 'B'; see `melior diff --help`"),
        (["diff", "grpo", "dapo", "gspo"], "unexpected extra argument"),
        (["diff", "grpo", "runs/none"], "there is no run folder runs/none"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(arguments) == 2
    out, err = lines(capsys)
    assert out == ""
    assert err.startswith("melior: ") and err.count("\n") == 1
    assert said.lower() in err.lower()


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("melior.records.describe.table", interrupted)
    assert run(["methods"]) == 130
    assert lines(capsys)[1] == "melior: interrupted\n"


def test_a_failure_during_a_run_is_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from melior.errors import RunError

    def failing(*_: object) -> None:
        raise RunError("the reward raised")

    monkeypatch.setattr("melior.records.describe.table", failing)
    assert run(["methods"]) == 3
    assert lines(capsys)[1] == "melior: the reward raised\n"


def test_a_fault_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melior.records.describe.table", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["methods"])


def test_a_note_is_printed_without_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from melior.records.notes import note

    monkeypatch.setattr("melior.records.describe.table", lambda *_: note("mind this") or "fine")
    assert run(["methods"]) == 0
    assert lines(capsys) == ("fine\n", "melior: mind this\n")


def test_a_closed_pipe_is_no_error() -> None:
    code = "import sys; from melior.cli import run; sys.exit(run(['methods', '--markdown']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    time.sleep(0.1)
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_each_command_is_where_the_list_says() -> None:
    """`melior NAME` imports the modules that have NAME, and no other."""
    for names in COMMANDS.values():
        for name in names:
            assert [each.name or each.callback.__name__ for each in build(name).registered_commands] == list(names)
    every = [each.name or each.callback.__name__ for each in build().registered_commands]
    assert every == [name for names in COMMANDS.values() for name in names]

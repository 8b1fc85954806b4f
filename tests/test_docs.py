"""What the pages say runs, and what they name is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

import melior
from melior.cli import run as command
from melior.cli.app import build
from runs import LOCK_OPTIONS, rows

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "pass@1" in printed
    (run,) = (tmp_path / "runs").iterdir()
    assert len(rows(run)) == 2 and (run / "model" / "model.safetensors").exists()


def test_the_difference_that_the_readme_shows_is_the_one_that_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    (shown,) = [block for block in blocks(ROOT / "README.md", "") if block.startswith("$ melior diff")]
    call, _, table = shown.partition("\n")
    assert command(call.split()[2:]) == 0
    assert capsys.readouterr().out.startswith(table)


def test_the_method_of_the_guide_runs_shows_and_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = blocks(ROOT / "docs" / "adding-a-method.md", "python")[0]
    (tmp_path / "mine.py").write_text(example)
    options = ["train", "./mine.py:MINE", *LOCK_OPTIONS, "--steps", "3", "--log-to", "", "--quiet"]
    assert command([*options, "--out", "a"]) == 0
    assert command([*options, "--out", "b", "--set", "advantage.eps=0.5"]) == 0
    assert rows(tmp_path / "a") != rows(tmp_path / "b")
    assert command(["show", "./mine.py:MINE"]) == 0
    assert "RareSuccess" in capsys.readouterr().out
    assert command(["diff", "grpo", "./mine.py:MINE"]) == 0
    assert "RareSuccess" in capsys.readouterr().out
    # The run folder is enough to go on and to begin again, since its configuration says where the part is.
    assert command(["train", "--resume", "a", "--steps", "4", "--quiet"]) == 0
    assert command(["train", "--config", "b/config.yaml", "--out", "c", "--quiet"]) == 0
    assert rows(tmp_path / "b") == rows(tmp_path / "c")


def shell_lines() -> list[tuple[str, str]]:
    """(page, command) of every call of melior that a page shows."""
    found = []
    for page in PAGES:
        for block in [*blocks(page, "sh"), *blocks(page, "")]:
            for line in block.replace("\\\n", " ").splitlines():
                for call in line.split("&&"):
                    words = call.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                    if words.startswith("melior "):
                        found.append((page.name, words))
    return found


@pytest.mark.parametrize(("page", "line"), shell_lines())
def test_a_command_that_a_page_shows_is_understood(page, line):
    """The command, its options and the methods it names exist; a short form of the options is no guess."""
    _, name, *words = shlex.split(line, comments=True)
    if name in ("--help", "--version"):
        return
    commands = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    assert name in commands, f"{page}: {line}"
    options = {option for each in commands[name].params for option in (*each.opts, *each.secondary_opts)}
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"{page}: {line}"
    for word in [word for word in words[:1] if name in ("train", "show", "check") and word[0] not in "-."]:
        assert melior.get(word)


def test_links_of_the_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_module_that_the_architecture_names_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"\b([a-z_]+(?:/[a-z_]+)*\.py)\b", page))
    assert len(named) > 20
    for name in named - {"mine.py"}:
        assert list((ROOT / "src" / "melior").rglob(name)), name

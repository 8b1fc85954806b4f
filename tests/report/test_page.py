"""The page of a run: whole, self-contained, readable without scripts, and safe whatever a model wrote."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import melior
from melior.errors import UserError
from melior.report import after_run, rendering
from melior.report import page as pages
from melior.report.after_run import report_of_run
from melior.report.page import write_report
from melior.storage.rollouts import RolloutWriter
from melior.trajectories import Trajectories
from runs import lock_run

VOID = ("meta", "br", "input", "link", "img", "path", "rect", "line", "circle")


class Page(HTMLParser):
    """The elements of a page, its text without scripts and styles, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._open = "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self.text += " " if tag in ("td", "th", "dt", "dd", "p", "code") else ""

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def read(run: Path) -> Page:
    return Page((run / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return lock_run(tmp_path_factory.mktemp("run") / "a", "grpo", eval_every=2).path


def test_a_run_ends_with_a_page_that_loads_nothing(finished):
    page = read(finished)
    assert (finished / "report.html").stat().st_size < 1_000_000
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not {"src", "srcset", "background", "action"} & attributes.keys()
        assert all(not name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert tag == "a" and attributes["href"].startswith(("#", "https://arxiv.org/abs/"))
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'")
    assert (
        "url(" not in (finished / "report.html").read_text() and "@import" not in (finished / "report.html").read_text()
    )


def test_it_says_what_was_run_what_came_of_it_and_how_to_run_it_again(finished):
    text = " ".join(read(finished).text.split())
    summary = json.loads((finished / "summary.json").read_text())
    assert "grpo on lock:P=4,L=2,V=3" in text and "model table" in text and "steps 4" in text
    for side in ("before", "after"):
        value, low, high = summary[side]["pass@1"]
        assert f"{value:.3f} [{low:.3f}, {high:.3f}]" in text
    for said in ("Held-out score", "Reward", "Entropy", "Gradient norm", "Lengths of completions", "Best 1", "Worst 1"):
        assert said in text
    entry = melior.records.catalogue.entry("grpo")
    assert " ".join(entry.formula.split()) in text and entry.paper.title in text and "GroupRelative" in text
    assert "max_tokens 2 256" in text  # a setting that is not the default
    assert f"melior train --config {finished}/config.yaml" in text


def test_every_drawing_has_words_and_a_table_that_need_no_script(finished):
    page = read(finished)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 10
    figures = page.all("figure")
    assert len(page.all("figcaption")) == len(figures) >= 8
    drawn = [svg for svg in page.all("svg") if svg.get("role") == "img"]
    assert len(drawn) == len(figures)
    for svg in drawn:
        assert svg["aria-labelledby"] in ids and svg["aria-describedby"] in ids
    assert all(svg.get("role") == "img" or svg.get("aria-hidden") == "true" for svg in page.all("svg"))
    assert len([table for table in page.all("table") if table.get("class") == "numbers"]) >= len(figures)
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    names = [tag for tag, _ in page.elements]
    assert names.count("main") == names.count("header") == names.count("footer") == names.count("nav") == 1
    assert page.all("html")[0]["lang"] == "en"
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert f"{rows[-1]['grad_norm']:.3f}" in page.text


def test_what_a_model_wrote_stays_text(finished, tmp_path):
    evil, worse = "<script>alert(1)</script>\x1b[2J", '"><img src=x onerror=alert(2)>'
    run = copied(finished, tmp_path)
    batch = Trajectories(
        mask=torch.ones(2, 2, dtype=torch.bool),
        group=torch.tensor([0, 1]),
        tokens=torch.zeros(2, 2, dtype=torch.long),
        behaviour_logp=torch.zeros(2, 2),
        advantage=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]),
        reward=torch.tensor([1.0, 0.0]),
        components={worse: torch.tensor([1.0, 0.0]), "other": torch.tensor([1.0, 0.5])},
        columns={"length": torch.tensor([2, 2])},
        objects={"text": (evil, worse), "prompt_text": (worse, evil), "answer": (evil, worse)},
    )
    RolloutWriter(run).write(4, batch)
    rows = [
        {"step": step, f"reward/{worse}": float(step), f"reward/{evil}": -float(step), worse: step * 2.0}
        for step in (1, 2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(run)
    page, before = read(run), read(finished)
    assert len(page.all("script")) == len(before.all("script")) == 1 and not page.all("img")
    assert page.text.count("<script>alert(1)</script><U+001B>[2J") >= 3 and worse in page.text


def test_figures_without_completions_still_make_a_page(tmp_path):
    run = lock_run(tmp_path / "a", keep_rollouts=-1).path
    page = read(run)
    assert "none were kept" in page.text and "Best 1" not in page.text and "Entropy" in page.text


def test_a_run_in_an_environment_tells_returns(tmp_path):
    pytest.importorskip("gymnasium")
    options = {"steps": 2, "envs": 2, "horizon": 16, "hidden": (4,), "eval_episodes": 2, "log_to": "", "quiet": True}
    run = melior.train("ppo", out=tmp_path / "a", **options).path
    page = read(run)
    assert "ppo on CartPole-v1" in page.text and "it has episodes, not completions" in page.text
    assert "Explained variance" in page.text and "Best 1" not in page.text


def test_a_run_that_has_only_begun_has_a_page(finished, tmp_path):
    run = copied(finished, tmp_path)
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").unlink()
    write_report(run)
    page = read(run)
    assert "Not finished" in page.text and "No evaluation has been written yet." in page.text


def test_a_record_whose_code_is_gone_is_said_and_the_figures_are_shown(finished, tmp_path):
    run = copied(finished, tmp_path)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("part: GroupRelative", "part: NoLongerThere"))
    write_report(run)
    page = read(run)
    assert "NoLongerThere" in page.text and "Gradient norm" in page.text and "grpo on lock" in page.text


def test_a_changed_part_is_set_against_the_catalogue(tmp_path):
    run = lock_run(tmp_path / "a", "grpo", overrides=["advantage.eps=0.5"]).path
    assert "advantage.eps 1e-06 0.5" in " ".join(read(run).text.split())


def test_the_same_run_gives_the_same_page(finished, tmp_path):
    first, second = (write_report(finished, tmp_path / name).read_bytes() for name in ("b", "c"))
    assert first == second == (finished / "report.html").read_bytes()


def test_a_page_that_cannot_be_made_fails_no_run(tmp_path, monkeypatch, capsys):
    def broken(run: object) -> str:
        raise RuntimeError("no page")

    monkeypatch.setattr(pages, "page", broken)
    result = lock_run(tmp_path / "a", quiet=False)
    said = capsys.readouterr()
    assert said.err.count("the report could not be written (RuntimeError: no page)") == 1
    assert "read it" not in said.out and result.summary["steps"] == 4 and not (result.path / "report.html").exists()


def test_without_jinja2_a_run_says_so_once(finished, tmp_path, monkeypatch):
    rendering.template.cache_clear()
    monkeypatch.setattr(after_run, "can_render", lambda: False)
    monkeypatch.setattr(rendering, "can_render", lambda: False)
    said: list[str] = []
    assert report_of_run(finished, said.append) is None
    assert said == ["no report was written: jinja2 is not installed (pip install 'melior[report]')"]
    with pytest.raises(UserError, match=r"melior\[report\]"):
        write_report(finished, tmp_path / "x.html")


def copied(run: Path, folder: Path) -> Path:
    """The files of a run that a report reads."""
    target = folder / "copy"
    (target / "rollouts").mkdir(parents=True)
    for name in ("config.yaml", "fingerprint.txt", "metrics.jsonl", "summary.json"):
        (target / name).write_bytes((run / name).read_bytes())
    for file in (run / "rollouts").iterdir():
        (target / "rollouts" / file.name).write_bytes(file.read_bytes())
    return target

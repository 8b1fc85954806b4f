"""The picture of runs: what tells them apart, what they share, and that it stands alone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as XML
from pathlib import Path

import pytest

import melior
from melior.cli import run as command
from melior.errors import UserError
from melior.report.picture import write_picture
from melior.storage.folder import RunFolder
from runs import lock_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [lock_run(folder / f"s{seed}", "grpo", seed=seed, eval_every=1, report=False).path for seed in (0, 1)]


def drawn(path: Path) -> tuple[XML.Element, str]:
    root = XML.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    return root, " ".join(" ".join(root.itertext()).split())


def test_two_seeds_are_two_curves_with_bands_and_names(seeds, tmp_path, capsys):
    assert command(["report", *map(str, seeds), "--picture", str(tmp_path / "curve.svg")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "curve.svg")
    root, text = drawn(tmp_path / "curve.svg")
    assert "grpo on lock:P=4,L=2,V=3" in text and "table; held out: 4 prompts; 95 % intervals shaded" in text
    classes = [element.get("class") or "" for element in root.iter(f"{SVG}path")]
    for number, seed in enumerate((0, 1)):
        assert f"curve stroke-{number} dash-{number}" in classes and f"band-{number} series-{number}" in classes
        summary = RunFolder.view(seeds[number]).read_summary()
        assert f"seed {seed}: {summary['before']['score']:.3g} → {summary['after']['score']:.3g}" in text
    assert "pass@1" in text and "step" in text


def test_it_stands_alone_and_says_in_words_what_it_shows(seeds, tmp_path):
    text = write_picture(seeds, tmp_path / "curve.svg").read_text()
    root, _ = drawn(tmp_path / "curve.svg")
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title told"
    assert "at step 4" in root.find(f"{SVG}desc").text
    assert "prefers-color-scheme: dark" in text and 'class="paper"' in text
    assert not re.search(r"url\(|@import|<script|<image|href|var\(", text)


def test_runs_are_told_apart_by_what_differs(seeds, tmp_path):
    other = lock_run(tmp_path / "a", "rloo", seed=1, lr=0.2, eval_every=2, report=False).path
    _, text = drawn(write_picture([seeds[0], other], tmp_path / "curve.svg"))
    assert "grpo, seed 0, lr 0.1: " in text and "rloo, seed 1, lr 0.2: " in text
    assert "Held-out score on lock" in text
    _, text = drawn(write_picture([seeds[0], seeds[0]], tmp_path / "curve.svg"))
    assert text.count("s0: ") >= 2  # nothing but the folder is left to call them by


def test_what_cannot_be_drawn_together_is_refused(seeds, tmp_path):
    options = {"steps": 1, "envs": 2, "horizon": 16, "hidden": (4,), "eval_episodes": 2, "log_to": "", "report": False}
    control = melior.train("ppo", out=tmp_path / "a", quiet=True, **options).path
    with pytest.raises(UserError, match=r"different figures \(pass@1, return\)"):
        write_picture([seeds[0], control], tmp_path / "curve.svg")
    with pytest.raises(UserError, match=r"must end in \.svg"):
        write_picture(seeds, tmp_path / "curve.png")
    with pytest.raises(UserError, match="give 6 at most"):
        write_picture([seeds[0]] * 7, tmp_path / "curve.svg")
    unmeasured = lock_run(tmp_path / "b", steps=1, report=False).path
    (unmeasured / "summary.json").unlink()
    with pytest.raises(UserError, match="no held-out score to draw"):
        write_picture([unmeasured], tmp_path / "curve.svg")
    assert command(["report", str(seeds[0]), "--picture", "a.svg", "--out", "b.html"]) == 2

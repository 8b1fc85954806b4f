"""The page of a real run in a real browser: on desk and phone, light and dark paper, by keyboard, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from runs import text_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed, so pages are not looked at")

AUDIT = (Path(__file__).parent / "audit.js").read_text()
REACHED = "(() => { const e = document.activeElement; return [e.tagName, e.id, e.textContent.trim().slice(0, 30)] })()"
QUEUE = """[...document.querySelectorAll("a[href], input, summary, [tabindex='0']")].filter((e) => e.checkVisibility()
  && (e.type !== "radio" || e.checked)).map((e) => [e.tagName, e.id, e.textContent.trim().slice(0, 30)])"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    run = text_run(tmp_path_factory.mktemp("run") / "a", "grpo", steps=2, eval_every=1)
    return run.path / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_readable_on(page, browser, width, scheme):
    browser.open(page, width, scheme=scheme)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
    assert browser.evaluate(AUDIT) == []
    browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
    assert browser.evaluate(AUDIT) == []  # what was folded, too
    assert browser.requests == [] and browser.complaints == []


def test_a_keyboard_reaches_everything_in_its_order(page, browser):
    browser.open(page, 1280)
    queue = browser.evaluate(QUEUE)
    assert len(queue) > 40 and queue[0] == ["A", "", "Skip to the score"]
    for expected in queue:
        browser.press("Tab")
        assert browser.evaluate(REACHED) == expected
        outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", expected


def test_a_chart_is_read_and_its_curves_are_hidden_by_keyboard(page, browser):
    browser.open(page, 1280)
    last, first = "document.querySelector('#curves figure .readout').textContent", None
    browser.evaluate("document.querySelector('#curves figure svg').focus()")
    browser.press("Home")
    first = browser.evaluate(last)
    browser.press("ArrowRight")
    assert first.startswith("step 0: ") and browser.evaluate(last).startswith("step 1: ")
    browser.evaluate("document.querySelector('.keys .key-1').focus()")
    drawn = "document.querySelector('figure:has(.keys) .of-1').checkVisibility()"
    assert browser.evaluate(drawn)
    browser.press(" ")
    assert not browser.evaluate(drawn)


def test_without_scripts_it_says_the_same(page, browser):
    tables = "[...document.querySelectorAll('table')].map((e) => e.innerText)"
    browser.open(page, 390)
    browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
    expected = browser.evaluate(tables)
    browser.open(page, 390, scripts=False)
    browser.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true })")
    assert browser.evaluate(tables) == expected and len(expected) > 10
    assert browser.evaluate("document.querySelectorAll('svg[tabindex]').length") == 0  # no promise that is not kept
    legends = "[...document.querySelectorAll('.legend')].filter((e) => e.checkVisibility()).map((e) => e.className)"
    (first,) = browser.evaluate(legends)
    browser.evaluate("document.querySelector('fieldset input:not(:checked)').click()")
    assert browser.evaluate(legends) not in ([first], [])  # colors need no script
    assert browser.requests == [] and browser.complaints == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<p style='color: #aaa; background: #fff'>pale</p>", "contrast of p"),
        ("<p style='opacity: .4'>pale</p>", "contrast of p"),
        ("<p style='width: 900px'>wide</p>", "the page is 900 wide"),
        ("<svg role='img' width='9' height='9'></svg>", "no text that stands for it"),
        ("<h3>too deep</h3>", "a heading of level 3 follows one of 1"),
        ("<button></button>", "has no name"),
        ("<a href='#' tabindex='3'>first</a>", "jumps the queue"),
        ("<pre style='overflow: auto; height: 20px'>a\nb\nc\nd</pre>", "scrolls, but not by keyboard"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(browser, tmp_path, body, said):
    bad = tmp_path / "bad.html"
    bad.write_text(f"<!doctype html><meta charset='utf-8'><body style='margin: 0'><h1>Page</h1>{body}")
    browser.open(bad, 390)
    assert any(said in each for each in browser.evaluate(AUDIT))


def test_requests_and_errors_are_noticed(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><h1>Page</h1><img src='http://127.0.0.1:9/a.png'><script>nowhere()</script>")
    browser.open(bad, 390)
    assert browser.requests == ["http://127.0.0.1:9/a.png"]
    assert any("nowhere is not defined" in each for each in browser.complaints)

"""The definitions, the thresholds, and the names that advice gives."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import melior
import melior.methods
from made_runs import healthy
from melior.errors import UserError
from melior.inspect import doctor
from melior.inspect.doctor.catalogue import definitions
from melior.method import Method
from melior.parts import Part
from melior.records.overrides import paths
from melior.settings import ControlSettings, LanguageSettings

DOCS = Path(__file__).parents[3] / "docs"


def advice() -> list[tuple[str, str]]:
    """(check, a word in backticks) of everything that any check tells to try, read from their source."""
    found = []
    for check in doctor.CHECKS:
        module = importlib.import_module(type(check).__module__)
        body = inspect.getsource(type(check)).partition("try_=")[2] or inspect.getsource(module)
        texts = re.sub(r'"\s*\n\s*f?"', "", body)
        found += [(check.name, word) for word in re.findall(r"`([^`]+)`", texts)]
    return found


def parts() -> set[str]:
    """The names of all parts."""
    found, waiting = set(), [Part]
    for module in pkgutil.walk_packages(melior.__path__, "melior."):
        if module.name.split(".")[1] in ("advantages", "objectives", "rewards", "curricula", "updates", "memories"):
            importlib.import_module(module.name)
    while waiting:
        each = waiting.pop()
        found.add(each.__name__)
        waiting += each.__subclasses__()
    return found


def known_names() -> set[str]:
    """What may be named: methods, paths that --set takes, parts, figures, commands."""
    methods = melior.entries()
    fields = {path for row in methods.values() if isinstance(row.record, Method) for path in paths(row.record)}
    fields |= {
        path for settings in (LanguageSettings(), ControlSettings()) for path in paths(melior.get("grpo"), settings)
    }
    whole = {path.partition(".")[0] for path in fields}
    return {*methods, *fields, *whole, *parts()}


def test_everything_named_in_advice_exists():
    known = known_names()
    figures = set(re.findall(r"`([a-z_/]+)`", (DOCS / "metrics.md").read_text()))
    assert {"settings.lr", "objective.clip.high", "grpo", "OverlongPenalty"} <= known
    strange = {
        (check, word)
        for check, word in advice()
        if word not in known
        and word not in figures
        and not re.match(r"melior (train|check|eval|rollouts|doctor)\b", word)
    }
    assert not strange
    assert len(advice()) > 60


def test_every_check_gives_advice_that_names_something():
    named = {check for check, _ in advice()}
    assert {check.name for check in doctor.CHECKS} == named


def test_the_page_holds_every_definition():
    assert definitions() in (DOCS / "doctor.md").read_text() + "\n"


def test_every_threshold_is_explained():
    for check in doctor.CHECKS:
        for field in dataclasses.fields(check):  # type: ignore[arg-type]
            assert re.search(rf"^- `{field.name}` = \S.*: \S", definitions([check]), re.M), (check.name, field.name)


def test_names_and_causes_are_those_of_checks():
    names = [check.name for check in doctor.CHECKS]
    assert len(set(names)) == len(names)
    for check in doctor.CHECKS:
        assert set(check.explained_by) <= set(names) - {check.name}


def test_nothing_explains_what_explains_it():
    """Otherwise two findings would hide each other."""
    causes = {check.name: set(check.explained_by) for check in doctor.CHECKS}
    for name in causes:
        seen: set[str] = set()
        waiting = set(causes[name])
        while waiting:
            cause = waiting.pop()
            seen.add(cause)
            waiting |= causes[cause] - seen
        assert name not in seen


def test_a_threshold_can_be_set():
    made = healthy()
    assert "sampler-mismatch" not in doctor.examine(made.log()).names
    checks = doctor.checks_with(["sampler-mismatch.nats=0.001", "entropy-collapse.steps=20"])
    assert "sampler-mismatch" in doctor.examine(made.log(), checks).names
    assert next(check for check in checks if check.name == "entropy-collapse").steps == 20  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("entropy-colapse.share=1", "did you mean 'entropy-collapse'"),
        ("entropy-collapse.shar=1", "did you mean 'share'"),
        ("entropy-collapse=1", "write FINDING.THRESHOLD=VALUE"),
        ("entropy-collapse.share", "write FINDING.THRESHOLD=VALUE"),
        ("entropy-collapse.share=much", "a number is wanted"),
        ("entropy-collapse.steps=2.5", "a whole number is wanted"),
        ("format-failure.words=3", "a list of words is wanted"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change, said):
    with pytest.raises(UserError, match=re.escape(said)):
        doctor.checks_with([change])

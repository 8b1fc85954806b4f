"""A method is a frozen record: derived, compared, and composed of named memories, scorers and further learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import pytest

from melior.advantages import GroupRelative, LeaveOneOut
from melior.method import Entry, Method, Paper
from melior.methods.dialects import TRL_GRPO
from melior.methods.group_relative import DAPO, GRPO, TWO_GRPO
from melior.methods.policy_gradient import REINFORCE
from melior.objectives import NLL, Clip, Divergence, PolicyGradient, ReferenceKL
from melior.parts import Curriculum, Memory, Need, Objective, Scorer, Weighted
from melior.settings import LanguageSettings


@dataclass(frozen=True)
class Probe(Memory[float]):
    reads = (Need("hidden", on="batch"),)

    def init(self, run: object) -> float:
        return 0.0


def test_rule_1_a_method_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        GRPO.record.name = "mine"  # type: ignore[misc]


def test_rule_1_but_changes_the_named_fields_only():
    mine = GRPO.record.but("mine", advantage=LeaveOneOut())
    changed = {f.name for f in fields(Method) if getattr(mine, f.name) != getattr(GRPO.record, f.name)}
    assert changed == {"name", "advantage"} and GRPO.record.advantage == GroupRelative()
    with pytest.raises(TypeError, match="advantag"):
        GRPO.record.but("mine", advantag=LeaveOneOut())


def test_rule_1_equal_records_are_equal_methods():
    assert GRPO.record.but("grpo") == GRPO.record
    assert GRPO.record.but("other") != GRPO.record


def test_a_single_term_is_an_objective():
    mine = GRPO.record.but("mine", objective=Clip())
    assert mine.objective == Objective((Weighted(1.0, Clip()),)) == 1.0 * Clip()


def test_rule_5_batch_needs_are_those_of_the_own_record():
    other = REINFORCE.record.but("other", objective=PolicyGradient() + ReferenceKL(scorer="teacher"))
    mine = GRPO.record.but("mine", memory={"probe": Probe()}, others={"hinter": other})
    assert mine.batch_needs() == {Need("logp", "batch", "reference"), Need("hidden", "batch")}
    assert mine.of("hinter").batch_needs() == {Need("logp", "batch", "teacher")}


def test_rule_5_quantities_of_the_forward_pass_are_not_batch_needs():
    mine = GRPO.record.but("mine", objective=Clip() + Divergence("teacher"))
    assert mine.batch_needs() == frozenset()
    assert {need.quantity for need in mine.needs()} == {"reverse_kl_teacher"}


def test_rule_10_further_learners_have_records_of_their_own():
    hinter = REINFORCE.record.but("hinter")
    mine = GRPO.record.but("mine", others={"hinter": hinter})
    assert mine.of("policy") is mine and mine.of("hinter") is hinter
    assert {part.name for part in mine.walk() if isinstance(part, Method)} == {"mine", "hinter"}


def test_rule_11_a_method_pins_settings_but_has_none():
    names = {f.name for f in fields(LanguageSettings)} & {f.name for f in fields(Method)}
    assert names == {"reward"}  # the record's stage, and the functions that the user gives
    assert TWO_GRPO.record.pins == {"n": 2} and set(TWO_GRPO.record.pins) <= {f.name for f in fields(LanguageSettings)}


def test_defaults_do_nothing():
    minimal = {
        name: getattr(GRPO.record, name)
        for name in ("advantage", "objective", "aggregate", "update", "rollout", "reward")
    }
    method = Method("minimal", **minimal)
    assert method.curriculum == Curriculum() and repr(method.teacher) == "AsIs()"
    assert (method.memory, method.scorers, method.others, method.pins) == ({}, {}, {}, {})
    assert "teacher" not in repr(method).replace("scorer='reference'", "").split("reward=")[1]


def test_repr_shows_scorers_and_pins():
    text = repr(TWO_GRPO.record.but("x", scorers={"teacher": Scorer("path/to/model")}, objective=NLL()))
    assert "pins={'n': 2}" in text and "Scorer(weights='path/to/model', context='trained', decay=0.99)" in text


def test_an_entry_is_filed_under_its_alias_or_the_name_of_its_record():
    assert (DAPO.name, DAPO.frame) == ("dapo", "Method")
    aliased = Entry(GRPO.record, paper=GRPO.paper, track="t", evidence="e", alias="mine:grpo")
    assert (aliased.name, TRL_GRPO.name) == ("mine:grpo", "trl:grpo")


def test_a_paper_in_words():
    paper = Paper("A title", "Someone", 2024, arxiv="2401.00001")
    assert str(paper) == "Someone 2024, “A title”, arXiv 2401.00001"
    assert str(Paper("A title", "Someone", 2024)) == "Someone 2024, “A title”"


def test_settings_of_entries_are_settings():
    known = {f.name for f in fields(LanguageSettings)}
    for entry in (GRPO, DAPO, TWO_GRPO, TRL_GRPO):
        settings: Mapping[str, Any] = entry.settings
        assert set(settings) <= known

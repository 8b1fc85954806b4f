"""`--set path=value`: exact paths, unique endings, values by the field's type."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from melior.advantages import GroupRelative, LeaveOneOut, Whiten
from melior.errors import UserError
from melior.objectives import CappedWeight, Clip, ReferenceKL, SegmentRatio, TokenMean
from melior.parts import Memory, Scorer, Term
from melior.records.catalogue import entries, get
from melior.records.notes import Note
from melior.records.overrides import apply, paths
from melior.records.serialize import tree
from melior.records.slots import snake
from melior.settings import LanguageSettings

SETTINGS = LanguageSettings()


@dataclass(frozen=True)
class Probe(Memory[Any]):
    """A memory with one field."""

    ridge: float = 1.0


@dataclass(frozen=True)
class Heavy(Term):
    """A term whose own field is called like the weight around it."""

    weight: str = "w"


def record_after(name: str, *changes: str) -> Any:
    return apply(get(name), SETTINGS, changes)[0]


def settings_after(*changes: str) -> LanguageSettings:
    return apply(get("grpo"), SETTINGS, changes)[1]


@pytest.mark.parametrize(
    ("name", "change", "stage", "expected"),
    [
        ("dapo", "objective.clip.high=0.3", "objective", 1.0 * Clip(0.2, 0.3)),
        ("grpo", "objective.reference_kl.weight=1e-3", "objective", Clip() + 0.001 * ReferenceKL("k3")),
        ("grpo", "objective.referencekl.estimator=k2", "objective", Clip() + 0.04 * ReferenceKL("k2")),
        ("grpo", "objective.clip.weight=2", "objective", 2.0 * Clip() + 0.04 * ReferenceKL("k3")),
        (
            "grpo",
            "objective.clip.aggregate=TokenMean",
            "objective",
            Clip().over(TokenMean()) + 0.04 * ReferenceKL("k3"),
        ),
        ("grpo", "objective.clip.ratio=SegmentRatio", "objective", Clip(ratio=SegmentRatio()) + 0.04 * ReferenceKL()),
        (
            "grpo",
            "objective.reference_kl={part: CappedWeight, high: 3}",
            "objective",
            Clip() + 0.04 * CappedWeight(3.0),
        ),
        ("grpo", "objective=Clip", "objective", 1.0 * Clip()),
        ("grpo", "advantage.scale=null", "advantage", GroupRelative(scale=None)),
        ("grpo", "advantage.group_relative.scale=null", "advantage", GroupRelative(scale=None)),
        ("grpo", "advantage={part: GroupRelative, scale: null}", "advantage", GroupRelative(scale=None)),
        ("grpo", "advantage=LeaveOneOut", "advantage", LeaveOneOut()),
        (
            "grpo",
            "advantage=[GroupRelative, {part: Whiten, clamp: 3}]",
            "advantage",
            GroupRelative() | Whiten(clamp=3.0),
        ),
    ],
)
def test_a_path_changes_exactly_its_value(name: str, change: str, stage: str, expected: Any) -> None:
    changed = record_after(name, change)
    assert getattr(changed, stage) == expected
    assert changed == replace(get(name), **{stage: expected})


def test_inside_a_chain() -> None:
    changed = record_after("ppo-lm", "advantage.gae.lam=0.9")
    assert changed.advantage.parts[1].lam == 0.9
    assert changed.advantage.parts[::2] == get("ppo-lm").advantage.parts[::2]


def test_inside_a_mix() -> None:
    record = get("grpo").but("mine", advantage=0.7 * GroupRelative() + 0.3 * LeaveOneOut())
    changed, _ = apply(record, SETTINGS, ["advantage.leave_one_out.weight=0.5", "advantage.group_relative.ddof=0"])
    assert changed.advantage == 0.7 * GroupRelative(ddof=0) + 0.5 * LeaveOneOut()


def test_memories_scorers_and_other_learners() -> None:
    record = get("grpo").but(
        "mine", memory={"probe": Probe()}, scorers={"teacher": Scorer()}, others={"hinter": get("dapo")}
    )
    changed, _ = apply(
        record,
        SETTINGS,
        ["memory.probe.ridge=0.5", "scorers.teacher.weights=live", "others.hinter.objective.clip.high=0.5"],
    )
    assert changed.memory == {"probe": Probe(0.5)}
    assert changed.scorers == {"teacher": Scorer("live")}
    assert changed.others["hinter"].objective == 1.0 * Clip(0.2, 0.5)
    assert changed.objective == get("grpo").objective


def test_a_mapping_takes_new_keys() -> None:
    changed = record_after("grpo", "scorers.teacher={weights: live}", "scorers.teacher.context=hint", "others.b=dapo")
    assert changed.scorers == {"teacher": Scorer("live", "hint")}
    assert changed.others == {"b": get("dapo")}
    assert settings_after("settings.template_args.enable_thinking=false").template_args == {"enable_thinking": False}


def test_twins_are_told_apart_by_their_number() -> None:
    record = get("grpo").but("mine", objective=Clip(0.1) + Clip(0.2))
    changed, _ = apply(record, None, ["objective.clip.1.low=0.5"])
    assert changed.objective == Clip(0.1) + Clip(0.5)
    with pytest.raises(UserError, match=r"could be 'objective\.clip\.0\.low' or 'objective\.clip\.1\.low'"):
        apply(record, None, ["low=0.5"])


def test_a_field_called_weight_keeps_a_path_of_its_own() -> None:
    record = get("grpo").but("mine", objective=0.5 * Heavy())
    changed, _ = apply(record, None, ["objective.heavy.weight=2", "objective.heavy.term.weight=column"])
    assert changed.objective == 2.0 * Heavy("column")


@pytest.mark.parametrize(("change", "field", "value"), [("lr=1e-4", "lr", 1e-4), ("max_tokens=8", "max_tokens", 8)])
def test_an_ending_that_occurs_once_is_enough(change: str, field: str, value: float) -> None:
    assert settings_after(change) == replace(SETTINGS, **{field: value})
    assert record_after("grpo", "epochs=4").update.epochs == 4


def test_texts_are_taken_as_they_stand() -> None:
    made = settings_after("settings.system=no", "settings.task=007", "settings.data=", "settings.stop=[no, '1']")
    assert (made.system, made.task, made.data, made.stop) == ("no", "007", "", ("no", "1"))
    assert settings_after("settings.reward=a.py:f").reward == ("a.py:f",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("objective.clip.hihg=0.3", "there is no 'objective.clip.hihg' to set; did you mean 'objective.clip.high'"),
        ("hihg=0.3", "did you mean 'objective.clip.high'"),
        ("advantage.lam=0.9", "there is no 'advantage.lam' to set"),
        ("n=4", "'n' could be 'rollout.n' or 'settings.n'; write it in full"),
        ("objective.clip.high=wide", "objective.clip.high must be a number, got 'wide'"),
        ("objective.reference_kl.estimator=k5", "must be one of 'k1', 'k2', 'k3', 'k3+', got 'k5'"),
        ("update.epochs=2.5", "update.epochs must be a whole number, got 2.5"),
        ("advantage=Clip", "advantage: expected a Transform, and Clip is a Term"),
        ("advantage={part: GroupRelative, scael: 1}", "GroupRelative has no field 'scael'; did you mean 'scale'"),
        ("settings.lr=fast", "lr must be a number, got 'fast'"),
        ("settings.steps=-3", "steps must be at least 0, got -3"),
        ("objective.clip.high", "write path=value"),
        ("=3", "write path=value"),
        ("objective.clip.high=[", "the value of objective.clip.high is not valid YAML"),
        ("pins.n=3", "there is no 'pins.n' to set; did you mean"),
        ("name=x", "there is no 'name' to set"),
    ],
)
def test_a_mistake_is_one_sentence(change: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        apply(get("grpo"), SETTINGS, [change])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pin_may_be_overruled_and_it_is_said() -> None:
    with pytest.warns(Note, match="two-grpo pins n = 2 and is run with 4"):
        record, settings = apply(get("two-grpo"), SETTINGS, ["settings.n=4"])
    assert (record.pins, settings.n) == ({"n": 4}, 4)


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_path_leads_back_to_itself(name: str) -> None:
    """Each canonical path resolves to its own slot, and setting what stands there changes nothing."""
    record = get(name)
    for path, value in paths(record, None).items():
        again, _ = apply(record, None, [f"{path}={json.dumps(tree(value))}"])
        assert again == record, path


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ReferenceKL", "reference_kl"), ("GAE", "gae"), ("GroupRelative", "group_relative"), ("NLL", "nll")],
)
def test_class_names_in_paths(name: str, expected: str) -> None:
    assert snake(name) == expected

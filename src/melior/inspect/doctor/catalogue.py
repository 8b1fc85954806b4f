"""All checks, with thresholds that can be set, and their definitions as a page."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from melior.errors import UserError, near
from melior.inspect.doctor.credit import BlindCritic, DominatedAdvantage
from melior.inspect.doctor.entropy import EntropyCollapse, EntropyExplosion
from melior.inspect.doctor.evaluation import PassAtKFalls, TooFewSamples
from melior.inspect.doctor.finding import Check
from melior.inspect.doctor.lengths import LengthDrift, RepetitionLoops, Truncation
from melior.inspect.doctor.prompts import DuplicatePrompts, Overfitting
from melior.inspect.doctor.ratios import (
    ClippingEverywhere,
    ClippingNever,
    HeavyRatios,
    SamplerMismatch,
    StaleRollouts,
)
from melior.inspect.doctor.rewards import FormatFailure, RewardTracksLength, TradedComponents
from melior.inspect.doctor.signal import DeadReward, EarlySaturation, NoSignal
from melior.inspect.doctor.steps import GradientSpikes, KLBlowUp, LossNearZero, StepTooLarge, StepTooSmall
from melior.records.yaml_text import load_yaml

CHECKS: tuple[Check, ...] = (
    DeadReward(),
    NoSignal(),
    EarlySaturation(),
    FormatFailure(),
    TradedComponents(),
    RewardTracksLength(),
    Truncation(),
    LengthDrift(),
    RepetitionLoops(),
    EntropyCollapse(),
    EntropyExplosion(),
    StepTooLarge(),
    StepTooSmall(),
    GradientSpikes(),
    KLBlowUp(),
    HeavyRatios(),
    ClippingEverywhere(),
    ClippingNever(),
    SamplerMismatch(),
    StaleRollouts(),
    DominatedAdvantage(),
    BlindCritic(),
    DuplicatePrompts(),
    Overfitting(),
    PassAtKFalls(),
    TooFewSamples(),
    LossNearZero(),
)


def checks_with(changes: Iterable[str], checks: Iterable[Check] = CHECKS) -> tuple[Check, ...]:
    """The checks with thresholds changed, each change as "entropy-collapse.share=0.1".

    UserError for a finding, a threshold or a value that there is not; the near names are told.
    """
    known = {check.name: check for check in checks}
    for change in changes:
        path, equals, text = change.partition("=")
        name, dot, threshold = path.strip().partition(".")
        if not equals or not dot:
            raise UserError(f"cannot set {change!r}; write FINDING.THRESHOLD=VALUE, such as entropy-collapse.share=0.1")
        if name not in known:
            raise UserError(f"the doctor has no finding '{name}'{near(name, known)}")
        values: dict[str, Any] = {each.name: getattr(known[name], each.name) for each in _fields(known[name])}
        if threshold not in values:
            raise UserError(f"'{name}' has no threshold '{threshold}'{near(threshold, values)}")
        known[name] = replace(known[name], **{threshold: _value(change, text, values[threshold])})  # type: ignore[type-var]
    return tuple(known.values())


def definitions(checks: Iterable[Check] = CHECKS) -> str:
    """Every finding with its definition and its thresholds, in Markdown."""
    return "\n".join(_definition(check) for check in checks)


def _definition(check: Check) -> str:
    text = inspect.cleandoc(type(check).__doc__ or "")
    body, _, attributes = text.partition("\nAttributes:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in body.strip().split("\n\n")]
    lines = [f"### {check.name}", ""]
    for paragraph in paragraphs:
        lines += [paragraph, ""]
    meanings = dict(re.findall(r"^(\w+): ((?:.|\n(?! *\w+: ))*)", textwrap.dedent(attributes), re.M))
    for each in _fields(check):
        meaning = " ".join(meanings.get(each.name, "").split())
        value = getattr(check, each.name)
        shown = ", ".join(value) if isinstance(value, tuple) else f"{value:g}"
        lines.append(f"- `{each.name}` = {shown}: {meaning}")
    if _fields(check):
        lines.append("")
    if check.explained_by:
        lines += [f"Told only as a consequence when one of these is found: {', '.join(check.explained_by)}.", ""]
    return "\n".join(lines)


def _fields(check: Check) -> tuple[Any, ...]:
    return fields(check)  # type: ignore[arg-type]


def _value(change: str, text: str, like: Any) -> Any:
    value = load_yaml(text)
    if isinstance(like, tuple):
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise UserError(f"cannot set {change!r}: a list of words is wanted, such as [format, xml]")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(like, int) and value != int(value)):
        raise UserError(f"cannot set {change!r}: a {'whole ' if isinstance(like, int) else ''}number is wanted")
    return type(like)(value)

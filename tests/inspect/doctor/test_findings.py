"""Each illness alone is found alone; healthy runs get no finding; every finding has its sick run here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from made_runs import PROMPTS, Made, evaluation, healthy, standardized
from melior.inspect import doctor
from melior.inspect.doctor.finding import Finding
from melior.inspect.logs import Row

SICK: dict[str, Callable[[], Made]] = {}


def sick(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Files a run under the illness that it has."""

    def file(make: Callable[[], Made]) -> Callable[[], Made]:
        SICK[name if name not in SICK else f"{name} ({make.__name__})"] = make
        return make

    return file


def flat(made: Made, level: float = 0.3) -> Made:
    """The score stands still, with the noise of 64 completions."""
    rate = np.clip(level + made.noise(0.05, "flat"), 0, 1)
    for name in ("reward", "pass_rate", "reward/correct"):
        made.metrics[name] = rate
    made.held_out = {step: evaluation(level, {4: level + 0.2}) for step in made.held_out}
    return made


@sick("dead-reward")
def constant() -> Made:
    made = healthy()
    for name, value in {
        "reward": 1.0,
        "pass_rate": 1.0,
        "reward/correct": 1.0,
        "reward_std": 0.0,
        "mixed_share": 0.0,
    }.items():
        made.metrics[name] = np.full(made.count, value)
    made.metrics["grad_norm"] = made.metrics["update_norm"] = made.metrics["loss"] = np.zeros(made.count)
    made.metrics["kl_reference"] = np.zeros(made.count)
    made.rows = lambda step, rows: standardized([replace(row, reward=1.0, outcome=1.0) for row in rows])
    return made


@sick("dead-reward")
def nan() -> Made:
    made = healthy()
    for name in ("reward", "pass_rate", "reward_std", "reward/correct", "mixed_share"):
        made.metrics[name][60:] = np.nan
    made.rows, made.held_out = None, {}
    return made


@sick("no-signal")
def too_hard() -> Made:
    made = flat(healthy(), 0.0)
    made.metrics["mixed_share"] = (np.arange(made.count) % 9 == 0) / PROMPTS
    for name in ("reward", "pass_rate", "reward/correct"):
        made.metrics[name] = made.metrics["mixed_share"] / 8
    made.metrics["entropy"] = 0.8 + made.noise(0.01)
    made.rows = lambda step, rows: standardized([replace(row, reward=0.0, outcome=0.0) for row in rows])
    return made


@sick("no-signal")
def too_easy() -> Made:
    made = healthy(begins=0.985, ends=0.99)
    made.metrics["mixed_share"] = (np.arange(made.count) % 5 == 0) / PROMPTS
    made.rows = lambda step, rows: standardized([replace(row, reward=1.0, outcome=1.0) for row in rows])
    return made


@sick("early-saturation")
def solved_at_once() -> Made:
    made = healthy()
    rate = 1 - 0.7 * np.exp(-np.arange(made.count) / 4)
    for name in ("reward", "pass_rate", "reward/correct"):
        made.metrics[name] = rate
    made.metrics["mixed_share"] = np.where(rate > 0.98, (np.arange(made.count) % 6 == 0) / PROMPTS, 0.9)
    made.held_out = {step: evaluation(0.3 if step == 0 else 0.99, {}) for step in made.held_out}
    return made


@sick("format-failure")
def never_in_form() -> Made:
    made = healthy()
    made.metrics["reward/format"] = np.abs(0.03 + made.noise(0.01))
    return made


@sick("format-failure")
def empty() -> Made:
    made = healthy()
    made.rows = lambda step, rows: [replace(row, text=" \n") if place % 2 else row for place, row in enumerate(rows)]
    return made


@sick("traded-components")
def style_for_truth() -> Made:
    made = healthy()
    made.metrics["reward/correct"] = 0.6 - 0.35 * made.part + made.noise(0.04, "a")
    made.metrics["reward/style"] = 0.2 + 0.6 * made.part + made.noise(0.04, "b")
    return made


@sick("reward-tracks-length")
def longer_is_better() -> Made:
    made = healthy()
    made.metrics["length_mean"] = 80 + 60 * made.part + made.noise(3)
    made.rows = lambda step, rows: standardized([replace(row, reward=(row.length or 0) / 100) for row in rows])
    return made


@sick("truncation")
def cut_off() -> Made:
    made = healthy()
    made.metrics["truncated_share"] = 0.4 + made.noise(0.03)
    made.rows = lambda step, rows: standardized(
        [replace(row, reward=0.0, outcome=0.0) if row.truncated else row for row in rows]
    )
    return made


@sick("truncation")
def far_too_short() -> Made:
    made = flat(healthy(), 0.02)
    made.metrics["truncated_share"] = np.ones(made.count)
    made.rows = None
    return made


@sick("length-drift")
def ever_longer() -> Made:
    made = flat(healthy())
    made.metrics["length_mean"] = 60 * np.exp(1.2 * made.part) + made.noise(3)
    return made


@sick("repetition-loops")
def in_circles() -> Made:
    made = healthy()

    def loop(step: int, rows: list[Row]) -> list[Row]:
        return [
            replace(row, text="so it is " + "and then it is 7 " * 12) if place % 3 == 0 else row
            for place, row in enumerate(rows)
        ]

    made.rows = loop
    return made


@sick("entropy-collapse")
def collapsed() -> Made:
    made = flat(healthy(), 0.4)
    made.metrics["entropy"] = 0.02 + 0.8 * np.exp(-np.arange(made.count) / 8)
    return made


@sick("entropy-explosion")
def dissolved() -> Made:
    made = flat(healthy())
    made.metrics["entropy"] = 0.8 + 2.5 * made.part**2 + made.noise(0.03)
    return made


@sick("step-too-large")
def broken_down() -> Made:
    made = healthy()
    rate = np.where(made.part < 0.3, made.metrics["pass_rate"], 0.02)
    for name in ("reward", "pass_rate", "reward/correct"):
        made.metrics[name] = rate
    made.metrics["entropy"] = np.where(made.part < 0.3, made.metrics["entropy"], 3 + made.noise(0.05))
    made.held_out = {
        step: evaluation(0.2 if step < 36 else 0.02, {4: 0.4 if step < 36 else 0.05}) for step in made.held_out
    }
    return made


@sick("step-too-large")
def far_each_time() -> Made:
    made = healthy()
    made.metrics["updates"] = np.full(made.count, 8.0)
    made.metrics["kl_proximal"] = 0.3 + np.abs(made.noise(0.05))
    return made


@sick("step-too-small")
def hardly_moving() -> Made:
    made = flat(healthy())
    made.metrics["kl_reference"] = np.abs(made.noise(1e-5))
    made.metrics["entropy"] = 0.8 + made.noise(0.01)
    return made


@sick("step-too-small")
def hardly_moving_without_a_reference() -> Made:
    made = flat(healthy())
    del made.metrics["kl_reference"]
    made.metrics["entropy"] = 0.8 + made.noise(0.01)
    return made


@sick("gradient-spikes")
def spiking() -> Made:
    made = healthy()
    made.metrics["grad_norm"][[30, 55, 70, 101]] = [40, 90, 60, 35]
    return made


@sick("kl-blow-up")
def running_away() -> Made:
    made = flat(healthy())
    made.metrics["kl_reference"] = 0.05 * np.exp(5 * np.maximum(made.part - 0.5, 0)) ** 2
    return made


@sick("heavy-tailed-ratios")
def few_tokens_weigh() -> Made:
    made = healthy()
    made.metrics["ess"] = np.clip(0.2 + made.noise(0.03), 0, 1)
    return made


@sick("clipping-everywhere")
def all_clipped() -> Made:
    made = healthy()
    made.metrics["updates"] = np.full(made.count, 4.0)
    made.metrics["clip_low"], made.metrics["clip_high"] = 0.4 + made.noise(0.02, "a"), 0.45 + made.noise(0.02, "b")
    return made


@sick("clipping-never")
def nothing_clipped() -> Made:
    made = flat(healthy())
    made.metrics["updates"] = np.full(made.count, 4.0)
    made.metrics["clip_low"] = made.metrics["clip_high"] = np.zeros(made.count)
    return made


@sick("sampler-mismatch")
def another_distribution() -> Made:
    made = healthy()
    made.metrics["gap_mean"], made.metrics["gap_outside"] = 0.3 + made.noise(0.02), 0.5 + made.noise(0.02)
    return made


@sick("stale-rollouts")
def never_new_weights() -> Made:
    made = healthy()
    made.rows = lambda step, rows: [replace(row, version=0) for row in rows]
    return made


@sick("stale-rollouts")
def lagging() -> Made:
    made = healthy()
    made.metrics["version_lag"] = np.full(made.count, 12.0)
    return made


@sick("dominated-advantage")
def one_outlier() -> Made:
    made = healthy()

    def outlier(step: int, rows: list[Row]) -> list[Row]:
        return [replace(row, advantage=500.0 if place == 3 else row.advantage) for place, row in enumerate(rows)]

    made.rows = outlier
    return made


@sick("blind-critic")
def explains_nothing() -> Made:
    made = healthy()
    made.metrics["explained_variance"] = -0.02 + made.noise(0.02)
    return made


@sick("duplicate-prompts")
def twice_the_same() -> Made:
    made = healthy()
    made.rows = lambda step, rows: [replace(row, prompt=f"prompt {step} {(row.group or 0) // 2}") for row in rows]
    return made


@sick("overfitting")
def by_heart() -> Made:
    made = healthy()
    peak = {0: 0.2, 20: 0.4, 40: 0.45, 60: 0.4, 80: 0.33, 100: 0.27, 120: 0.22}
    made.held_out = {step: evaluation(score, {}) for step, score in peak.items()}
    return made


@sick("overfitting")
def nothing_carries_over() -> Made:
    made = healthy()
    made.held_out = {0: evaluation(0.2, {}), made.count: evaluation(0.22, {})}
    return made


@sick("pass-at-k-falls")
def narrower() -> Made:
    made = healthy()
    made.held_out = {step: evaluation(0.2 + step / 250, {8: 0.9 - step / 400}) for step in made.held_out}
    return made


@sick("pass-at-k-falls")
def narrower_in_training() -> Made:
    made = healthy()

    def narrow(step: int, rows: list[Row]) -> list[Row]:
        """More prompts come to pass whole, and more fail whole, of those that one completion in eight solved."""
        whole = step / made.count
        found = []
        for place, row in enumerate(rows):
            group = row.group or 0
            passed = group < 3 + round(2.4 * whole) or (place % 8 == 0 and 5 * whole < 8 - group)
            found.append(replace(row, reward=float(passed), outcome=float(passed)))
        return standardized(found)

    made.held_out, made.rows = {}, narrow
    return made


@sick("too-few-samples")
def five_steps() -> Made:
    return healthy(5)


@sick("too-few-samples")
def noise_only() -> Made:
    made = flat(healthy(40))
    rate = np.clip(0.5 + made.noise(0.4, "wild"), 0, 1)
    for name in ("reward", "pass_rate", "reward/correct"):
        made.metrics[name] = rate
    return made


@sick("loss-near-zero")
def as_it_should_be() -> Made:
    return healthy()


@functools.cache
def diagnosed(name: str) -> dict[str, Finding]:
    """What is found in a sick run."""
    return found(SICK[name]())


def found(made: Made) -> dict[str, Finding]:
    """By name."""
    return {finding.name: finding for finding in doctor.examine(made.log()).findings}


@pytest.mark.parametrize("name", SICK)
def test_an_illness_alone_is_found_alone(name):
    expected = name.partition(" ")[0]
    findings = diagnosed(name)
    assert expected in findings, f"found {list(findings)}"
    assert set(findings) - {"loss-near-zero"} == {expected} - {"loss-near-zero"}


def test_every_finding_has_a_sick_run():
    assert {name.partition(" ")[0] for name in SICK} == {check.name for check in doctor.CHECKS}


@pytest.mark.parametrize("count", [25, 40, 120, 400])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_healthy_runs_of_realistic_length_get_no_illness(count, seed):
    diagnosis = doctor.examine(healthy(count, seed).log())
    assert diagnosis.verdict == "healthy" and set(diagnosis.names) <= {"loss-near-zero"}, diagnosis.text()


def test_groups_that_are_too_easy_and_too_hard_are_told_apart():
    assert "too hard" in found(too_hard())["no-signal"].says
    assert "too easy" in found(too_easy())["no-signal"].says


@pytest.mark.parametrize("name", SICK)
def test_what_is_said_has_steps_numbers_and_something_to_try(name):
    for finding in diagnosed(name).values():
        assert finding.says and finding.try_ and finding.plot.series
        for evidence in finding.evidence:
            first, last = evidence.steps
            assert 0 <= first <= last <= 120 and evidence.says
            assert all(np.isfinite(value) for value in evidence.numbers.values())


def test_a_consequence_is_not_told_as_an_illness():
    made = constant()
    made.metrics["truncated_share"] = np.full(made.count, 0.0)
    diagnosis = doctor.examine(made.log())
    assert diagnosis.names == ("dead-reward",)
    assert diagnosis.consequences["no-signal"] == "dead-reward"


def test_the_spike_is_dated():
    evidence = found(spiking())["gradient-spikes"].evidence[0]
    assert evidence.steps == (31, 102)
    assert evidence.numbers["spikes"] == 4 and evidence.numbers["largest"] == 90


def test_a_breakdown_names_the_step():
    assert "at step 37" in found(broken_down())["step-too-large"].evidence[0].says

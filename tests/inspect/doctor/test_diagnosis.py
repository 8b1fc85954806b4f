"""The diagnosis as a whole: verdict, text, JSON, what was not looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from made_runs import healthy
from melior.inspect import doctor
from melior.inspect.doctor.finding import sureness
from melior.inspect.logs import Rollouts, Row, RunLog


def ill() -> doctor.Diagnosis:
    made = healthy()
    made.metrics["gap_mean"] += 1
    made.metrics["ess"] *= 0.2
    return doctor.examine(made.log())


def test_healthy_ill_and_cannot_tell_have_exit_codes():
    well, sick, short = doctor.examine(healthy().log()), ill(), doctor.examine(healthy(6).log())
    assert [(each.verdict, each.exit_code) for each in (well, sick, short)] == [
        ("healthy", 0),
        ("ill", 1),
        ("cannot tell", 4),
    ]


def test_what_another_finding_explains_is_a_consequence():
    diagnosis = ill()
    assert diagnosis.names == ("sampler-mismatch", "loss-near-zero")
    assert diagnosis.consequences == {"heavy-tailed-ratios": "sampler-mismatch"}
    assert "also seen: heavy-tailed-ratios (explained by sampler-mismatch)" in diagnosis.text()


def test_the_gravest_comes_first():
    made = healthy()
    made.metrics["explained_variance"] = made.noise(0.01) - 0.1
    made.metrics["gap_mean"] += 1
    severities = [finding.severity for finding in doctor.examine(made.log()).findings]
    assert severities == ["critical", "warning", "note"]


def test_the_text_says_it_without_color():
    text = ill().text()
    assert text.startswith("made (melior, steps 1 to 120): ill: sampler-mismatch")
    assert "ILL  sampler-mismatch (critical, certain)" in text
    assert "[steps 116 to 120]" in text and "try: " in text and "NOTE loss-near-zero" in text
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 100


def test_json_holds_all_of_it():
    diagnosis = ill()
    plain = json.loads(json.dumps(diagnosis.as_dict(), allow_nan=False))
    assert plain["verdict"] == "ill" and plain["steps"] == [1, 120]
    first = plain["findings"][0]
    assert set(first) == {"name", "severity", "sure", "says", "evidence", "plot", "try"}
    assert first["evidence"][0]["steps"] == [116, 120] and first["evidence"][0]["numbers"]["gap_mean"] > 1
    assert first["plot"]["series"][0] == "gap_mean"


def test_a_check_without_its_figures_is_listed():
    made = healthy()
    del made.metrics["entropy"]
    made.rows = None
    diagnosis = doctor.examine(made.log())
    assert diagnosis.unseen["entropy-collapse"] == "entropy"
    assert diagnosis.unseen["repetition-loops"] == "completions.text"
    assert "not looked at: " in diagnosis.text()


def test_an_empty_log_cannot_tell():
    log = RunLog(Path("empty"), "trl", np.zeros(0, dtype=int), {}, {}, Rollouts())
    diagnosis = doctor.examine(log)
    assert diagnosis.verdict == "cannot tell" and diagnosis.steps is None
    assert "no steps yet" in diagnosis.text()


def test_figures_with_gaps_are_read_where_they_are():
    """Other trainers log some figures every few steps only."""
    made = healthy(200)
    made.rows = None
    for name, values in made.metrics.items():
        if name not in ("reward", "pass_rate"):
            values = values.astype(float).copy()
            values[np.arange(200) % 5 > 0] = np.nan
            made.metrics[name] = values
    assert doctor.examine(made.log()).verdict == "healthy"


def test_logs_that_know_less_are_examined_by_what_they_know():
    """As verl's: one share of clipped tokens, completions without tokens and advantages."""
    made = healthy()
    share = made.metrics.pop("clip_low") + made.metrics.pop("clip_high") + 0.6
    made.metrics |= {"clip_share": share}
    made.rows = lambda step, rows: [replace(row, length=None, advantage=None, version=None) for row in rows]
    log = made.log()
    diagnosis = doctor.examine(replace(log, metrics={n: v for n, v in log.metrics.items() if n != "length_mean"}))
    assert diagnosis.names == ("clipping-everywhere", "loss-near-zero")
    assert diagnosis.unseen["dominated-advantage"] == "completions.advantage"
    assert diagnosis.unseen["stale-rollouts"] == "completions.version or version_lag"


def test_a_reward_for_length_is_seen_in_characters():
    made = healthy()

    def paid(step: int, rows: list[Row]) -> list[Row]:
        cut = [replace(row, text=(row.text or "")[: 60 + 3 * place], length=None) for place, row in enumerate(rows)]
        return [replace(row, reward=len(row.text or "") / 100) for row in cut]

    made.rows = paid
    (finding,) = [each for each in doctor.examine(made.log()).findings if each.ill]
    assert finding.name == "reward-tracks-length" and finding.evidence[0].numbers["rho"] > 0.9


def test_sureness():
    assert [sureness(*each) for each in ((2, 2), (2, 1), (1, 2), (1.9, 1.9))] == [
        "certain",
        "likely",
        "likely",
        "possible",
    ]

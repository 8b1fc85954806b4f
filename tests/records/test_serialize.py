"""Records as trees and YAML, and back; fingerprints; settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melior.advantages import GroupRelative, LeaveOneOut, Whiten
from melior.errors import UserError
from melior.method import Method
from melior.objectives import Clip, EntropyBonus, ReferenceKL, SegmentRatio, SequenceMean, TokenMean
from melior.objectives.heads import ReverseKL
from melior.parts import Chain, Head, Mix, Objective, Part, Scorer, Transform, Weighted
from melior.records.catalogue import entries, get, resolve
from melior.records.config import config_text, read_config
from melior.records.serialize import fingerprint, from_tree, from_yaml, settings_from, settings_tree, to_yaml, tree
from melior.records.yaml_text import dump_yaml, load_yaml
from melior.settings import ControlSettings, LanguageSettings, RunSettings

MINE = """
from dataclasses import dataclass
import melior
from melior.parts import Transform

@dataclass(frozen=True)
class Doubled(Transform):
    factor: float = 2.0
    def __call__(self, batch):
        return batch.with_(advantage=batch.advantage * self.factor)

MINE = melior.get("grpo").but("mine", advantage=Doubled(3.0))
"""


@dataclass(frozen=True)
class Odd(Part):
    """Fields of every kind that a part may have."""

    head: Head
    pair: tuple[float, Transform]
    stages: tuple[Transform, ...] = ()
    anything: object = None
    named: dict[str, Transform] = field(default_factory=dict)
    either: float | str = 0.0


@dataclass(frozen=True)
class Strict(Part):
    low: float = 0.0

    def __post_init__(self) -> None:
        if self.low < 0:
            raise ValueError("low is negative")


@dataclass(frozen=True)
class Holds(Part):
    call: Callable[[], int] | None = None


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_record_of_the_catalogue_survives_yaml(name: str) -> None:
    record = get(name)
    again = from_yaml(to_yaml(record))
    assert again == record
    assert type(again) is type(record)
    assert fingerprint(again) == fingerprint(record)


@pytest.mark.parametrize(
    "change",
    [
        {"advantage": 0.7 * GroupRelative() + 0.3 * LeaveOneOut()},
        {"advantage": Mix(((1.0, GroupRelative() | Whiten(clamp=3.0)),)) | Whiten()},
        {"advantage": Chain((GroupRelative(),))},
        {"objective": 0.5 * Clip(ratio=SegmentRatio("turn", "sum")) + Clip(0.1).over(TokenMean())},
        {"objective": Objective((Weighted(-0.01, EntropyBonus(), SequenceMean()),))},
        {"scorers": {"teacher": Scorer("average", decay=0.5)}, "pins": {"n": 2, "stop": ("a", "b")}},
        {"others": {"hinter": Method("inner", **{k: v for k, v in vars(get("dapo")).items() if k != "name"})}},
    ],
)
def test_composites_survive_yaml(change: dict[str, object]) -> None:
    record = get("grpo").but("mine", **change)
    assert from_yaml(to_yaml(record)) == record


def test_fields_of_every_kind_survive() -> None:
    part = Odd(
        head=ReverseKL("teacher", 5),
        pair=(0.5, GroupRelative() | Whiten()),
        stages=(Whiten(), LeaveOneOut()),
        anything=(1, "no", (Whiten(), {"a": 1.5})),
        named={"first": LeaveOneOut()},
        either="x",
    )
    assert from_tree(load_yaml(dump_yaml(tree(part)))) == part


def test_a_record_reads_as_a_person_would_write_it() -> None:
    record = from_yaml(
        """
        method: mine
        rollout: Group
        reward: [Sum, {part: OverlongPenalty, buffer: 16}]
        advantage: {mix: [{weight: 0.7, transform: GroupRelative}, {weight: 0.3, transform: LeaveOneOut}]}
        objective: [{part: Clip, high: 28e-2}, {weight: 1e-3, term: {part: ReferenceKL, estimator: k2}}]
        aggregate: TokenMean
        update: Gradient
        curriculum: {refill: 2}
        scorers: {teacher: {weights: live}}
        """
    )
    assert repr(record.advantage).startswith("0.7 * GroupRelative(")
    assert record.objective == Clip(high=0.28) + 0.001 * ReferenceKL("k2")
    assert record.curriculum.refill == 2
    assert record.scorers["teacher"] == Scorer("live")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{part: Clipp}", "no part 'Clipp'; did you mean 'Clip'"),
        ("{part: Clip, hihg: 0.3}", "Clip has no field 'hihg'; did you mean 'high'"),
        ("{part: Clip, high: wide}", "high must be a number, got 'wide'"),
        ("{part: Clip, high: true}", "high must be a number, got true"),
        ("{part: Clip, ratio: {part: TokenMean}}", "expected a Ratio, and TokenMean is a Aggregate"),
        ("{part: ReferenceKL, estimator: k5}", "estimator must be one of 'k1', 'k2', 'k3', 'k3+', got 'k5'"),
        ("{part: Chain}", "Chain needs a value for 'parts'"),
        ("{method: mine}", "a method needs a value for 'advantage'"),
        ("{method: mine, objectiv: 1}", "a method has no field 'objectiv'; did you mean 'objective'"),
        ("{mix: [{weight: 1}]}", "a mix has a weight and a transform"),
        ("{part: 'json:loads'}", "is no part"),
        ("{part: 'nowhere:Kind'}", "there is no module 'nowhere'"),
        ("{part: Clip", "is not valid YAML"),
        ("{part: Clip, low: 1, low: 2}", "'low' stands here twice"),
        ("{part: !!python/name:os.system x}", "is not valid YAML"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        from_yaml(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_that_refuses_its_values_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="Strict refuses its values: low is negative"):
        from_tree({"part": f"{__name__}:Strict", "low": -1})


def test_what_is_no_plain_value_is_not_written() -> None:
    with pytest.raises(UserError, match="cannot be written"):
        tree(Holds(lambda: 1))


def test_names_do_not_change_a_fingerprint_and_values_do() -> None:
    record = get("grpo")
    assert fingerprint(record.but("mine")) == fingerprint(record)
    assert fingerprint(record.but("mine", objective=Clip(1, 1))) == fingerprint(
        record.but("x", objective=Clip(1.0, 1.0))
    )
    assert fingerprint(record.but("mine", objective=Clip(0.2, 0.20001))) != fingerprint(
        record.but("mine", objective=Clip())
    )
    assert len({fingerprint(get(name)) for name in entries()}) == len(entries())


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = "import melior; from melior.records.serialize import fingerprint; print(fingerprint(melior.get('dapo')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(get("dapo"))


def test_a_part_from_a_file_is_named_by_its_file(tmp_path: Path) -> None:
    here, there = tmp_path / "mine.py", tmp_path / "elsewhere" / "mine.py"
    there.parent.mkdir()
    here.write_text(MINE)
    there.write_text(MINE)
    record = resolve(f"{here}:MINE")
    assert f"part: {here}:Doubled" in to_yaml(record).replace("'", "")
    assert from_yaml(to_yaml(record)) == record
    assert fingerprint(record) == fingerprint(resolve(f"{there}:MINE"))
    assert fingerprint(record) != fingerprint(get("grpo"))


class TestYaml:
    def test_scalars_mean_what_they_look_like(self) -> None:
        text = "{a: 1e-4, b: no, c: 010, d: 1:30, e: 2020-01-01, f: true, g: null, h: .5, i: -3, j: '1', k: .inf}"
        assert load_yaml(text) == {
            "a": 1e-4,
            "b": "no",
            "c": "010",
            "d": "1:30",
            "e": "2020-01-01",
            "f": True,
            "g": None,
            "h": 0.5,
            "i": -3,
            "j": "1",
            "k": float("inf"),
        }

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=6
        )
    )
    def test_plain_data_survives(self, value: object) -> None:
        assert load_yaml(dump_yaml({"value": value})) == {"value": value}

    @given(st.from_regex(r"[-+0-9.eE_:~nulltrufaso]{1,8}", fullmatch=True))
    def test_text_that_looks_like_something_else_stays_text(self, text: str) -> None:
        assert load_yaml(dump_yaml([text])) == [text]

    def test_a_broken_line_is_named(self) -> None:
        with pytest.raises(UserError, match="line 2"):
            load_yaml("a: 1\nb: [1\n")


class TestSettings:
    def test_survive(self) -> None:
        for made in (
            LanguageSettings(lr=1e-4, stop=("\n",), template_args={"a": {"b": [1]}}, reward=("a.py:f",)),
            ControlSettings(hidden=(8, 8), env_args={"x": 1}),
        ):
            plain = load_yaml(dump_yaml(settings_tree(made)))
            assert plain.pop("kind") == type(made).__name__
            assert settings_from(plain, type(made)) == made

    def test_values_are_those_of_their_fields(self) -> None:
        made = settings_from({"lr": "1e-4", "steps": 3.0, "reward": "a.py:f", "betas": [0, 0.5]}, LanguageSettings)
        assert (made.lr, made.steps, made.reward, made.betas) == (1e-4, 3, ("a.py:f",), (0.0, 0.5))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"steps": -3}, "steps must be at least 0, got -3"),
            ({"n": 0}, "n must be at least 1, got 0"),
            ({"temperature": 0}, "temperature must be greater than 0, got 0"),
            ({"lr": -1e-3}, "lr must be at least 0, got -0.001"),
            ({"lr": float("nan")}, "lr must be a finite number, got nan"),
            ({"top_p": 1.5}, "top_p must be greater than 0 and at most 1, got 1.5"),
            ({"eval_fraction": 1}, "eval_fraction must be at least 0 and less than 1, got 1"),
            ({"betas": (0.9, 1.0)}, "betas must be at least 0 and less than 1, got 1"),
            (
                {"dtype": "float23"},
                "dtype must be one of 'float32', 'bfloat16', 'float64', got 'float23'; did you mean",
            ),
            ({"steps": "many"}, "steps must be a whole number, got 'many'"),
            ({"lerning_rate": 1}, "no setting 'lerning_rate'"),
            ({"max_token": 1}, "no setting 'max_token'; did you mean 'max_tokens'"),
        ],
    )
    def test_a_wrong_one_is_refused_in_one_sentence(self, given: dict[str, object], said: str) -> None:
        with pytest.raises(UserError) as error:
            settings_from(given, LanguageSettings)
        assert said in str(error.value)

    @pytest.mark.parametrize("kind", [RunSettings, LanguageSettings, ControlSettings])
    def test_the_defaults_are_within_their_own_bounds(self, kind: type[RunSettings]) -> None:
        assert settings_from({}, kind) == kind()


class TestConfig:
    def test_a_configuration_runs_again(self, tmp_path: Path) -> None:
        record, settings = get("dapo"), LanguageSettings(steps=3)
        (tmp_path / "config.yaml").write_text(config_text(record, settings))
        read = read_config(tmp_path)
        assert (read.record, read.settings, read.fingerprint) == (record, settings, fingerprint(record))
        assert read.changed() == ""

    def test_a_record_that_changed_is_named(self, tmp_path: Path) -> None:
        text = config_text(get("dapo"), LanguageSettings()).replace("high: 0.28", "high: 0.3")
        (tmp_path / "config.yaml").write_text(text)
        assert "the record of 'dapo' was" in read_config(tmp_path).changed()

    def test_by_hand(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("record: tempo\nsettings: {steps: 2}\n")
        assert read_config(file).record == get("tempo")
        assert read_config(file).settings == LanguageSettings(steps=2)
        file.write_text(to_yaml(get("tpo")))
        assert read_config(file).record == get("tpo")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("- 1", "is no configuration"),
            ("record: gropo", "no method 'gropo'; did you mean 'grpo'"),
            ("record: grpo\nsetings: {}", "unknown entry 'setings'; did you mean 'settings'"),
            ("record: grpo\nsettings: {kind: LanguageSetting}", "no kind of settings 'LanguageSetting'"),
            ("record: grpo\nsettings: {stepz: 1}", "no setting 'stepz'; did you mean 'steps'"),
            ("record: grpo\nsettings: [1]", "settings must be a mapping"),
            ("record: {", "is not valid YAML"),
        ],
    )
    def test_a_mistake_names_the_file(self, tmp_path: Path, text: str, said: str) -> None:
        file = tmp_path / "c.yaml"
        file.write_text(text + "\n")
        with pytest.raises(UserError) as error:
            read_config(file)
        assert said in str(error.value)
        assert str(file) in str(error.value)

"""Who is compared: grids, crosses, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import melior
from melior.cli.compare import _axis, _budget, spread
from melior.comparing.plan import Comparison, combinations, make_plan, slug
from melior.errors import UserError

SMALL = {"model": "table", "task": "lock:P=4,L=2,V=3"}


def plan(methods=(), **request):
    return make_plan(Comparison(tuple(methods), **{"settings": SMALL, **request}), Path("out"))


def test_axes_multiply_and_labels_are_short():
    axes = {"objective.clip.high": ("0.2", "0.28"), "advantage.scale": ("std", "none")}
    made = plan(["grpo"], grid=axes)
    assert [each.label for each in made.contenders] == [
        "grpo high=0.2 scale=std", "grpo high=0.2 scale=none", "grpo high=0.28 scale=std", "grpo high=0.28 scale=none",
    ]  # fmt: skip
    record = made.cells(made.contenders[3])[0].record
    assert record.objective.terms[0].term.high == 0.28 and record.advantage.scale is None
    assert combinations({}) == [()]


def test_parts_are_crossed_and_everything_else_is_the_first_methods():
    made = plan(cross=("advantage", "objective"), of=("tempo", "reinforce"))
    labels = [each.label for each in made.contenders]
    assert labels == [
        "tempo.advantage + tempo.objective", "tempo.advantage + reinforce.objective",
        "reinforce.advantage + tempo.objective", "reinforce.advantage + reinforce.objective",
    ]  # fmt: skip
    tempo, reinforce = melior.get("tempo"), melior.get("reinforce")
    mixed = made.contenders[1].spec
    assert (mixed.advantage, mixed.objective, mixed.aggregate) == (
        tempo.advantage,
        reinforce.objective,
        tempo.aggregate,
    )


@pytest.mark.parametrize(
    ("methods", "request_", "said"),
    [
        (["grpo"], {}, "at least two"),
        (["grpo", "grpo"], {}, "'grpo' is there twice"),
        (["grpo", "rloo"], {"seeds": ()}, "seeds"),
        (["grpo", "rloo"], {"seeds": (1, 1)}, "different"),
        (["grpo", "rloo"], {"steps": 3, "budget": ("tokens", 9.0)}, "not both"),
        (["grpo", "rloo"], {"budget": ("token", 9.0)}, "tokens=NUMBER or seconds=NUMBER"),
        (["grpo", "rloo"], {"budget": ("tokens", 9.0), "equal_step_norm": True}, "needs steps"),
        (["grpo", "rloo"], {"settings": {**SMALL, "schedule": "linear"}, "budget": ("tokens", 9.0)}, "schedule"),
        (["grpo", "rloo"], {"settings": {**SMALL, "seed": 3}}, "seeds, not a seed"),
        (["grpo", "rloo"], {"grid": {"objective.clip.hihg": ("1",)}}, r"objective\.clip\.high"),
        (["grpo", "reinforce"], {"grid": {"objective.clip.high": ("0.2", "0.3")}}, "there is no"),
        (["grpo", "rloo"], {"grid": {"advantage.scale": ("sdt",)}}, "sdt"),
        (["grpo", "rloo"], {"tune": {"settings.lrr": ("1",)}}, r"settings\.lr"),
        ([], {"cross": ("advantag",), "of": ("grpo", "rloo")}, "did you mean 'advantage'"),
        ([], {"cross": ("advantage",), "of": ("grpo",)}, "at least two methods"),
        (["td3", "grpo"], {"settings": {}, "budget": ("tokens", 9.0)}, "samples no tokens"),
        (["td3", "td3"], {"settings": {}}, "there twice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_near_thing(methods, request_, said):
    with pytest.raises(UserError, match=said):
        plan(methods, **request_)


def test_words_of_the_command_become_axes_budgets_and_several():
    assert _axis("advantage.scale=std,none", "grid") == ("advantage.scale", ("std", "none"))
    assert _axis("settings.betas=[0.9,0.99],[0.8,0.99]", "grid")[1] == ("[0.9,0.99]", "[0.8,0.99]")
    assert _budget("tokens=200k") == ("tokens", 200_000) and _budget("seconds=60") == ("seconds", 60)
    assert spread(["--cross", "a", "b", "--of", "x,y", "--seeds", "2"]) == [
        "--cross", "a", "--cross", "b", "--of", "x", "--of", "y", "--seeds", "2",
    ]  # fmt: skip
    for wrong in ("advantage.scale", "=1", "lr=1,1", "lr=1,,2"):
        with pytest.raises(UserError):
            _axis(wrong, "grid")
    with pytest.raises(UserError):
        _budget("tokens=many")


def test_labels_become_folders():
    assert slug("tempo.advantage + kpo.objective") == "tempo.advantage-+-kpo.objective"
    assert slug("grpo high=0.28 scale=none") == "grpo-high=0.28-scale=none"

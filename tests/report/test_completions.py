"""Completions are ranked, told apart in tokens, and can do nothing."""

from __future__ import annotations

import pytest
import torch

from melior.report.coloring import Quantity, coloring
from melior.report.completions import Completion, Rollouts, _pieces, printable, read_completions
from melior.storage.rollouts import RolloutWriter, rollout_steps
from melior.trajectories import Trajectories


def completion(group: int, reward: float | None, advantage: float = 0.0) -> Completion:
    return Completion(group, "", "", reward, advantage, 1, {}, "", False, lambda: ())


def test_the_best_are_of_different_prompts_as_far_as_there_are_some():
    rows = [completion(0, 1.0, 0.5), completion(0, 1.0, 0.9), completion(1, 0.5), completion(2, None), completion(1, 0)]
    found = Rollouts(1, rows)
    assert found.best(2) == [rows[1], rows[2]]
    assert found.best(3) == [rows[1], rows[0], rows[2]]
    assert found.worst(1) == [rows[4]] and found.worst(0) == []
    assert found.worst(9) == [rows[4], rows[2], rows[0], rows[1]]
    assert found.groups == 3 and found.mean_reward == pytest.approx(0.625)


def test_rows_on_disk_come_back_with_what_each_token_was_given(tmp_path):
    logp = torch.tensor([[-0.5, -1.0, -2.0]])
    batch = Trajectories(
        mask=torch.tensor([[True, False, True]]),
        group=torch.tensor([3]),
        tokens=torch.tensor([[0, 1, 2]]),
        behaviour_logp=logp,
        proximal_logp=logp + 0.25,
        advantage=torch.tensor([[1.0, 9.0, 2.0]]),
        reward=torch.tensor([0.75]),
        components={"correct": torch.tensor([1.0]), "style": torch.tensor([float("nan")])},
        scores={"reference": {"logp": logp - 1}},
        columns={"length": torch.tensor([3]), "truncated": torch.tensor([True])},
        objects={"text": ("abc",), "prompt_text": ("say abc",), "answer": ("abd",)},
    )
    for step in (2, 4):
        RolloutWriter(tmp_path).write(step, batch)
    RolloutWriter(tmp_path).write(9, batch, "critic")
    assert rollout_steps(tmp_path) == [2, 4] and rollout_steps(tmp_path, "critic") == [9]
    (row,) = read_completions(tmp_path, 4).rows
    assert (row.group, row.prompt, row.text, row.answer, row.length) == (3, "say abc", "abc", "abd", 3)
    assert (row.reward, row.advantage, row.truncated, row.components) == (0.75, 1.5, True, {"correct": 1.0})
    assert [piece.text for piece in row.pieces] == ["a", "b", "c"]
    assert [piece.trained for piece in row.pieces] == [True, False, True]
    assert row.pieces[2].values == pytest.approx(
        {"advantage": 2.0, "log-probability": -2.0, "log-ratio to reference": 1.25, "trainer minus sampler": 0.25}
    )


def test_bytes_that_make_up_one_character_are_one_piece():
    data = "aé 🙂".encode()
    values = {"advantage": [float(i) for i in range(len(data))]}
    pieces = _pieces(
        list(data), "", [True] * len(data), values, lambda ids: bytes(ids).decode("utf-8", errors="replace")
    )
    assert [piece.text for piece in pieces] == ["a", "é", " ", "🙂"]
    assert [piece.values["advantage"] for piece in pieces] == [0, 2, 3, 7]


def test_a_tokenizer_that_drops_leading_spaces_loses_none_within_a_text():
    words = {1: " one", 2: " two"}
    pieces = _pieces([1, 2], "", [True, True], {}, lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert "".join(piece.text for piece in pieces) == "one two"


def test_nothing_that_is_printed_acts_on_a_terminal_or_turns_the_text():
    assert printable("a\x1b[31mb\r\x00\u202e\ud800c") == "a<U+001B>[31mb<U+000D><U+0000><U+202E><U+D800>c"
    assert printable("é\n\t🙂 中") == "é\n\t🙂 中"


def test_colors_deepen_with_the_size_and_tell_the_sign():
    both = Quantity("q0", "advantage", "", 3.0, two_sided=True)
    assert [both.level(value) for value in (-9, -3, -1.5, -0.1, 0, 0.5, 2, 3)] == [-3, -3, -2, 0, 0, 1, 2, 3]
    assert both.legend[0] == (-3, "-3") and both.legend[-1] == (3, "3")
    one = Quantity("q1", "log-probability", "", 3.0, two_sided=False)
    assert one.level(-3) == 3 and one.legend == [(0, "0"), (1, "-1"), (2, "-2"), (3, "-3")]


def test_the_first_color_is_one_that_tells_tokens_apart():
    def row(group: int, advantages: list[float]) -> Completion:
        values = {"advantage": advantages, "log-probability": [-0.1, -0.2]}
        return Completion(
            group, "", "ab", 1.0, 1.0, 2, {}, "", False, lambda: _pieces([0, 1], "ab", [True, True], values, None)
        )

    same = coloring([(Rollouts(1, [row(0, [1.0, 1.0]), row(1, [2.0, 2.0])]), 1)])
    assert [q.name for q in same.quantities] == ["advantage", "log-probability"] and same.start == "q1"
    assert coloring([(Rollouts(1, [row(0, [1.0, 2.0])]), 1)]).start == "q0"
    assert coloring([(Rollouts(1, [completion(0, 1.0)]), 1)]).quantities == ()


def test_rounding_between_sampler_and_trainer_is_not_colored():
    values = {"trainer minus sampler": [1e-6, -2e-6]}
    row = Completion(0, "", "ab", 1.0, 1.0, 2, {}, "", False, lambda: _pieces([0, 1], "ab", [True] * 2, values, None))
    found = coloring([(Rollouts(1, [row]), 1)])
    assert [token.classes for token in found.steps[0][1][0].tokens] == ["t", "t"]


def test_what_was_not_computed_for_a_token_is_left_out():
    pieces = _pieces([0, 1], "ab", [True, False], {"entropy": [0.5, float("nan")]}, None)
    assert [dict(piece.values) for piece in pieces] == [{"entropy": 0.5}, {}]


def test_whose_completions_they_are_is_told():
    told = [Rollouts(1, [], name).of_whom for name in ("policy", "hinter", "policy-dropped", "hinter-dropped")]
    dropped = ", not kept by the curriculum"
    assert told == ["", ", learner hinter", dropped, ", learner hinter" + dropped]

"""TEMPO, the method "tempo": the prefix tree's worked numbers, its identities, and what its direction is worth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.advantages import GroupRelative, PrefixTree
from melior.advantages.tree import prefix_values
from melior.records.catalogue import get
from melior.trajectories import Trajectories

TEMPO = get("tempo")


def batch_of(
    sequences: list[list[int]], rewards: list[float], group: list[int] | None = None, pad: int = 0
) -> Trajectories:
    width = max(map(len, sequences)) + 1
    length = torch.tensor([len(s) for s in sequences])
    return Trajectories(
        mask=torch.arange(width) < length[:, None],
        group=torch.tensor(group or [0] * len(sequences)),
        tokens=torch.tensor([s + [pad] * (width - len(s)) for s in sequences]),
        reward=torch.tensor(rewards, dtype=torch.float64),
        columns={"length": length},
    )


def values(batch: Trajectories) -> torch.Tensor:
    return prefix_values(batch.tokens, batch.present, batch.reward, batch.group)


WORKED = batch_of([[1, 2, 3], [1, 2, 4], [1, 5, 6], [7, 8, 9]], [1.0, 0.0, 0.0, 1.0])


def test_check_1_values_along_each_sequence():
    expected = [[1 / 2, 1 / 3, 1 / 2, 1], [1 / 2, 1 / 3, 1 / 2, 0], [1 / 2, 1 / 3, 0, 0], [1 / 2, 1, 1, 1]]
    torch.testing.assert_close(values(WORKED)[:, :4], torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(values(WORKED)[:, 4], values(WORKED)[:, 3])  # past the end the last value repeats


def test_check_1_worked_example():
    population = PrefixTree(eps=0.0, ddof=0)(WORKED).advantage[:, :3]
    expected = [[0.666667, 1.333333, 2], [-1.333333, -0.666667, -2], [-1.333333, -1.666667, -1], [2, 1, 1]]
    torch.testing.assert_close(population, torch.tensor(expected).double(), rtol=0, atol=1e-6)
    sample = TEMPO.advantage(WORKED).advantage[:, :3]
    expected = [
        [0.577350, 1.154701, 1.732051],
        [-1.154701, -0.577350, -1.732051],
        [-1.154701, -1.443376, -0.866025],
        [1.732051, 0.866025, 0.866025],
    ]
    torch.testing.assert_close(sample, torch.tensor(expected).double(), rtol=0, atol=5e-6)


@st.composite
def trees(draw: st.DrawFn, ended: bool = True) -> Trajectories:
    """Groups of short sequences over a small vocabulary: prefixes are shared, some sequences end early."""
    n = draw(st.integers(2, 9))
    sizes = st.integers(1, 4) if ended else st.just(4)
    sequences = [draw(sizes.flatmap(lambda k: st.lists(st.integers(0, 2), min_size=k, max_size=k))) for _ in range(n)]
    rewards = [float(draw(st.integers(0, 3))) for _ in range(n)]
    return batch_of(sequences, rewards, [draw(st.integers(0, 1)) for _ in range(n)])


@given(trees())
@settings(deadline=None, max_examples=60)
def test_values_are_those_of_a_dictionary_of_prefixes(batch):
    found = values(batch)
    sequences = [row[:n].tolist() for row, n in zip(batch.tokens, batch.length.tolist(), strict=True)]
    for i, sequence in enumerate(sequences):
        for t in range(len(sequence) + 1):
            sharing = [
                float(r)
                for other, r, g in zip(sequences, batch.reward, batch.group, strict=True)
                if g == batch.group[i] and other[:t] == sequence[:t] and len(other) >= t
            ]
            assert float(found[i, t]) == pytest.approx(sum(sharing) / len(sharing), abs=1e-12)


@given(trees())
@settings(deadline=None, max_examples=25)
def test_checks_2_to_4_differences_telescope_and_vanish_where_nothing_branches(batch):
    found, t = values(batch), batch.tokens.shape[1]
    difference = found[:, 1:] - found[:, :-1]
    sequences = [
        (int(g), tuple(row[:n].tolist()))
        for g, row, n in zip(batch.group, batch.tokens, batch.length.tolist(), strict=True)
    ]
    for i, (g, sequence) in enumerate(sequences):
        mean = batch.reward[batch.group == g].mean()
        if sum(h == g and s[: len(sequence)] == sequence for h, s in sequences) == 1:  # check 2: nobody shares it
            assert float(difference[i].sum()) == pytest.approx(float(batch.reward[i] - mean), abs=1e-12)
        for k in range(t):
            through = [s for h, s in sequences if h == g and s[:k] == sequence[:k]]
            if len(sequence) <= k or len({s[: k + 1] for s in through}) == 1:
                assert difference[i, k] == 0
            if all(len(s) > k for s in through):  # check 4
                rows = [j for j, (h, s) in enumerate(sequences) if h == g and s[:k] == sequence[:k]]
                assert float(difference[rows, k].mean()) == pytest.approx(0, abs=1e-12)


def test_check_5_identical_sequences_are_grpo():
    batch = batch_of([[1, 2]] * 3, [1.0, 0.0, 0.0])
    torch.testing.assert_close(TEMPO.advantage(batch).advantage, GroupRelative()(batch).advantage, rtol=0, atol=0)


def test_without_a_shared_token_the_first_is_doubled_and_the_rest_is_grpo():
    batch = batch_of([[1, 2], [3, 4], [5, 6]], [1.0, 0.0, 0.5])
    tempo, grpo = TEMPO.advantage(batch).advantage, GroupRelative()(batch).advantage
    torch.testing.assert_close(tempo[:, 0], 2 * grpo[:, 0])
    torch.testing.assert_close(tempo[:, 1], grpo[:, 1])


# ---- edges


def test_equal_rewards_and_a_group_of_one_have_no_advantage():
    for reward in (0.1, 1.0):
        assert not TEMPO.advantage(batch_of([[1, 2], [1, 3], [1, 2]], [reward] * 3)).advantage.any()
    assert not TEMPO.advantage(batch_of([[1, 2, 3]], [1.0])).advantage.any()


def test_padding_is_never_part_of_a_prefix():
    """[1] ended and [1, 0] went on with the token that pads: they are different prefixes."""
    for pad in (0, 7):
        batch = batch_of([[1], [1, 0], [1, 0]], [1.0, 0.0, 0.5], pad=pad)
        torch.testing.assert_close(values(batch)[0, :3], torch.tensor([0.5, 0.5, 0.5]).double())
        torch.testing.assert_close(values(batch)[1, :3], torch.tensor([0.5, 0.5, 0.25]).double())


def test_groups_do_not_share_prefixes_and_rows_may_be_shuffled():
    batch = batch_of([[1, 2], [1, 3], [1, 2], [1, 3]], [1.0, 0.0, 5.0, 5.0], [4, 4, 9, 9])
    assert not TEMPO.advantage(batch).advantage[2:].any()
    order = torch.tensor([3, 0, 2, 1])
    torch.testing.assert_close(TEMPO.advantage(batch.rows(order)).advantage, TEMPO.advantage(batch).advantage[order])


def test_a_row_without_reward_is_dropped_before_the_tree_is_built():
    with_nan = batch_of([[1, 2], [1, 3], [1, 2, 4]], [1.0, 0.0, float("nan")])
    out = TEMPO.advantage(with_nan).advantage
    torch.testing.assert_close(out[:2, :2], TEMPO.advantage(batch_of([[1, 2], [1, 3]], [1.0, 0.0])).advantage[:, :2])
    assert not out[2].any() and out.isfinite().all()


def test_a_turn_that_an_environment_wrote_is_part_of_the_prefix_but_not_trained():
    batch = batch_of([[1, 5, 2], [1, 6, 2]], [1.0, 0.0])
    masked = batch.with_(mask=batch.mask & (torch.arange(4) != 1))
    out = TEMPO.advantage(masked).advantage
    assert out[:, 1].tolist() == [0.0, 0.0]
    assert torch.equal(out[:, [0, 2]], TEMPO.advantage(batch).advantage[:, [0, 2]])


# ---- check 6: the direction, at equal step norm


def directions(seeds: int, generator: torch.Generator, logits: torch.Tensor, reward, part, g: int = 16) -> torch.Tensor:
    """[seeds, T, V] ascent directions of one group each, of a policy with one softmax a position and no context."""
    s, t, v = logits.shape
    p = logits.softmax(-1)
    tokens = torch.multinomial(p.view(s * t, v), g, replacement=True, generator=generator).view(s, t, g).transpose(1, 2)
    flat = tokens.reshape(s * g, t)
    batch = Trajectories(
        mask=torch.ones(s * g, t, dtype=torch.bool),
        group=torch.arange(s).repeat_interleave(g),
        tokens=flat,
        reward=reward(flat).double(),
    )
    advantage = part(batch).advantage.view(s, g, t)
    chosen = torch.nn.functional.one_hot(tokens, v).double() - p[:, None]
    return (advantage[..., None] * chosen).mean(1)


def cosine(part, reward) -> tuple[float, float]:
    logits = torch.zeros(1500, 6, 2, dtype=torch.float64)
    grpo, mine = (
        directions(1500, torch.Generator().manual_seed(0), logits, reward, x).flatten(1)
        for x in (GroupRelative(), part)
    )
    used = grpo.norm(dim=1) > 0
    mean = grpo.mean(0, keepdim=True)
    return tuple(float(torch.cosine_similarity(x[used], mean).mean()) for x in (grpo, mine))  # type: ignore[return-value]


def test_check_6a_early_decisions_get_a_better_direction_and_late_ones_a_worse():
    early = cosine(TEMPO.advantage, lambda y: (y[:, 0] == 0) & (y[:, 1] == 1))
    late = cosine(TEMPO.advantage, lambda y: y[:, 5] == 0)
    assert early == pytest.approx((0.836, 0.935), abs=0.01)
    assert late == pytest.approx((0.871, 0.766), abs=0.01)


def test_check_6b_at_equal_step_norm_it_wins_and_irrelevant_tokens_drift_less():
    def success(y: torch.Tensor) -> torch.Tensor:
        return (y[:, 0] == 0) & (y[:, 1] == 1)

    marks: dict[str, list[float]] = {}
    for name, part in (("grpo", GroupRelative()), ("tempo", TEMPO.advantage)):
        logits, generator = torch.zeros(40, 6, 2, dtype=torch.float64), torch.Generator().manual_seed(1)
        marks[name] = []
        for step in range(1, 41):
            move = directions(40, generator, logits, success, part)
            norm = move.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
            logits = logits + 0.15 * move / norm * (norm > 1e-9)
            if step in (10, 20, 40):
                p = logits.softmax(-1)
                marks[name].append(float((p[:, 0, 0] * p[:, 1, 1]).mean()))
        marks[name].append(float(logits[:, 2:].abs().mean()))
    for ours, theirs in zip(marks["tempo"][:3], marks["grpo"][:3], strict=True):
        assert ours > theirs
    assert marks["tempo"][3] < marks["grpo"][3]

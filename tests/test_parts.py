"""A part is a value: rules 1, 2 and 5 of the design, and the algebra of transforms and terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, fields
from types import SimpleNamespace

import pytest
import torch

from melior.advantages import GroupRelative, LeaveOneOut, PositiveOnly, Whiten
from melior.objectives import NLL, Clip, Divergence, EntropyBonus, ReferenceKL, SequenceMean, TokenMean, ValueLoss
from melior.objectives.heads import ReverseKL
from melior.parts import (
    Aggregate,
    AsIs,
    Blend,
    Chain,
    Curriculum,
    Evaluation,
    Memory,
    Mix,
    Need,
    Objective,
    Part,
    Ratio,
    Rollout,
    Term,
    Transform,
    Update,
)
from melior.records.catalogue import entries
from melior.trajectories import Trajectories
from toys import language_batch


@dataclass(frozen=True)
class Marks(Transform):
    """Writes a column and an advantage."""

    value: float
    column: str = "mark"

    def __call__(self, batch: Trajectories) -> Trajectories:
        marked = batch.column(**{self.column: torch.full((len(batch),), self.value)})
        return marked.with_(advantage=torch.full_like(batch.mask, 1.0, dtype=torch.float64) * self.value)


@dataclass(frozen=True)
class Reads(Transform):
    reads = (Need("hidden", on="batch"),)

    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch


# ---- rule 1: a part is a frozen value


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Clip(), "Clip(low=0.2, high=0.2)"),
        (Clip(0.2, 0.28) + 0.001 * ReferenceKL("k3"),
         "Clip(low=0.2, high=0.28) + 0.001 * ReferenceKL(estimator='k3', scorer='reference')"),
        (GroupRelative(None) | Whiten(3),
         "GroupRelative(scale=None, eps=1e-06, ddof=1, floor=0.0, single='zero') | "
         "Whiten(clamp=3, over='tokens', eps=1e-08, ddof=1, floor=0.0, single='zero')"),
        (0.7 * LeaveOneOut() + 0.3 * AsIs(), "0.7 * LeaveOneOut() + 0.3 * AsIs()"),
        (LeaveOneOut() + AsIs(), "LeaveOneOut() + AsIs()"),
        (0.5 * (LeaveOneOut() | AsIs()) + AsIs(), "0.5 * (LeaveOneOut() | AsIs()) + AsIs()"),
        (2 * (0.5 * LeaveOneOut() + AsIs()), "1 * LeaveOneOut() + 2 * AsIs()".replace("1 * ", "")),
        (NLL().over(TokenMean("right")), "NLL().over(TokenMean(where='right'))"),
        (Objective(()), "Objective()"),
    ],
)  # fmt: skip
def test_rule_1_a_repr_is_documentation(part, text):
    assert repr(part) == text


def test_rule_1_a_repr_of_plain_parts_is_their_expression():
    for part in (Clip(0.1, dual=3.0), GroupRelative(None), Clip() + 0.04 * ReferenceKL(), GroupRelative() | Whiten(3)):
        assert eval(repr(part)) == part  # a test of the text only; the library evaluates none


def test_rule_1_equality_is_comparison_of_fields():
    assert Clip(0.2, 0.28) == Clip(high=0.28) and Clip() != Clip(0.3)
    assert GroupRelative() != GroupRelative(None) and hash(Clip()) == hash(Clip())
    assert 0.5 * Clip() + ReferenceKL() == 0.5 * Clip() + ReferenceKL()
    assert LeaveOneOut() | AsIs() == LeaveOneOut() | AsIs()


def subclasses(kind: type) -> list[type]:
    return [deep for child in kind.__subclasses__() for deep in (child, *subclasses(child))]


def test_rule_1_every_shipped_part_is_a_frozen_dataclass():
    entries()  # imports whatever the catalogue is made of, so that every base has its subclasses
    shipped = [kind for kind in subclasses(Part) if kind.__module__.startswith("melior.")]
    stages = {Transform, Ratio, Aggregate, Term, Rollout, Update, Memory, Blend}
    bases = stages | {base for kind in shipped for base in kind.__bases__}  # what others are built on need not be one
    assert len(shipped) > 30
    for kind in set(shipped) - bases:
        assert "__dataclass_params__" in kind.__dict__ and kind.__dataclass_params__.frozen, kind
        assert kind.__repr__ is not object.__repr__


def test_rule_1_fields_cannot_be_assigned():
    with pytest.raises(FrozenInstanceError):
        Clip().low = 0.1  # type: ignore[misc]


@pytest.mark.parametrize("base", [Transform, Ratio, Aggregate, Term, Rollout, Update, Blend])
def test_rule_1_an_unwritten_part_says_what_to_write(base):
    @dataclass(frozen=True)
    class Unwritten(base):
        pass

    batch, now = language_batch(), Evaluation(torch.zeros(11, 6))
    arguments = {
        Transform: (batch,),
        Aggregate: (now.logp, batch),
        Rollout: (SimpleNamespace(), []),
        Update: (SimpleNamespace(), batch, Objective(()), SimpleNamespace()),
        Blend: ({}, SimpleNamespace()),
    }.get(base, (now, batch))
    with pytest.raises(NotImplementedError, match=f"an? {base.__name__} is a part of its own: write __call__"):
        Unwritten()(*arguments)


# ---- transforms


def test_a_chain_runs_in_order_and_is_flat():
    chain = Marks(1.0, "a") | Marks(2.0, "b") | Whiten()
    assert isinstance(chain, Chain) and len(chain.parts) == 3
    assert chain == Marks(1.0, "a") | (Marks(2.0, "b") | Whiten())
    out = (Marks(1.0) | Marks(2.0))(language_batch())
    assert out.columns["mark"].unique().tolist() == [2.0]


def test_a_mix_is_the_weighted_sum_of_advantages():
    batch = language_batch()
    mixed = (0.7 * GroupRelative() + 0.3 * LeaveOneOut())(batch).advantage
    expected = 0.7 * GroupRelative()(batch).advantage + 0.3 * LeaveOneOut()(batch).advantage
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-15)
    assert mixed.dtype == torch.float64


def test_a_mix_of_three_is_flat_and_its_weights_multiply():
    three = 2 * (0.5 * LeaveOneOut() + GroupRelative()) + PositiveOnly()
    assert [weight for weight, _ in three.parts] == [1.0, 2.0, 1.0]
    assert all(not isinstance(part, Mix) for _, part in three.parts)


def test_a_mix_merges_columns():
    out = (Marks(1.0, "a") + 2 * Marks(1.0, "b"))(language_batch())
    assert {"a", "b", "user"} <= set(out.columns)
    assert bool((out.advantage == 3.0).all())


def test_two_different_values_for_one_column_are_an_error():
    with pytest.raises(ValueError, match="different values into column 'mark'"):
        (Marks(1.0) + Marks(2.0))(language_batch())
    same = (Marks(1.0) + Marks(1.0))(language_batch())
    assert same.columns["mark"].unique().tolist() == [1.0]


@pytest.mark.parametrize("first", [True, False])
def test_in_a_mix_one_part_may_overwrite_a_column_of_the_batch(first):
    batch = language_batch().column(mark=torch.zeros(11))
    parts = (Marks(1.0), GroupRelative())
    out = (parts[0] + parts[1] if first else parts[1] + parts[0])(batch)
    assert out.columns["mark"].unique().tolist() == [1.0]


def test_a_mix_of_a_part_without_advantage_is_an_error():
    with pytest.raises(ValueError, match="computes none"):
        (GroupRelative() + AsIs())(language_batch().with_(advantage=None))


# ---- objectives


def test_terms_add_and_scale():
    objective = Clip() + 0.5 * (ReferenceKL() + 2 * EntropyBonus())
    assert [w.weight for w in objective.terms] == [1.0, 0.5, 1.0]
    assert (2 * objective).terms[1].weight == 1.0
    assert (Clip() + ReferenceKL()).terms == (1.0 * Clip() + ReferenceKL()).terms
    assert len((objective + objective).terms) == 6


def test_a_term_may_have_an_aggregate_of_its_own():
    batch = language_batch()
    now = Evaluation(torch.full((11, 6), -1.0, dtype=torch.float64))
    objective = 3 * NLL().over(TokenMean("right")) + 0.5 * NLL()
    assert objective(now, batch, SequenceMean()).value.item() == pytest.approx(3.5)
    assert (0.0 * NLL())(now, batch, TokenMean()).value.item() == 0.0


def test_an_objective_reports_what_its_terms_report_without_gradient():
    batch = language_batch()
    logp = torch.full((11, 6), -1.0, dtype=torch.float64, requires_grad=True)
    loss = (Clip() + 0.1 * ReferenceKL())(Evaluation(logp), batch, TokenMean())
    assert {"clip_low", "clip_high", "kl_reference"} <= set(loss.metrics)
    assert loss.value.requires_grad and not any(figure.requires_grad for figure in loss.metrics.values())


# ---- rule 5: parts declare what they read


def test_rule_5_composites_need_the_union():
    assert Clip().needs() == frozenset() and GroupRelative().needs() == frozenset()
    assert (Clip() + 0.1 * ReferenceKL(scorer="teacher")).needs() == {Need("logp", "batch", "teacher")}
    assert (Reads() | Whiten()).needs() == {Need("hidden", "batch")}
    assert (0.5 * Reads() + GroupRelative()).needs() == {Need("hidden", "batch")}
    both = Clip() + ValueLoss() + Divergence("teacher", k=4)
    assert both.needs() == {Need("value"), Need("reverse_kl_teacher_top4", head=ReverseKL("teacher", 4))}


def test_rule_5_walk_finds_every_part():
    found = {type(part).__name__ for part in (Clip() + 0.1 * NLL().over(TokenMean())).walk()}
    assert found == {"Objective", "Weighted", "Clip", "TokenRatio", "NLL", "TokenMean"}


def test_rule_5_parts_in_tuples_and_mappings_are_children():
    @dataclass(frozen=True)
    class Holds(Transform):
        some: tuple[Transform, ...]
        named: Mapping[str, Transform]

        def __call__(self, batch: Trajectories) -> Trajectories:
            return batch

    assert Holds((Reads(),), {}).needs() == Holds((), {"x": Reads()}).needs() == {Need("hidden", "batch")}


# ---- rule 2: acting parts get handles


def test_rule_2_the_base_curriculum_asks_the_run_and_keeps_everything():
    prompts = [object()]
    assert Curriculum().select(SimpleNamespace(next_prompts=lambda: prompts)) is prompts
    assert Curriculum().keep(language_batch()).tolist() == [True] * 11


def test_rule_2_a_memory_that_only_remembers_changes_no_batch():
    @dataclass(frozen=True)
    class Counts(Memory[int]):
        def init(self, run: object) -> int:
            return 0

    batch = language_batch()
    assert Counts().recall(3, batch) is batch and Counts().observe(3, batch, {}) == 3
    with pytest.raises(NotImplementedError, match=r"write init\(run\)"):
        Memory.init(Counts(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["advantages", "objectives", "rewards", "teachers"])
def test_rule_2_no_pure_part_imports_a_loop_or_a_handle(stage):
    import ast
    from pathlib import Path

    import melior.parts

    folder = Path(melior.parts.__file__).parent / stage
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith(("melior.loops", "melior.learner", "melior.run", "melior.api")), (file, name)


def test_a_part_lists_its_fields_only():
    assert [f.name for f in fields(Clip)] == ["low", "high", "ratio", "width", "dual"]

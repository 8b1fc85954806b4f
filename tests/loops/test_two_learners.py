"""Two learners are two records in the same loop: a hinter sees the lock and whispers a symbol, the policy hears only
that symbol and turns a key. Both are rewarded when the key fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import tiny_models
from melior.advantages import Reward
from melior.advantages.groups import group_moments
from melior.engines.sampler import sample
from melior.errors import RunError
from melior.learner import Learner
from melior.loops.given import Given
from melior.loops.iteration import iterate
from melior.loops.language import LanguageTrainee, build
from melior.loops.trainee import RunTrainee
from melior.memories import RunningMean
from melior.method import Method
from melior.methods.group_relative import GRPO
from melior.parts import Blend, Objective, Rollout, Update
from melior.policies.table import Table
from melior.prompts import Prompt, Prompts
from melior.request import resolve_request
from melior.run import Run, World
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from runs import put_away
from toys import learner_of

CODE = torch.tensor([2, 0, 1, 2])  # the key of each lock
SYMBOLS = 3


@dataclass(frozen=True)
class HintThenAnswer(Rollout):
    """The hinter's hints become the policy's prompts; a hint earns the share of answers that fit.

    Attributes:
        trains: whose batches are handed back.
    """

    hints: int = 4
    answers: int = 4
    trains: tuple[str, ...] = ("policy", "hinter")

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        hinted = run.sample(prompts, self.hints, policy="hinter")
        locks = [prompt for prompt in prompts for _ in range(self.hints)]
        heard = [
            replace(lock, slot=slot, ids=(int(hint),))
            for slot, (lock, hint) in enumerate(zip(locks, hinted.tokens[:, 0], strict=True))
        ]
        answered = run.score(run.sample(heard, self.answers, policy="policy"), "policy")
        success = group_moments(answered.reward, answered.group)[0][:: self.answers]
        hinted = hinted.with_(components={"understood": success}, outcome=success)
        return {name: {"policy": answered, "hinter": hinted}[name] for name in self.trains}


class Locks(World):
    """All four locks in every batch."""

    def __init__(self) -> None:
        self.position = 0

    def next_prompts(self, run: Run, n: int | None, split: str) -> Prompts:
        self.position += len(CODE)
        return [Prompt(lock, (lock,), index=lock) for lock in range(len(CODE))]

    def sample(
        self, run: Run, prompts: Prompts, n: int, policy: str, blend: Blend | None, greedy: bool
    ) -> Trajectories:
        actor: Any = run.learner(policy).policy
        noise = torch.rand(len(prompts) * n, 1, generator=run.rng(policy), dtype=torch.float64)
        drawn = sample(actor, [prompt.ids for prompt in prompts], n, noise, temperature=1.0)
        each = [prompt for prompt in prompts for _ in range(n)]
        return Trajectories(
            mask=torch.ones_like(drawn.tokens, dtype=torch.bool),
            group=torch.tensor([prompt.slot for prompt in each]),
            prompt=tuple(prompt.ids for prompt in each),
            tokens=drawn.tokens,
            behaviour_logp=drawn.logp,
            columns={"lock": torch.tensor([prompt.index for prompt in each])},
        )

    def judge(self, run: Run, batch: Trajectories) -> Trajectories:
        if batch.components:
            return batch
        fits = (batch.tokens[:, 0] == CODE[batch.columns["lock"]]).double()
        return batch.with_(components={"fits": fits}, outcome=fits)

    def figures(self, run: Run, batch: Trajectories) -> Mapping[str, float]:
        return {"reward": float(batch.reward.mean()), "rows": float(len(batch))}

    def state(self) -> Mapping[str, Any]:
        return {"position": self.position}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


REMEMBERING = GRPO.record.but(
    "remembering", memory={"baseline": RunningMean()}, advantage=Reward(baseline="running_mean")
)


def toy(
    mine: Method = GRPO.record,
    theirs: Method = GRPO.record,
    trains: tuple[str, ...] = ("policy", "hinter"),
    kind: str = "sgd",
) -> Run:
    method = mine.but("toy", rollout=HintThenAnswer(trains=trains), others={"hinter": theirs})
    tables = {"policy": (SYMBOLS, 4.0), "hinter": (len(CODE), 8.0)}
    learners = {}
    for name, (prompts, lr) in tables.items():
        table = Table(prompts, 1, SYMBOLS, ("prompt",), dtype=torch.float64)
        with torch.no_grad():
            table.logits.copy_(0.5 * torch.randn(table.logits.shape, generator=torch.Generator().manual_seed(prompts)))
        learners[name] = learner_of(table, method.of(name).aggregate, lr=lr, kind=kind)
    run = Run(method, LanguageSettings(), Locks(), learners)
    run.prepare()
    return run


def weights(run: Run, name: str) -> torch.Tensor:
    return run.learner(name).vector().clone()


def test_each_learner_moves_by_its_own_batch_only():
    both, start = toy(), toy()
    iterate(both)
    for name, other in (("policy", "hinter"), ("hinter", "policy")):
        alone = toy(trains=(name,))
        iterate(alone)
        assert not torch.equal(weights(alone, name), weights(start, name))
        assert torch.equal(weights(alone, name), weights(both, name))
        assert torch.equal(weights(alone, other), weights(start, other))


def test_the_hinters_step_is_its_records_gradient_on_its_batch():
    run, start = toy(), toy()
    iterate(run)
    batch = run.batches["hinter"]
    assert torch.equal(batch.reward, batch.components["understood"])
    p = start.learner("hinter").policy.logits.detach()[:, 0, 0].softmax(-1)
    lock = batch.columns["lock"]
    score = torch.nn.functional.one_hot(batch.tokens[:, 0], SYMBOLS) - p[lock]
    climb = torch.zeros_like(p).index_add(0, lock, batch.advantage * score) / len(batch)
    moved = (weights(run, "hinter") - weights(start, "hinter")).view_as(p)
    torch.testing.assert_close(moved, 8.0 * climb, rtol=0, atol=1e-12)


def test_figures_bear_the_name_of_further_learners():
    figures = iterate(toy())
    own = {name for name in figures if not name.startswith("hinter/")}
    assert {"reward", "loss", "grad_norm", "kl_reference", "skipped"} <= own
    assert {name.removeprefix("hinter/") for name in figures if name.startswith("hinter/")} == own
    assert (figures["rows"], figures["hinter/rows"]) == (64.0, 16.0)
    assert figures["loss"] != figures["hinter/loss"]


def test_references_and_memories_are_kept_apart():
    forgetful = REMEMBERING.but("forgetful", memory={"baseline": RunningMean(decay=0.5)})
    run = toy(mine=REMEMBERING, theirs=forgetful)
    assert set(run.scorers) == {"policy/reference", "hinter/reference"}
    assert set(run.state) == {"baseline", "hinter/baseline"}
    first = iterate(run)
    for key, reward in (("baseline", first["reward"]), ("hinter/baseline", first["hinter/reward"])):
        assert run.state[key]["total"] / run.state[key]["weight"] == pytest.approx(reward)
    assert [run.state[key]["weight"] for key in ("baseline", "hinter/baseline")] == pytest.approx([0.1, 0.5])
    for name in ("policy", "hinter"):
        reference: Any = run.scorer("reference", name)
        assert torch.equal(reference.logits, toy().learner(name).policy.logits)


def test_a_memory_of_one_learner_is_not_the_others():
    run = toy(theirs=REMEMBERING)
    iterate(run)
    assert set(run.state) == {"hinter/baseline"}
    assert "running_mean" in run.batches["hinter"].columns
    assert "running_mean" not in run.batches["policy"].columns


def test_a_restored_run_goes_on_with_the_same_numbers(tmp_path):
    def fresh() -> RunTrainee:
        return RunTrainee(toy(mine=REMEMBERING, theirs=REMEMBERING, kind="adamw"))

    first = fresh()
    for _ in range(2):
        first.advance()
    take_up = put_away(first, tmp_path)
    expected = [first.advance() for _ in range(2)]
    second = fresh()
    take_up(second)
    assert [second.advance() for _ in range(2)] == expected
    assert set(first.state()["learners"]) == {"policy", "hinter"}
    assert (tmp_path / "model" / "hinter" / "table.safetensors").exists()


@dataclass(frozen=True)
class Scripted(Update):
    """Steps, rests or fails."""

    what: str = "step"

    def __call__(self, learner: Learner, batch: Trajectories, objective: Objective, run: Run) -> dict[str, float]:
        learner.gradient(objective, batch)
        if self.what == "fail":
            raise RunError("the second learner fails")
        return learner.step() if self.what == "step" else {}


@pytest.mark.parametrize(
    ("first", "remembers", "intact"), [("step", False, False), ("rest", True, False), ("fail", True, True)]
)
def test_a_failure_after_the_first_learner_changed_anything_is_not_saved_over_it(first, remembers, intact):
    mine = (REMEMBERING if remembers else GRPO.record).but("mine", update=Scripted(first))
    trainee = LanguageTrainee(toy(mine=mine, theirs=GRPO.record.but("theirs", update=Scripted("fail"))))
    before = copy.deepcopy(trainee.state())
    with pytest.raises(RunError, match="second learner fails"):
        trainee.advance()
    assert trainee.intact == intact
    same = all(torch.equal(weights(trainee.run, n), weights(toy(), n)) for n in ("policy", "hinter"))
    same &= trainee.state()["memory"] == before["memory"]
    assert same == intact
    if intact:
        assert trainee.run.world.position == before["world"]["position"]
        assert not any(learner.grad_vector().any() for learner in trainee.run.learners.values())


def test_a_model_object_is_not_shared_by_two_learners():
    model = tiny_models.network(dtype=torch.float32)
    method = GRPO.record.but("two", others={"hinter": GRPO.record})
    given = {"data": "<rows>", "reward": ("length:9",), "prompts": 1, "max_tokens": 2}
    settings = resolve_request(method, given).settings
    run = build(method, settings, Given(model=(model, tiny_models.tokenizer()), data=[{"prompt": "a"}]))
    mine, theirs = run.learner("policy").policy.network, run.learner("hinter").policy.network
    assert mine is model and theirs is not model
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))


def test_the_two_agree_on_a_code():
    run = toy()
    rewards = [iterate(run)["reward"] for _ in range(40)]
    assert rewards[0] < 0.5
    assert sum(rewards[-10:]) / 10 > 0.85

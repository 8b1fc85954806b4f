"""The run: what acting parts may ask. Scorers and their contexts, memories, learners, credit, keyed randomness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch

from melior.advantages import Reward, TerminalReward
from melior.errors import RunError, UserError
from melior.learner import Learner
from melior.loops.iteration import iterate
from melior.loops.language import check_likelihood
from melior.methods.group_relative import GRPO
from melior.methods.policy_gradient import REINFORCE
from melior.objectives import NLL, Clip, Divergence, EntropyBonus, PolicyGradient, ReferenceKL, TokenMean
from melior.objectives.heads import Entropy
from melior.parts import AsIs, Memory, Need, Rollout, Scorer, Stats, Transform
from melior.policies.policy import Policy
from melior.prompts import Prompts
from melior.run import Run
from melior.settings import LanguageSettings
from melior.trajectories import Trajectories
from toys import HandMadeWorld, TinyNetwork, language_batch, learner_of, random_table, run_of, table_batch

PLAIN = REINFORCE.record.but("plain", reward=AsIs())


def unscored() -> Trajectories:
    """The random batch as a sampler leaves it, known to no scorer."""
    return language_batch().with_(proximal_logp=None, scores={}, advantage=None, features={})


@dataclass(frozen=True)
class Knows(Transform):
    """Reads quantities before credit is assigned, and keeps what it saw."""

    wanted: tuple[Need, ...]

    def needs(self) -> frozenset[Need]:
        return frozenset(self.wanted)

    def __call__(self, batch: Trajectories) -> Trajectories:
        return batch.with_(advantage=torch.zeros_like(batch.behaviour_logp))


# ---- rule 5: the loop computes what is declared, and nothing else


def test_rule_5_nothing_is_computed_that_nobody_reads():
    run = run_of(PLAIN, TinyNetwork(), rows_per_micro=4)
    known = run.know(unscored())
    assert known.proximal_logp is None and known.scores == {} and known.features == {}
    assert run.scorers == {}


@pytest.mark.parametrize("rows", [1, 4, 0])
def test_rule_5_what_is_declared_is_there_before_credit(rows):
    wanted = (
        Need("logp", "batch", "reference"),
        Need("logp", "batch", "proximal"),
        Need("value", "batch"),
        Need("hidden", "batch"),
        Need("entropy", "batch", head=Entropy()),
        Need("entropy", "batch", "reference", head=Entropy()),
    )
    policy = TinyNetwork()
    run = run_of(PLAIN.but("mine", advantage=Knows(wanted)), policy, rows_per_micro=rows)
    batch = unscored()
    batch = run.know(batch.with_(columns={k: v for k, v in batch.columns.items() if k != "value"}))
    whole = policy.evaluate(batch, frozenset(replace(need, scorer="policy") for need in wanted))
    for found, expected in (
        (batch.proximal_logp, whole.logp),
        (batch.scores["reference"]["logp"], whole.logp),
        (batch.scores["reference"]["entropy"], whole["entropy"]),
        (batch.columns["entropy"], whole["entropy"]),
        (batch.columns["value"], whole["value"]),
    ):
        assert not found.requires_grad
        torch.testing.assert_close(found[batch.present], expected.detach()[batch.present])
    torch.testing.assert_close(batch.features["hidden"], whole["hidden"].detach())


def test_rule_5_what_is_known_is_not_computed_again():
    policy = TinyNetwork()
    run = run_of(PLAIN.but("mine", advantage=Knows((Need("logp", "batch", "reference"),))), policy)
    marked = torch.full((11, 6), 5.0, dtype=torch.float64)
    assert run.know(unscored().scored("reference", logp=marked)).scores["reference"]["logp"] is marked


def test_rule_5_an_entropy_is_asked_for_although_the_proximal_policy_is_known():
    need = Need("entropy", "batch", "proximal", head=Entropy())
    run = run_of(PLAIN.but("mine", advantage=Knows((need,))), TinyNetwork())
    batch = run.know(unscored().with_(proximal_logp=torch.zeros(11, 6, dtype=torch.float64)))
    assert "entropy" in batch.columns


def test_rule_5_one_stage_may_be_asked_alone():
    method = PLAIN.but("mine", advantage=Knows((Need("hidden", "batch"),)), teacher=TerminalReward(0.1))
    run = run_of(method, TinyNetwork())
    assert run.know(unscored(), stage="reward").features == {}
    assert set(run.know(unscored(), stage="teacher").scores) == {"reference"}


# ---- rule 6: other opinions are named scorers


def test_rule_6_the_reference_is_the_policy_at_the_start():
    policy = random_table(4, 6, 5)
    run = run_of(PLAIN.but("mine", objective=PolicyGradient() + ReferenceKL()), policy)
    before = run.logp("reference", unscored())
    with torch.no_grad():
        policy.logits.mul_(-1)
    assert torch.equal(run.logp("reference", unscored()), before)
    assert not torch.equal(run.logp("policy", unscored()), before)


def test_rule_6_live_snapshot_and_average_scorers():
    scorers = {
        "live": Scorer("live"),
        "old": Scorer("snapshot"),
        "slow": Scorer("average", decay=0.5),
        "file": Scorer("some/path"),
    }
    policy = random_table(4, 6, 5)
    run = run_of(PLAIN.but("mine", scorers=scorers), policy)
    batch, start = unscored(), policy.logits.detach().clone()
    assert run.scorer("live") is policy
    run.learner().gradient(1.0 * NLL(), batch)
    run.learner().step()
    assert torch.equal(run.scorer("old").logits, start)
    torch.testing.assert_close(run.scorer("slow").logits, (start + policy.logits.detach()) / 2)
    run.refresh("old")
    assert torch.equal(run.scorer("old").logits, policy.logits)
    assert torch.equal(run.scorer("file").logits, random_table(4, 8, 5, seed=len("some/path")).logits)


@pytest.mark.parametrize(("context", "prompts"), [("trained", [0, 1]), ("sampled", [2, 3]), ("hinted", [1, 0])])
def test_rule_6_and_9_a_scorer_judges_under_its_own_context(context, prompts):
    method = PLAIN.but(
        "mine", scorers={"teacher": Scorer(context=context)}, objective=PolicyGradient() + ReferenceKL(scorer="teacher")
    )
    policy = random_table(4, 3, 4)
    run = run_of(method, policy)
    batch = table_batch([0.0, 1.0], [[0, 1, 2], [3, 2, 1]], [0, 1])
    batch = batch.with_(sampled_prompt=((2,), (3,)), objects={"hinted": ((1,), (0,))})
    teacher = run.know(batch).scores["teacher"]["logp"]
    expected = policy.evaluate(batch.with_(prompt=tuple((p,) for p in prompts))).logp
    torch.testing.assert_close(teacher, expected.detach())


@pytest.mark.parametrize("rows", [1, 0])
def test_rule_6_and_9_heads_read_a_scorer_under_its_own_context(rows):
    """Self-distillation: the same weights, but the teacher has seen a hint."""
    scorers = {"teacher": Scorer("live", context="hinted")}
    method = PLAIN.but("mine", scorers=scorers, objective=1.0 * Divergence("teacher"), aggregate=TokenMean())
    policy = random_table(4, 3, 4)
    run = run_of(method, policy)
    run.learner().rows_per_micro = rows
    batch = table_batch([0.0, 1.0], [[0, 1, 2], [3, 2, 1]], [0, 1]).with_(objects={"hinted": ((2,), (3,))})
    loss = run.learner().gradient(method.objective, batch)
    p = policy.logits[policy._where(batch.prompt, batch.tokens)].log_softmax(-1)
    q = policy.logits[policy._where(batch.objects["hinted"], batch.tokens)].log_softmax(-1).detach()
    expected = (p.exp() * (p - q)).sum(-1).mean()
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(run.learner().grad_vector(), torch.autograd.grad(expected, policy.logits)[0].flatten())


def test_rule_6_a_context_that_no_column_holds_is_named():
    method = PLAIN.but(
        "mine", scorers={"teacher": Scorer(context="hint")}, objective=1.0 * ReferenceKL(scorer="teacher")
    )
    run = run_of(method, random_table(4, 3, 4))
    batch = table_batch([0.0], [[0, 1, 2]], [0]).with_(objects={"hints": ((2,),)})
    with pytest.raises(UserError, match=r"no object column 'hint'.*did you mean 'hints'"):
        run.know(batch)


def test_rule_6_a_scorer_that_nobody_described_is_refused_at_the_start():
    with pytest.raises(
        UserError, match=r"asks a model called 'teacher'; say which, with --set scorers.teacher.weights=PATH"
    ):
        run_of(PLAIN.but("mine", objective=1.0 * ReferenceKL(scorer="teacher")), TinyNetwork())
    with pytest.raises(RunError, match="no scorer is called 'refrence'; did you mean 'reference'"):
        run_of(GRPO.record, TinyNetwork()).scorer("refrence")


# ---- reward and credit


def test_a_scored_batch_is_not_judged_again():
    run = run_of(PLAIN, TinyNetwork())
    batch = language_batch()
    assert run.score(batch) is batch and run.world.judged == 0


def test_rule_9_rows_to_which_no_reward_applies_take_no_part():
    run = run_of(GRPO.record.but("mine", objective=Clip()), TinyNetwork())
    nothing = torch.tensor([torch.nan] * 11, dtype=torch.float64)
    right = language_batch().components["right"].index_fill(0, torch.tensor([0, 6]), torch.nan)
    batch = unscored().with_(reward=None, components={"right": right, "form": nothing})
    out = run.credit(batch)
    assert not out.mask[[0, 6]].any() and not out.advantage[[0, 6]].any()
    alone = run.credit(batch.rows([i for i in range(11) if i not in (0, 6)]))
    assert torch.equal(out.advantage[[i for i in range(11) if i not in (0, 6)]], alone.advantage)


def test_a_reward_stage_without_a_reward_is_an_error():
    with pytest.raises(RunError, match="'plain' computed no reward"):
        run_of(PLAIN, TinyNetwork()).score(unscored().with_(reward=None))


def test_an_advantage_that_is_not_finite_names_part_and_rows():
    run = run_of(PLAIN.but("mine", advantage=Reward("user")), TinyNetwork())
    batch = unscored()
    batch = batch.column(user=batch.columns["user"].index_fill(0, torch.tensor([2]), torch.inf))
    with pytest.raises(
        RunError, match=r"Reward\(baseline='user'\) gave a value that is not finite for rows \[2\] of step 1"
    ):
        run.credit(batch)


# ---- rule 4: state is a named slot


@dataclass(frozen=True)
class Tracker(Memory[dict[str, float]]):
    """A running mean of rewards, offered as a column."""

    def init(self, run: Run) -> dict[str, float]:
        return {"mean": 0.5}

    def recall(self, state: dict[str, float], batch: Trajectories) -> Trajectories:
        return batch.column(baseline=torch.full((len(batch),), state["mean"], dtype=torch.float64))

    def observe(self, state: dict[str, float], batch: Trajectories, stats: Stats) -> dict[str, float]:
        assert batch.reward is not None and "grad_norm" in stats
        return {"mean": float(batch.reward.mean())}


@dataclass(frozen=True)
class Fixed(Rollout):
    """Hands the world's batch to one or two learners."""

    to: tuple[str, ...] = ("policy",)

    def __call__(self, run: Run, prompts: Prompts) -> Mapping[str, Trajectories]:
        return {name: run.sample(prompts, 1, name) for name in self.to}


def test_rule_4_a_memory_is_recalled_before_credit_and_observes_after_the_update():
    method = PLAIN.but("mine", rollout=Fixed(), memory={"tracker": Tracker()}, advantage=Reward("baseline"))
    run = run_of(method, TinyNetwork(), unscored())
    assert run.state == {"tracker": {"mean": 0.5}}
    credited = run.credit(unscored())
    assert torch.equal(credited.advantage, (unscored().reward - 0.5)[:, None] * unscored().mask)
    iterate(run)
    assert run.state["tracker"]["mean"] == float(unscored().reward.mean()) and run.step == 1


# ---- rule 10: several learners are several records


def two_learners() -> Run:
    hinter = REINFORCE.record.but(
        "hinter", reward=AsIs(), memory={"tracker": Tracker()}, advantage=Reward("baseline"),
        scorers={"teacher": Scorer("live")}, objective=PolicyGradient() + 0.1 * ReferenceKL(scorer="teacher"),
    )  # fmt: skip
    method = PLAIN.but(
        "pair", rollout=Fixed(("policy", "hinter")), others={"hinter": hinter}, memory={"tracker": Tracker()}
    )
    learners: dict[str, Learner] = {
        "policy": learner_of(TinyNetwork(), TokenMean()),
        "hinter": learner_of(random_table(4, 6, 5), TokenMean()),
    }
    run = Run(method, LanguageSettings(), HandMadeWorld(unscored()), learners)
    run.prepare()
    return run


def test_rule_10_each_learner_has_its_own_record_state_and_scorers():
    run = two_learners()
    assert set(run.state) == {"tracker", "hinter/tracker"} and set(run.scorers) == {"hinter/teacher"}
    assert run.scorer("teacher", "hinter") is run.learner("hinter").policy
    assert "baseline" in run.credit(unscored(), "hinter").columns
    before = {name: learner.vector() for name, learner in run.learners.items()}
    metrics = iterate(run)
    assert all(not torch.equal(learner.vector(), before[name]) for name, learner in run.learners.items())
    assert {"loss", "hinter/loss", "hinter/kl_teacher"} <= set(metrics) and "kl_teacher" not in metrics


def test_an_unknown_learner_is_named():
    with pytest.raises(RunError, match="no learner is called 'hintr'; did you mean 'hinter'"):
        two_learners().learner("hintr")


# ---- the rest of the handle


def test_randomness_is_keyed_and_not_drawn_from_a_shared_stream():
    run = run_of(PLAIN, TinyNetwork(), seed=3)

    def draw(stream: str) -> float:
        return float(torch.rand((), generator=run.rng(stream)))

    first = draw("a")
    assert draw("b") != first and draw("a") == first
    run.step = 1
    second = draw("a")
    run.round = 1
    assert len({first, second, draw("a")}) == 3
    assert float(torch.rand((), generator=run_of(PLAIN, TinyNetwork(), seed=4).rng("a"))) != first


def test_sync_counts_versions():
    run = run_of(PLAIN, TinyNetwork())
    run.sync()
    run.sync()
    assert run.version == 2


def test_a_head_of_a_scorer_without_logits_is_refused():
    class Mute(Policy):
        likelihood, temperature, device = "surrogate", 1.0, torch.device("cpu")

    method = PLAIN.but("mine", objective=1.0 * Divergence("teacher"), scorers={"teacher": Scorer("a/path")})
    run = run_of(method, TinyNetwork())
    run._scorers["policy/teacher"] = Mute()
    with pytest.raises(UserError, match=r"the scorer 'teacher' \(Mute\) has no logits for a head to read"):
        run.learner().gradient(method.objective, unscored())


# ---- rule 7: a policy says whether its likelihood is exact


@pytest.mark.parametrize("likelihood", ["surrogate", "none"])
def test_rule_7_terms_that_need_an_exact_likelihood_refuse_the_others_with_a_sentence(likelihood):
    policy = TinyNetwork()
    policy.likelihood = likelihood
    method = PLAIN.but("mine", objective=Clip() + 0.1 * EntropyBonus() + Divergence("reference"))
    with pytest.raises(
        UserError,
        match=f"Divergence, EntropyBonus of method 'mine' need an exact likelihood, and this policy's is {likelihood}",
    ):
        check_likelihood(method, policy)
    check_likelihood(PLAIN.but("mine", objective=Clip()), policy)
    check_likelihood(method, TinyNetwork())

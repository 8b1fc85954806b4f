"""Methods for agents that act in several turns."""

from __future__ import annotations

from melior.advantages import GroupRelative, Whiten
from melior.method import Entry, Paper
from melior.methods.group_relative import GRPO
from melior.objectives import Clip, ReferenceKL, SegmentRatio
from melior.updates import TurnByTurn

SEEUPO = Entry(
    GRPO.record.but(
        "seeupo",
        advantage=GroupRelative(scale=None, single="reward") | Whiten(clamp=3, over="rows", eps=0, floor=1e-6),
        objective=Clip(ratio=SegmentRatio("turn")) + 0.002 * ReferenceKL("k3"),
        update=TurnByTurn(),
    ),
    paper=Paper("SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees", "Hu, Fu et al.", 2026, "2602.06554"),
    track="lm-credit",
    evidence="code and its README; that a missing turn counts as zero in the mean over rows is our choice",
    problem="Updating all turns of an agent at once with one group advantage loses PPO's guarantee that no step makes "
    "things worse: an early turn is credited for later turns that have changed in the meantime.",
    move="Update the last turn first and one turn a step, and multiply the advantage of earlier turns by how much "
    "likelier the turns after them have become, as in backward induction.",
    formula="A0 = clamp(whiten_B(r - mean_g), -3, 3);  for t = T..1: loss_t = -min(A0 M s_t, A0 M clip(s_t, 0.8, 1.2)) "
    "+ 0.002 k3, s_t = exp(mean over turn t of (log pi - log pi_now)); then u = clip(s_t after the step, 0.8, 1.2), "
    "M <- clip(M u, 0.8, 1.2)",
    use_when="An episode has several turns with one reward at its end. Your rollout marks the turns in the integer "
    'column "turn"; where there is none, the whole answer is one turn.',
    beware="A batch costs one optimizer step and one scoring pass for every turn index, so compare at equal steps of "
    "the optimizer. With a single turn it is GSPO with a wider clip and a whitened, centered advantage. The paper's "
    "guarantee is for exact updates; one clipped step a turn approximates it.",
    settings={"lr": 1e-6, "n": 8, "prompts": 32, "temperature": 0.9},
)

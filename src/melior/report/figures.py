"""Which figures a report draws, what each is called, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One chart: its title, how to read it in a line, and its curves as (metric, label)."""

    title: str
    how: str
    curves: tuple[tuple[str, str], ...]
    unit: str = ""


@dataclass(frozen=True)
class Room:
    """Charts that belong together."""

    title: str
    figures: tuple[Figure, ...]


ROOMS = (
    Room(
        "Learning",
        (
            Figure(
                "Reward",
                "Mean shaped reward of what was sampled. It should rise; when it rises and the held-out score does "
                "not, the reward is being bought with something else.",
                (("reward", "mean"),),
                "reward",
            ),
            Figure(
                "Return",
                "Mean undiscounted return of the episodes that ended in the step. It should rise, and is noisy where "
                "few episodes end.",
                (("return", "mean"),),
                "reward",
            ),
            Figure(
                "Pass rate in training",
                "Share of sampled completions that pass. Near 0 or near 1 there is little left to learn from.",
                (("pass_rate", "share"),),
                "share",
            ),
            Figure(
                "Groups with a signal",
                "Share of groups whose answers do not all score the same. Only they teach a group-relative method; "
                "near 0, choose easier or harder prompts or more completions of each.",
                (("mixed_share", "share"),),
                "share",
            ),
            Figure(
                "Episode length",
                "Mean steps of the episodes that ended. Read it with the return: it says how the return was earned.",
                (("episode_length", "mean"),),
                "steps",
            ),
            Figure(
                "Entropy",
                "How undecided the policy is at a token. A slow fall is learning; a fall to 0 early ends exploration, "
                "a rise without end is a policy that comes apart.",
                (("entropy", "mean"),),
                "nats",
            ),
            Figure(
                "Spread of the reward",
                "Standard deviation of the shaped reward. At 0 there is nothing to compare.",
                (("reward_std", "deviation"),),
                "reward",
            ),
        ),
    ),
    Room(
        "Steps and distances",
        (
            Figure(
                "Gradient norm",
                "Before clipping. Single spikes are common; a level that keeps rising is a warning.",
                (("grad_norm", "norm"),),
            ),
            Figure(
                "Update norm",
                "How far the parameters moved. Compare methods at equal update norm, or the one that merely steps "
                "further wins.",
                (("update_norm", "norm"),),
            ),
            Figure(
                "Clipped tokens",
                "Share of trained tokens whose gradient a clip bound stops. Zero with one update a batch; with several "
                "it should be small and not vanish.",
                (("clip_low", "below"), ("clip_high", "above")),
                "share",
            ),
            Figure("Learning rate", "What the schedule made of the setting.", (("lr", "rate"),)),
            Figure(
                "Loss",
                "No measure of progress: for many methods it is near 0 however well the policy learns.",
                (("loss", "objective"),),
            ),
            Figure(
                "From the reference",
                "Divergence from the reference policy. It grows while the policy learns; a sudden climb means it is "
                "leaving the language it started from.",
                (("kl_reference", "divergence"),),
                "nats a token",
            ),
            Figure(
                "From the policy that sampled",
                "How far the policy is from the one at the start of the update and from the distribution that was "
                "sampled. Near 0 with one update a batch.",
                (("kl_proximal", "start of the update"), ("kl_sampler", "sampler")),
                "nats a token",
            ),
            Figure(
                "Effective sample size",
                "The share of samples that importance weights leave. Near 1 is good; a low one means that few tokens "
                "decide the gradient.",
                (("ess", "share"),),
                "share",
            ),
            Figure(
                "Sampler and trainer",
                "Difference between the log-probabilities of the sampler and of the trainer before the update. "
                "Rounding only, unless they compute differently; above about 0.01 in the mean, look for the reason.",
                (("gap_mean", "mean"), ("gap_p95", "95th percentile"), ("gap_max", "largest")),
                "nats",
            ),
        ),
    ),
    Room(
        "Critic",
        (
            Figure(
                "Explained variance",
                "How much of the returns the value function explains. 1 is all, 0 no more than a constant, and below "
                "0 it does harm.",
                (("explained_variance", "share"),),
                "share",
            ),
            Figure(
                "Value loss", "Error of the value function; its level depends on the reward.", (("value_loss", ""),)
            ),
            Figure("Critic loss", "Error of the action values in their own terms.", (("q_loss", "loss"),)),
            Figure(
                "Action values",
                "Mean of what the critic expects. Compare it with the returns: far above them it overestimates.",
                (("q_mean", "mean"),),
                "reward",
            ),
            Figure(
                "Actor loss", "Minus the value of what the actor does, as the critic sees it.", (("actor_loss", ""),)
            ),
        ),
    ),
    Room(
        "Lengths and work",
        (
            Figure(
                "Length of completions",
                "A drift that the reward does not explain is usually a fault of the objective or of the verifier.",
                (("length_mean", "mean"), ("length_max", "longest")),
                "tokens",
            ),
            Figure(
                "Cut-off completions",
                "Share that the token limit cut off. They rarely earn anything; when many, raise max_tokens.",
                (("truncated_share", "share"),),
                "share",
            ),
            Figure(
                "Tokens", "Completion tokens sampled in the step, those of dropped rows included.", (("tokens", ""),)
            ),
            Figure(
                "Rows without a gradient",
                "What is trained on but could move nothing, and is not sent backward. Where these are nearly all, most "
                "of the sampling is wasted.",
                (("rows_skipped", "rows"),),
                "rows",
            ),
            Figure("Rows", "What is trained on, after the curriculum.", (("rows", "rows"),), "rows"),
            Figure("Refills", "Further rounds of prompts that the curriculum asked for.", (("refills", "rounds"),)),
            Figure("Episodes", "How many ended in the step; the means above are over them.", (("episodes", "ended"),)),
            Figure("Tokens a second", "Sampled tokens over the whole step's time.", (("tokens_per_second", "rate"),)),
            Figure("Time of a step", "Wall clock.", (("step_seconds", "seconds"),), "seconds"),
        ),
    ),
)

DRAWN_APART = ("eval/score", "step")  # the held-out chart has intervals and its own place
# With one update a batch these differ by nothing but rounding, which is no curve to look at.
_ROUNDING = ("kl_proximal", "kl_sampler", "ess", "gap_mean", "gap_p95", "gap_max")


@dataclass(frozen=True)
class Rooms:
    """The charts of a run; what stayed the same in every step, with its value; and what always equalled the reward."""

    rooms: tuple[Room, ...]
    still: Mapping[str, float]
    as_reward: tuple[str, ...]


def rooms(rows: Sequence[Mapping[str, Any]]) -> Rooms:
    """The charts of a run. Figures that the table above does not know get one each in a last room."""
    numbers = _numbers(rows)
    known = {name: values for name, values in numbers.items() if not (name in DRAWN_APART or _bound(name))}
    known = {name: values for name, values in known.items() if not _is_score(name, values, numbers)}
    still = {name: values[-1] for name, values in known.items() if len(rows) > 1 and _still(name, values)}
    left = {name: values for name, values in known.items() if name not in still}
    twins = tuple(name for name in left if name == "pass_rate" or name.startswith("reward/"))
    twins = tuple(name for name in twins if left[name] == left.get("reward"))
    left = {name: values for name, values in left.items() if name not in twins}
    found = []
    for room in ROOMS:
        figures = []
        for figure in room.figures:
            curves = tuple(curve for curve in figure.curves if curve[0] in left)
            if curves:
                figures.append(Figure(figure.title, figure.how, curves, figure.unit))
        found.append(Room(room.title, tuple(figures)))
    drawn = {name for room in found for figure in room.figures for name, _ in figure.curves}
    further = dict.fromkeys(name for name in left if name not in drawn)
    found.append(Room("Further figures", (*_components(further), *(_plain(name) for name in further))))
    return Rooms(tuple(room for room in found if room.figures), still, twins)


def _bound(name: str) -> bool:
    """Whether it is an end of a held-out figure's interval."""
    return name.startswith("eval/") and name.endswith(("_low", "_high"))


def _is_score(name: str, values: Sequence[float], numbers: Mapping[str, Sequence[float]]) -> bool:
    """Whether it is the held-out score under the name of the figure which that is."""
    return name.startswith("eval/") and values == numbers.get("eval/score")


def _still(name: str, values: Sequence[float]) -> bool:
    return max(values) - min(values) <= (1e-4 if name in _ROUNDING else 0.0)


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Every numeric figure with its values, in the order in which they first appear."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, []).append(float(value))
    return values


def _components(left: dict[str, None]) -> list[Figure]:
    """The components of the reward in one chart, when there is more than one; they are taken out of `left`."""
    names = [name for name in left if name.startswith("reward/")][:4]
    if len(names) < 2:
        return []
    for name in names:
        del left[name]
    how = "Mean of each raw component. When one rises while another falls, one is bought with the other."
    curves = tuple((name, name.removeprefix("reward/")) for name in names)
    return [Figure("Components of the reward", how, curves, "reward")]


def _plain(name: str) -> Figure:
    if name.startswith("eval/"):
        return Figure(f"Held out: {name.removeprefix('eval/')}", "At the steps that evaluate.", ((name, ""),))
    if name.startswith("reward/"):
        return Figure(f"Reward component {name.removeprefix('reward/')}", "Mean of the raw component.", ((name, ""),))
    return Figure(name, "As it stands in metrics.jsonl; docs/metrics.md says what it is.", ((name, ""),))

"""What other trainers call the figures and settings that Melior has a name for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A figure of another trainer, and ours that it is read as.

    Attributes:
        theirs: its name there. Words in capitals stand for anything: NAME for one piece of a path, DATASET for one or
            more, K and N for a number.
        ours: our name, in which the same words are filled in.
        plus: another of their figures that is added to it where there is one.
        convert: what turns its value into ours; None where they are the same.
        note: how the two differ, in words.
    """

    theirs: str
    ours: str
    plus: str = ""
    convert: Callable[[float], float] | None = None
    note: str = ""


TRL = (
    Figure("loss", "loss", note="mean over the steps since the last logged one"),
    Figure("reward", "reward"),
    Figure("reward_std", "reward_std", note="sample deviation (n - 1); ours is the population's"),
    Figure("rewards/NAME/mean", "reward/NAME"),
    Figure(
        "frac_reward_zero_std",
        "mixed_share",
        convert=lambda share: 1 - share,
        note="1 - x; of shaped rewards, ours of outcomes",
    ),
    Figure("completions/mean_length", "length_mean"),
    Figure("completions/max_length", "length_max"),
    Figure("completions/clipped_ratio", "truncated_share"),
    Figure("entropy", "entropy"),
    Figure("kl", "kl_reference"),
    Figure("clip_ratio/low_mean", "clip_low"),
    Figure("clip_ratio/high_mean", "clip_high"),
    Figure("clip_ratio/region_mean", "clip_share"),
    Figure("sampling/sampling_logp_difference/mean", "gap_mean"),
    Figure("sampling/sampling_logp_difference/max", "gap_max"),
    Figure("grad_norm", "grad_norm"),
    Figure("learning_rate", "lr"),
    Figure("step_time", "step_seconds", note="generation and backward passes, without the optimizer's step"),
)

VERL = (
    Figure("critic/rewards/mean", "reward", note="without rows whose response is empty"),
    Figure("critic/score/mean", "reward/score", note="before a KL penalty; without rows whose response is empty"),
    Figure("response_length/mean", "length_mean"),
    Figure("response_length/max", "length_max"),
    Figure(
        "response_length/clip_ratio",
        "truncated_share",
        note="share that is as long as the limit, those that end exactly there included",
    ),
    Figure("actor/entropy", "entropy", note="aggregated as the loss is"),
    Figure("actor/entropy_loss", "entropy", note="the same under another engine"),
    Figure("actor/pg_loss", "loss", note="without the KL and entropy terms"),
    Figure("actor/ppo_kl", "kl_proximal", note="k1 estimate, which can be negative; ours is k3"),
    Figure("actor/kl_loss", "kl_reference", note="the estimator that `kl_loss_type` names; aggregated as the loss is"),
    Figure("actor/reward_kl_penalty", "kl_reference", note="mean over rows of their means"),
    Figure(
        "actor/pg_clipfrac",
        "clip_share",
        plus="actor/pg_clipfrac_lower",
        note="low, high and dual clip together",
    ),
    Figure("actor/grad_norm", "grad_norm"),
    Figure("actor/lr", "lr"),
    Figure("critic/vf_loss", "value_loss"),
    Figure("critic/vf_explained_var", "explained_variance", note="of the values at the start of the update"),
    Figure("rollout_corr/k3_kl", "kl_sampler", note="of the policy at the start of the update"),
    Figure("rollout_corr/rollout_is_eff_sample_size", "ess", note="of truncated weights, at the start of the update"),
    Figure(
        "rollout_corr/chi2_token",
        "ess",
        convert=lambda chi2: 1 / (1 + chi2) if chi2 > -1 else float("nan"),
        note="1 / (1 + x), taking the mean weight to be 1; at the start of the update",
    ),
    Figure("training/rollout_probs_diff_mean", "probability_gap_mean"),
    Figure("training/rollout_probs_diff_max", "probability_gap_max"),
    Figure("training/off_policy/trajectory_staleness_worst/max", "version_lag"),
    Figure("timing_s/step", "step_seconds"),
    Figure("perf/time_per_step", "step_seconds"),
    Figure("val-core/DATASET/acc/mean@N", "eval/mean@N", note="mean of the datasets where there are several"),
    Figure("val-core/DATASET/acc/mean@N", "eval/pass@1", note="the same, since `acc` is 0 or 1"),
    Figure(
        "val-core/DATASET/acc/best@K/mean",
        "eval/pass@K",
        note="drawn with replacement, so below the unbiased estimate; it rises and falls with it",
    ),
    Figure("val-aux/DATASET/acc/best@K/mean", "eval/pass@K", note="as above"),
    Figure("val-core/DATASET/reward/mean@N", "eval/mean@N", note="mean of the datasets where there are several"),
    Figure("val-core/DATASET/reward/best@K/mean", "eval/best@K", note="drawn with replacement"),
    Figure("val-aux/DATASET/reward/best@K/mean", "eval/best@K", note="drawn with replacement"),
    Figure("val-aux/DATASET/NAME/mean@N", "eval/reward/NAME"),
)

# Names above that Melior's own runs have no use for, or only in their rollouts.
FURTHER = {
    "clip_share": "share of trained tokens whose gradient a clip bound stops, on either side",
    "probability_gap_mean": "absolute difference of the sampler's and the trainer's probabilities; at most `gap_mean`",
    "probability_gap_max": "the largest of these differences",
    "eval/best@K": "mean of the best reward of K completions",
}

# What Melior itself writes, as a tracker hands it back.
# fmt: off
OURS = frozenset([
    "reward", "reward_std", "pass_rate", "mixed_share", "length_mean", "length_max", "truncated_share", "rows",
    "tokens", "refills", "loss", "entropy", "kl_proximal", "kl_sampler", "kl_reference", "clip_low", "clip_high",
    "ess", "gap_mean", "gap_p95", "gap_max", "gap_outside", "version_lag", "value_loss", "explained_variance",
    "rows_skipped", "grad_norm", "update_norm", "lr", "turn_correction", "updates", "skipped", "env_steps",
    "episodes", "return", "episode_length", "q_loss", "q_mean", "actor_loss", "step_seconds", "tokens_per_second",
])
# fmt: on
OUR_FAMILIES = re.compile(
    r"reward/.+|reverse_kl_.+"
    r"|eval/(pass@\d+|mean@\d+|score|reward/.+|length_mean|truncated_share|prompts|return|episode_length|episodes)"
    r"(_low|_high)?"
)

TRL_SETTINGS = {
    "num_generations": "n",
    "max_completion_length": "max_tokens",
    "learning_rate": "lr",
    "max_steps": "steps",
    "temperature": "temperature",
    "seed": "seed",
    "loss_type": "method",
}
VERL_SETTINGS = {
    "actor_rollout_ref.rollout.n": "n",
    "data.train_batch_size": "prompts",
    "data.max_response_length": "max_tokens",
    "actor_rollout_ref.actor.optim.lr": "lr",
    "trainer.total_training_steps": "steps",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "algorithm.adv_estimator": "method",
}

_WORDS = {"NAME": r"[^/]+", "DATASET": r".+", "K": r"\d+", "N": r"\d+"}


def trl(figures: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    """(figures by our names, names that have no counterpart) of one row of TRL's; `eval_` begins held-out ones."""
    known, unknown = translate({k: v for k, v in figures.items() if not k.startswith("eval_")}, TRL)
    held_out, strange = translate({k[5:]: v for k, v in figures.items() if k.startswith("eval_")}, TRL)
    known |= {f"eval/{name}": value for name, value in held_out.items()}
    return known, unknown | {f"eval_{name}" for name in strange}


def verl(figures: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    """(figures by our names, names that have no counterpart) of one row of verl's."""
    return translate(figures, VERL)


def tracked(figures: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    """(figures by our names, names that have no counterpart) of one row of a tracker, whoever logged to it.

    TRL's have `train/` or `eval/` before them there. Melior's own stand as they are.
    """
    known, unknown = verl(figures)
    theirs = {name: unprefixed(name) for name in unknown}
    found, strange = trl({theirs[name]: figures[name] for name in unknown if theirs[name] != name})
    known = found | known
    unknown = {name for name in unknown if theirs[name] == name or theirs[name] in strange}
    own = {name for name in unknown if name in OURS or OUR_FAMILIES.fullmatch(name)}
    return numbers({name: figures[name] for name in own}) | known, unknown - own


def unprefixed(name: str) -> str:
    """`train/loss` -> `loss`, `eval/loss` -> `eval_loss`, as the Transformers trainer wrote it; others as they are."""
    if name.startswith("train/"):
        return name[6:]
    return f"eval_{name[5:]}" if name.startswith("eval/") else name


def translate(figures: Mapping[str, Any], table: tuple[Figure, ...]) -> tuple[dict[str, float], set[str]]:
    """(figures by our names, names without a counterpart); what is no number is left out of both.

    Of several of theirs with one name of ours the first in the table counts. One of several datasets is averaged, and
    then each also has its own, `eval/DATASET/...`.
    """
    values = numbers(figures)
    known: dict[str, float] = {}
    used: set[str] = set()
    for figure, ours, sources in _plan(table, frozenset(values)):
        used |= {figure.plus, *sources.values()}
        found = {dataset: values[name] + values.get(figure.plus, 0.0) for dataset, name in sources.items()}
        if figure.convert:
            found = {dataset: figure.convert(value) for dataset, value in found.items()}
        known.setdefault(ours, sum(found.values()) / len(found))
        if len(found) > 1:
            for dataset, value in found.items():
                known.setdefault(ours.replace("eval/", f"eval/{dataset}/", 1), value)
    return known, values.keys() - used


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are numbers, infinite and undefined ones included."""
    return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of TRL or verl, nested or flat (dots between levels), by our names; others are left out."""
    flat = dict(_flat(given))
    found = {
        ours: flat[theirs] for theirs, ours in (TRL_SETTINGS | VERL_SETTINGS).items() if flat.get(theirs) is not None
    }
    if isinstance(found.get("n"), int) and isinstance(flat.get("generation_batch_size"), int):
        found.setdefault("prompts", flat["generation_batch_size"] // max(found["n"], 1))
    # -1 stands for "by epochs", and a `${...}` of Hydra was never filled in.
    return {k: v for k, v in found.items() if not (k == "steps" and v == -1) and "${" not in str(v)}


def gathered(names: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """Names for a person to read; more than `most` that begin alike are one entry."""
    families: dict[str, list[str]] = {}
    for name in sorted(names):
        before = re.match(r"(?:train/|eval/)?[^/]+/", name)  # a tracker's own prefix makes no family
        families.setdefault(before[0] if before else name, []).append(name)
    return tuple(
        entry
        for family, members in families.items()
        for entry in (members if len(members) <= most else [f"{family}... ({len(members)} figures)"])
    )


def _flat(given: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


@lru_cache(maxsize=256)  # a run logs a few sets of names thousands of times
def _plan(table: tuple[Figure, ...], there: frozenset[str]) -> list[tuple[Figure, str, dict[str, str]]]:
    """(figure, our name, {dataset: their name}) for all of a table that a row has."""
    plan = []
    for figure in table:
        found: dict[str, dict[str, str]] = {}
        pattern = _pattern(figure.theirs)
        for name in sorted(there):
            match = pattern.fullmatch(name)
            if match:
                words = match.groupdict()
                found.setdefault(_filled(figure.ours, words), {})[words.get("DATASET", "")] = name
        plan += [(figure, ours, sources) for ours, sources in found.items()]
    return plan


def _pattern(theirs: str) -> re.Pattern[str]:
    """A name with words in capitals as an expression."""
    pieces = re.split(r"\b(NAME|DATASET|K|N)\b", theirs)
    return re.compile("".join(f"(?P<{p}>{_WORDS[p]})" if p in _WORDS else re.escape(p) for p in pieces))


def _filled(ours: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\b(NAME|K|N)\b", lambda word: words.get(word[0], word[0]), ours)

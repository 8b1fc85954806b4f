"""How long completions are, where they are cut off, and whether they go in circles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from melior.inspect.doctor.finding import Check, Evidence, Finding, Plot, sureness
from melior.inspect.doctor.series import change, learns, score, series
from melior.inspect.logs.log import Row, RunLog


@dataclass(frozen=True)
class LengthDrift(Check):
    """Completions grow or shrink without the score rising with them.

    From the first to the last third of at least `steps` steps the median `length_mean` changes by a factor of `times`
    or more either way, by at least `tokens` tokens, and by rank (3.5 standard deviations of Mann-Whitney), while the
    score (pass rate, else reward) does not rise.

    Attributes:
        times: factor, at least.
        tokens: difference, at least.
        steps: of the run, at least.
    """

    times: float = 1.7
    tokens: float = 4.0
    steps: int = 20

    name = "length-drift"
    needs = ("length_mean",)
    explained_by = ("step-too-large", "repetition-loops", "reward-tracks-length", "entropy-explosion", "format-failure")

    def __call__(self, log: RunLog) -> Finding | None:
        lengths = series(log, "length_mean")
        moved = lengths.change()
        if len(lengths) < self.steps or not (moved.rises or moved.falls) or learns(log):
            return None
        factor = max(moved.before, moved.after) / max(min(moved.before, moved.after), 1e-12)
        if factor < self.times or abs(moved.after - moved.before) < self.tokens:
            return None
        raised = score(log)
        way = "grow" if moved.rises else "shrink"
        return Finding(
            name=self.name,
            severity="warning",
            sure=sureness(factor / self.times, len(lengths) / self.steps),
            says=f"Completions {way} while the score does not rise with them: length is what the updates change.",
            evidence=(
                Evidence(
                    f"mean length went from {moved.before:.4g} to {moved.after:.4g} tokens, {raised.name} from "
                    f"{raised.change().before:.3g} to {raised.change().after:.3g}",
                    lengths.span,
                    {"length_before": moved.before, "length_after": moved.after},
                ),
            ),
            plot=Plot(("length_mean", "truncated_share", raised.name), lengths.span),
            try_=(
                "a loss that does not depend on a row's length: `dr-grpo`, or `aggregate` `TokenMean`, as in `dapo`",
                "punish what exceeds a budget: `OverlongPenalty`",
                "read the longest completions: `melior rollouts RUN --worst 5`",
            ),
        )


@dataclass(frozen=True)
class Truncation(Check):
    """The token limit cuts off completions that need more, and they earn less for it.

    The median `truncated_share` of the last `steps` steps is at least `share`, and this costs: among the kept
    completions of those steps the truncated ones earn less than the others (3.5 standard deviations of Mann-Whitney);
    or nearly all (95 %) are truncated and the median pass rate is at most `passed`; or, where neither completions nor a
    pass rate tell, the score does not rise.

    Attributes:
        share: of completions cut off, at least.
        passed: pass rate, at most, where nearly all are cut off.
        steps: how many last steps are looked at.
    """

    share: float = 0.25
    passed: float = 0.1
    steps: int = 10

    name = "truncation"
    needs = ("truncated_share",)
    explained_by = ("step-too-large", "repetition-loops", "reward-tracks-length", "entropy-explosion")

    def __call__(self, log: RunLog) -> Finding | None:
        cut = series(log, "truncated_share")
        last = cut.last(self.steps)
        if len(last) < self.steps or last.median < self.share:
            return None
        cost = self._cost(log, last.median)
        if cost is None:
            return None
        limit = log.settings.get("max_tokens")
        at = f" at {limit} tokens" if limit else ""
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(last.median / self.share, cut.held(lambda v: v >= self.share, self.steps)),
            says=f"The token limit cuts completions off{at} before they are done, and what is cut off earns less.",
            evidence=(
                Evidence(
                    f"{last.median:.0%} of the completions are cut off (median of {self.steps} steps); {cost}",
                    last.span,
                    {"truncated_share": last.median},
                ),
            ),
            plot=Plot(("truncated_share", "length_mean", score(log).name), cut.span),
            try_=(
                "a higher limit: `settings.max_tokens`",
                "leave the tokens of cut-off completions out of the loss: `settings.truncated` = mask",
                "pay for ending in time: `OverlongPenalty`, as in `dapo`; or `settings.stop`",
                "a prompt that asks for short answers: `settings.system`",
            ),
        )

    def _cost(self, log: RunLog, share: float) -> str | None:
        """In words, what being cut off costs; None where it costs nothing."""
        steps = log.rollouts.steps[-self.steps :]
        rows = [row for step in steps for row in log.rollouts.rows(step) if row.truncated is not None]
        cut = [row.reward for row in rows if row.truncated and row.reward is not None]
        whole = [row.reward for row in rows if not row.truncated and row.reward is not None]
        if len(cut) >= 5 and len(whole) >= 5:
            moved = change(cut, whole)
            means = f"they earn {np.mean(cut):.3g} on average, the others {np.mean(whole):.3g}"
            return means if moved.rises else None
        passed = score(log).last(self.steps)
        if passed.name == "pass_rate":
            short = share >= 0.95 and passed.median <= self.passed
            return f"{passed.median:.0%} pass" if short else None
        return None if learns(log) else "the score does not rise"


@dataclass(frozen=True)
class RepetitionLoops(Check):
    """Completions end in loops.

    A completion loops when its last 40 characters or more (and at least a third of it) are one piece, of at most a
    quarter of them, over and over; or when it has 50 words or more and at most 30 % of its runs of four words are
    different. Found when the median share of looping completions over the last `steps` steps with kept completions (of
    which at most `rows` are read each) is at least `share`.

    Attributes:
        share: of completions that loop, at least.
        steps: with completions, the last.
        rows: of a step, at most.
    """

    share: float = 0.15
    steps: int = 6
    rows: int = 48

    name = "repetition-loops"
    needs = ("completions.text",)
    explained_by = ("step-too-large",)

    def __call__(self, log: RunLog) -> Finding | None:
        steps = log.rollouts.steps[-self.steps :]
        shares, example = [], ""
        for step in steps:
            texts = [row.text for row in self._some(log.rollouts.rows(step)) if row.text]
            loops = [text for text in texts if _loops(text)]
            if texts:
                shares.append(len(loops) / len(texts))
                example = loops[0] if loops else example
        if len(shares) < self.steps // 2 or float(np.median(shares)) < self.share:
            return None
        share = float(np.median(shares))
        tail = " ".join(example[-60:].split())
        return Finding(
            name=self.name,
            severity="critical",
            sure=sureness(share / self.share, len(shares) * 2 / self.steps),
            says="Completions end in loops: the same piece over and over until the token limit.",
            evidence=(
                Evidence(
                    f"{share:.0%} of the completions loop (median of {len(shares)} steps), such as one that ends in "
                    f"{tail!r}",
                    (steps[0], steps[-1]),
                    {"looping": share},
                ),
            ),
            plot=Plot(("length_mean", "truncated_share", "entropy"), (steps[0], steps[-1])),
            try_=(
                "see that completions can end: the end-of-sequence token, `settings.stop`, `settings.chat`",
                "reward nothing that a loop can earn (length, keywords), and punish what is cut off: `OverlongPenalty`",
                "a smaller `settings.lr` and a KL term, as in `grpo` (`ReferenceKL`)",
                "`settings.temperature` at 1; low temperatures loop",
            ),
        )

    def _some(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows[:: max(1, -(-len(rows) // self.rows))]


def _loops(text: str) -> bool:
    text = text.rstrip()
    tail = _periodic_tail(text[-600:])
    if tail >= 40 and tail >= len(text[-600:]) / 3:
        return True
    words = text.split()
    fours = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(words) >= 50 and len(set(fours)) <= 0.3 * len(fours)


def _periodic_tail(text: str) -> int:
    """The length of the longest end of a text that consists of one piece at least four times over; 0 for none."""
    backwards, border = text[::-1], [0] * len(text)
    longest = 0
    for i in range(1, len(backwards)):
        k = border[i - 1]
        while k and backwards[i] != backwards[k]:
            k = border[k - 1]
        border[i] = k + (backwards[i] == backwards[k])
        period = i + 1 - border[i]
        if 4 * period <= i + 1:
            longest = i + 1
    return longest

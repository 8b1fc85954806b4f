"""Charts as geometry: what a template needs to draw them as SVG, and the words and numbers that stand for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from melior.loops.summary import number_text

MOST_POINTS, MOST_ROWS = 240, 40
APART = 5.0  # between the intervals of several curves at one step
INSET = 10.0  # between intervals and the ends of the axis, or they look like one
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Frame:
    """The size of a drawing, and what the axes leave of it: `left` to `right`, `top` to `bottom`."""

    width: int = 360
    height: int = 190
    left: int = 46
    right: int = 350
    top: int = 10
    bottom: int = 164


SMALL = Frame()


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Curve:
    """A curve as it is drawn.

    Attributes:
        label: what it is called; "" where there is but one.
        path: through the values.
        smooth: through their running mean.
        ends: where it starts and ends, in numbers.
        marks: single values as (x, y, y of the low end, y of the high end of the interval); both ends equal y where
            `band` shows the intervals.
        band: the outline of the intervals, where every value has one.
    """

    label: str
    path: str
    smooth: str = ""
    ends: str = ""
    marks: tuple[tuple[float, float, float, float], ...] = ()
    band: str = ""


@dataclass(frozen=True)
class Chart:
    """A drawing and what stands for it: `told` in words, `header` and `table` in numbers, `points` under the pointer.

    `points` are (step or bin, x, texts of the curves), `bars` are (x, y, width, height, number of the curve, text).
    """

    title: str
    how: str
    unit: str
    told: str
    curves: tuple[Curve, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    thinned: bool = False
    points: tuple[tuple[str, float, tuple[str, ...]], ...] = ()
    bars: tuple[tuple[float, float, float, float, int], ...] = ()
    x_label: str = "step"
    frame: Frame = SMALL


@dataclass(frozen=True)
class Series:
    """Values at steps; `spread` holds the intervals (low, high) of those that have one."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    spread: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    marked: bool = False

    @property
    def banded(self) -> bool:
        """Whether the intervals make a band: there are some between the first and the last, and none is missing."""
        return len(self.steps) > 2 and all(step in self.spread for step in self.steps)


def line_chart(
    title: str, how: str, unit: str, series: Sequence[Series], frame: Frame = SMALL, also: Sequence[float] = ()
) -> Chart:
    """Curves over steps; `also` are further values that the vertical axis holds, such as those of charts beside it."""
    steps = sorted({step for each in series for step in each.steps})
    bounds = [bound for each in series for pair in each.spread.values() for bound in pair]
    values = [value for each in series for value in each.values]
    low, high, y_ticks = _axis([*values, *bounds, *also], (frame.bottom - frame.top) // 38)
    first, last = steps[0], steps[-1] if steps[-1] > steps[0] else steps[0] + 1
    whiskers = any(each.spread and not each.banded for each in series)
    apart, inset = (APART, INSET) if whiskers else (0.0, 0.0)
    to_x = _scale(first, last, frame.left + inset, frame.right - inset)
    to_y = _scale(low, high, frame.bottom, frame.top)
    middle = (len(series) - 1) / 2
    curves = tuple(_curve(each, _moved(to_x, (k - middle) * apart), to_y) for k, each in enumerate(series))
    known = [dict(zip(each.steps, each.values, strict=True)) for each in series]
    rows = [(f"{step:g}", tuple(plain_number(each.get(step)) for each in known)) for step in steps]
    shown = _spaced(len(rows), MOST_ROWS)
    under = _spaced(len(rows), MOST_POINTS)
    x_ticks = [value for value in _nice(first, last, frame.width // 72) if value == round(value)]
    return Chart(
        title=title,
        how=how,
        unit=unit,
        told=" ".join(_told(each) for each in series),
        curves=curves,
        x_ticks=tuple(Tick(to_x(value), f"{value:g}") for value in x_ticks),
        y_ticks=tuple(Tick(to_y(value), _short(value)) for value in y_ticks),
        header=("step", *(each.label or title for each in series)),
        table=tuple((rows[i][0], *rows[i][1]) for i in shown),
        thinned=len(shown) < len(rows),
        points=tuple((rows[i][0], round(to_x(steps[i]), 1), rows[i][1]) for i in under),
        frame=frame,
    )


def histogram(title: str, how: str, unit: str, counts: Mapping[str, Sequence[float]]) -> Chart:
    """How often whole numbers occur in one or two collections, in up to 24 bins that they share."""
    values = [value for each in counts.values() for value in each]
    width = max(1, math.ceil((max(values) - min(values) + 1) / 24))
    start = int(min(values) // width * width)
    bins = int((max(values) - start) // width) + 1
    heights = {name: _binned(each, start, width, bins) for name, each in counts.items()}
    low, high, y_ticks = _axis([0.0, *(float(n) for each in heights.values() for n in each)])
    frame = SMALL
    to_x = _scale(0, bins, frame.left, frame.right)
    to_y = _scale(max(low, 0.0), high, frame.bottom, frame.top)
    labels = [
        f"{start + i * width}" if width == 1 else f"{start + i * width}–{start + (i + 1) * width - 1}"
        for i in range(bins)
    ]
    bars, each_width = [], (to_x(1) - to_x(0)) * 0.9 / len(counts)
    for k, each in enumerate(heights.values()):
        for i, count in enumerate(each):
            bars.append((to_x(i) + k * each_width, to_y(count), each_width, to_y(0) - to_y(count), k))
    told = [
        f"{name}: {len(each)} completions, mean {sum(each) / len(each):.1f}, longest {max(each):g}."
        for name, each in counts.items()
    ]
    ticks = range(0, bins, max(1, math.ceil(bins / 6)))
    return Chart(
        title=title,
        how=how,
        unit="completions",
        told=" ".join(told),
        curves=tuple(Curve(name, "") for name in counts),
        x_ticks=tuple(Tick(to_x(i + 0.45), str(start + i * width)) for i in ticks),
        y_ticks=tuple(Tick(to_y(value), _short(value)) for value in y_ticks if value == round(value)),
        header=(unit, *counts),
        table=tuple((labels[i], *(str(each[i]) for each in heights.values())) for i in range(bins)),
        points=tuple(
            (labels[i], round(to_x(i + 0.45), 1), tuple(str(each[i]) for each in heights.values())) for i in range(bins)
        ),
        bars=tuple(bars),
        x_label=unit,
    )


@dataclass(frozen=True)
class Band:
    """One figure with its interval on a common scale, as shares of the drawing's width."""

    value: float
    low: float
    high: float


def bands(figures: Sequence[Sequence[float]]) -> tuple[list[Band], float, float]:
    """Intervals on one scale, and its ends: 0 to 1 where all lie in it, else what they span."""
    edges = [float(edge) for figure in figures for edge in figure]
    low, high = (0.0, 1.0) if min(edges) >= 0 and max(edges) <= 1 else _axis([*edges, 0.0])[:2]
    to_x = _scale(low, high, 0, 100)
    found = [Band(*(round(to_x(float(edge)), 2) for edge in figure)) for figure in figures]
    return found, low, high


def _curve(series: Series, to_x: Scale, to_y: Scale) -> Curve:
    points = [(to_x(step), to_y(value)) for step, value in _thinned(series)]
    smooth = ""
    if len(points) >= 24 and not series.marked:
        mean = _running_mean([y for _, y in points], len(points) // 12)
        smooth = _path([(x, y) for (x, _), y in zip(points, mean, strict=True)])
    marks = []
    if series.marked or len(points) == 1:
        for step, value in zip(series.steps, series.values, strict=True):
            low, high = (value, value) if series.banded else series.spread.get(step, (value, value))
            marks.append((to_x(step), to_y(value), to_y(low), to_y(high)))
    band = ""
    if series.banded:
        above = [(to_x(step), to_y(series.spread[step][1])) for step in series.steps]
        below = [(to_x(step), to_y(series.spread[step][0])) for step in series.steps]
        band = _path([*above, *reversed(below)]) + "Z"
    ends = f"{plain_number(series.values[0])} → {plain_number(series.values[-1])}"
    return Curve(series.label, _path(points), smooth, ends, tuple(marks), band)


def _thinned(series: Series) -> list[tuple[float, float]]:
    """At most so many points, each the mean of a stretch of the run."""
    pairs = list(zip(series.steps, series.values, strict=True))
    size = math.ceil(len(pairs) / MOST_POINTS)
    stretches = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return [(sum(s for s, _ in each) / len(each), sum(v for _, v in each) / len(each)) for each in stretches]


def _running_mean(values: Sequence[float], reach: int) -> list[float]:
    found = []
    for i in range(len(values)):
        near = values[max(0, i - reach) : i + reach + 1]
        found.append(sum(near) / len(near))
    return found


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points) if points else ""


def _told(series: Series) -> str:
    values, steps = list(series.values), list(series.steps)
    low, high = values.index(min(values)), values.index(max(values))
    name = f"{series.label}: " if series.label else ""
    return (
        f"{name}{plain_number(values[0])} at step {steps[0]:g}, {plain_number(values[-1])} at step {steps[-1]:g}; "
        f"lowest {plain_number(values[low])} at step {steps[low]:g}, highest {plain_number(values[high])} at step "
        f"{steps[high]:g}."
    )


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _moved(scale: Scale, by: float) -> Scale:
    return lambda value: scale(value) + by


def _axis(values: Sequence[float], ticks: int = 4) -> tuple[float, float, list[float]]:
    """The ends of an axis that holds these values, and its ticks; 0 is on it unless that would hide the shape."""
    low, high = min(values), max(values)
    if low > 0 and low < high / 2:
        low = 0.0
    if high < 0 and high > low / 2:
        high = 0.0
    if high - low <= max(abs(low), abs(high)) * 1e-9:
        pad = abs(high) / 2 or 1.0
        low, high = low - pad, high + pad
    room = (high - low) * 0.06
    low, high = (low if low == 0 else low - room), (high if high == 0 else high + room)
    return low, high, _nice(low, high, ticks)


def _nice(low: float, high: float, count: int) -> list[float]:
    """About so many round numbers between two ends."""
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _short(value: float) -> str:
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


def _binned(values: Sequence[float], start: int, width: int, bins: int) -> list[int]:
    found = [0] * bins
    for value in values:
        found[int((value - start) // width)] += 1
    return found


def _spaced(count: int, most: int) -> list[int]:
    """Which of so many rows are shown: all, or `most` evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def plain_number(value: float | None) -> str:
    """As `number_text`, whole numbers without decimals."""
    whole = value is not None and value == round(value) and abs(value) < 1e6
    return f"{value:.0f}" if whole else number_text(value)

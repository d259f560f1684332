"""Charts of metrics: one line per run, raw and smoothed, with a linear or logarithmic axis.

Reads curves; makes SVG and the words around it. Guarantees: both axes have names; a stretch of steps is drawn with its
extremes; each point of a large chart leads to the trajectories of its steps; values without a logarithm are counted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from repairgym.report.charts import SMALL, Axis, Curve, Dot, xy_plot
from repairgym.report.svg import Margins, Range, nice_ticks, padded
from repairgym.view.curves import CurvePoint, smoothed

Over = Literal["step", "tokens", "time"]
AXIS_TITLES: dict[Over, str] = {"step": "step", "tokens": "sampled and context tokens", "time": "hours"}
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_TITLES = {
    "rollout/reward_mean": "Reward",
    "rollout/num_turns_mean": "Turns",
    "policy/entropy": "Entropy",
    "policy/log_prob_gap": "Sampler–learner gap",
    "policy/kl_k1": "KL to the reference (k1)",
    "policy/kl_k3": "KL to the reference (k3)",
    "optim/grad_norm": "Gradient norm",
    "train/loss": "Loss",
    "sft/nll": "Negative log-likelihood",
    "rollout/num_action_tokens_mean": "Sampled tokens per episode",
    "validation/nll": "Validation: negative log-likelihood",
}
"""Metrics in the order of their weight, with titles for a reader; the first six that exist are the key curves."""
NUM_KEY_CURVES = 6


@dataclass(frozen=True)
class Line:
    """The curve of one run."""

    run: str
    points: Sequence[CurvePoint]
    xs: Sequence[float]
    """Place of each point on the horizontal axis."""
    color: int = 0


@dataclass(frozen=True)
class Chart:
    """A drawn chart."""

    name: str
    """Of the metric."""
    title: str
    note: str
    svg: Markup


def key_metrics(names: Sequence[str]) -> list[str]:
    """Return the metrics that tell most of a phase, the most telling first."""
    known = [name for name in _TITLES if name in names]
    return [*known, *(name for name in names if name not in known)][:NUM_KEY_CURVES]


def title_of(name: str) -> str:
    """Return a metric's title for a reader."""
    return _TITLES.get(name, name)


def draw(
    name: str,
    lines: Sequence[Line],
    *,
    axis: Over = "step",
    smoothing: float = 0.0,
    is_log: bool = False,
    size: tuple[float, float] = SMALL,
    link: Callable[[CurvePoint], str] | None = None,
) -> Chart | None:
    """Draw a metric of one or more runs; ``link`` gives the address of a point of the first. None without points."""
    shown = [_on_axis(line, is_log) for line in lines]
    values = [value for line in shown for point in line.points for value in (point.low, point.high)]
    if not values:
        return None
    num_lost = sum(len(line.points) for line in lines) - sum(len(line.points) for line in shown)
    xs = [x for line in shown for x in line.xs]
    is_from_zero = not is_log and min(values) >= 0
    y_span = padded(values, floor=0.0 if is_from_zero else None)
    x_span = Range(min(xs), max(max(xs), min(xs) + (0.01 if axis == "time" else 1.0)))
    curves = [curve for line in shown for curve in _curves_of(line, smoothing, is_alone=len(shown) == 1)]
    if link is not None and shown[0].points:
        curves.append(Curve(dots=_dots(shown[0], link, is_log)))
    plot = xy_plot(
        size,
        Axis(AXIS_TITLES[axis], x_span, _x_ticks(x_span, axis, 5 if size == SMALL else 10), _short),
        Axis("", y_span, _y_ticks(y_span, is_log), lambda tick: _short(10.0**tick if is_log else tick)),
        curves,
        margins=Margins(left=52 if is_log else 46),
    )
    last = [_original(line.points[-1].value, is_log) for line in shown if line.points]
    note = ", ".join(f"last {value:.4g}" for value in last[:1]) if len(last) == 1 else f"{len(last)} runs"
    note += f"; {num_lost} points ≤ 0 left out" if num_lost else ""
    return Chart(name, title_of(name), note, plot.render(f"{title_of(name)} by {AXIS_TITLES[axis]}"))


def _on_axis(line: Line, is_log: bool) -> Line:
    """Return the line with the logarithms of its values, without points that have none; or as it is."""
    if not is_log:
        return line
    pairs = [(point, x) for point, x in zip(line.points, line.xs, strict=True) if point.low > 0]
    logs = [
        point._replace(value=math.log10(point.value), low=math.log10(point.low), high=math.log10(point.high))
        for point, _ in pairs
    ]
    return Line(line.run, logs, [x for _, x in pairs], line.color)


def _curves_of(line: Line, smoothing: float, is_alone: bool) -> list[Curve]:
    """Return the line of a run, with the extremes of its stretches where it is alone, and its smoothed form."""
    css = "curve" if is_alone else f"curve l{line.color}"
    pairs = list(zip(line.xs, line.points, strict=True))
    raw = [(x, point.value) for x, point in pairs]
    has_band = is_alone and any(point.last > point.first for point in line.points)
    band = [(x, point.low, point.high) for x, point in pairs] if has_band else ()
    dots = [Dot(*raw[0], f"{line.run}: {line.points[0].value:.4g}")] if len(raw) == 1 else ()
    if not smoothing:
        return [Curve(raw, css, band, dots=dots)]
    means = smoothed([value for _, value in raw], smoothing)
    mean_line = [(x, mean) for (x, _), mean in zip(raw, means, strict=True)]
    return [Curve(raw, f"{css} raw", band, dots=dots), Curve(mean_line, css)]


def _dots(line: Line, link: Callable[[CurvePoint], str], is_log: bool) -> list[Dot]:
    dots = []
    for x, point in zip(line.xs, line.points, strict=True):
        steps = f"step {point.first}" if point.first == point.last else f"steps {point.first} to {point.last}"
        words = f"{steps}: {_original(point.value, is_log):.5g}"
        dots.append(Dot(x, point.value, words, link(point)))
    return dots


def _original(value: float, is_log: bool) -> float:
    return 10.0**value if is_log else value


def _y_ticks(span: Range, is_log: bool) -> list[float]:
    ticks = nice_ticks(span)
    whole = [tick for tick in ticks if tick == int(tick)]
    return whole if is_log and len(whole) > 1 else ticks


def _x_ticks(span: Range, axis: Over, num: int) -> list[float]:
    ticks = nice_ticks(span, num)
    return ticks if axis == "time" else [tick for tick in ticks if tick == int(tick)]


def _short(value: float) -> str:
    for size, unit in _UNITS:
        if abs(value) >= 10 * size or (abs(value) >= size and size > 1e3):
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g}"

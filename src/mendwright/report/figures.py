"""The report's plots, each a pure function from numbers to SVG.

Reads stage results, curves and shares; makes `Figure` records. Invariants: a rate is drawn with its 95 % interval and
on an axis that starts at zero; an empty input makes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mendwright.analysis.curves import Point
from mendwright.evaluation.significance import Comparison
from mendwright.evaluation.stages import TREATMENT, stage_label
from mendwright.evaluation.summary import StageResult
from mendwright.report.svg import Margins, Plot, Range, nice_ticks, padded
from mendwright.report.wording import interval, percent, percent_interval, points

_CURVE_SIZE = (310.0, 180.0)
_ROW_HEIGHT = 30.0
_ROW_MARGINS = Margins(left=270, right=76, top=8, bottom=30)
NUM_COLOURS = 8


@dataclass(frozen=True)
class Figure:
    """A plot and its words."""

    title: str
    note: str
    svg: Markup


@dataclass(frozen=True)
class Series:
    """One curve. ``low`` and ``high`` are the band's edges, one per point, or empty."""

    title: str
    note: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_rate: bool = False


def stage_plot(results: Sequence[StageResult]) -> Markup:
    """Pass@1 per stage: a point with its 95 % interval (bootstrap over tasks), one row per stage."""
    high = max(result.pass_at_1.ci_high for result in results)
    span = Range(0.0, min(1.0, max(0.05, high * 1.08)))
    height = _ROW_HEIGHT * len(results) + 44
    plot = Plot((760, height), span, Range(len(results), 0), _ROW_MARGINS)
    ticks = nice_ticks(span, 6)
    plot.vertical_grid(ticks, [percent(tick, 0) for tick in ticks])
    for index, result in enumerate(results):
        rate = result.pass_at_1
        title = f"{percent(rate.value)} ({percent_interval(rate.ci_low, rate.ci_high)}), {rate.num_tasks} tasks"
        row = _Row(stage_label(result.stage), rate.value, (rate.ci_low, rate.ci_high), title, percent(rate.value))
        _draw_row(plot, index + 0.5, row, "main" if result.stage == TREATMENT else "other")
    return plot.render("Pass@1 with 95 % intervals for each stage")


def difference_plot(comparisons: Sequence[Comparison]) -> Markup:
    """Paired differences with their 95 % intervals, one row each; the heavy line is zero."""
    low = min(0.0, *(one.ci_low for one in comparisons))
    high = max(0.0, *(one.ci_high for one in comparisons))
    span = padded((low, high))
    height = _ROW_HEIGHT * len(comparisons) + 44
    plot = Plot((760, height), span, Range(len(comparisons), 0), _ROW_MARGINS)
    ticks = nice_ticks(span, 6)
    plot.vertical_grid(ticks, [points(tick).removesuffix(".0") if tick else "0" for tick in ticks])
    plot.element("line", x1=plot.x(0), x2=plot.x(0), y1=_ROW_MARGINS.top, y2=height - _ROW_MARGINS.bottom, css="zero")
    for index, one in enumerate(comparisons):
        title = f"{points(one.difference)} points ({interval(one.ci_low, one.ci_high)}), {one.num_tasks} tasks"
        name = f"{stage_label(one.treatment)} − {stage_label(one.reference)}"
        row = _Row(name, one.difference, (one.ci_low, one.ci_high), title, points(one.difference))
        _draw_row(plot, index + 0.5, row, "main" if one.is_clear else "other")
    return plot.render("Paired differences of Pass@1 in points with 95 % intervals")


@dataclass(frozen=True)
class _Row:
    name: str
    value: float
    interval: tuple[float, float]
    title: str
    label: str


def _draw_row(plot: Plot, place: float, row: _Row, css: str) -> None:
    y = plot.y(place)
    low, high = row.interval
    plot.text(_ROW_MARGINS.left - 12, y + 4, row.name, css=f"name {css}", anchor="end")
    plot.element("line", x1=plot.x(low), x2=plot.x(high), y1=y, y2=y, css=f"whisker {css}")
    plot.dot(row.value, place, row.title, f"dot {css}", radius=5)
    plot.text(plot.width - _ROW_MARGINS.right + 12, y + 4, row.label, css=f"value {css}")


def curve(series: Series) -> Figure | None:
    """A small line plot by training step; None without points."""
    found = series.points
    if not found:
        return None
    values = [*(point.value for point in found), *series.low, *series.high]
    is_from_zero = series.is_rate or min(values) >= 0
    y_span = padded(values, floor=0.0 if is_from_zero else None)
    if series.is_rate:
        y_span = Range(0.0, min(1.0, y_span.high))
    x_span = Range(found[0].step, max(found[-1].step, found[0].step + 1))
    plot = Plot(_CURVE_SIZE, x_span, y_span)
    ticks = nice_ticks(y_span)
    plot.horizontal_grid(ticks, [percent(tick, 0) if series.is_rate else f"{tick:.4g}" for tick in ticks])
    steps = [tick for tick in nice_ticks(x_span, 5) if tick == int(tick)]
    plot.bottom_labels(steps, [f"{step:.0f}" for step in steps])
    _draw_series(plot, series)
    return Figure(series.title, series.note, plot.render(f"{series.title} by training step"))


def _draw_series(plot: Plot, series: Series) -> None:
    found = series.points
    if series.low:
        edges = zip(found, series.low, series.high, strict=True)
        plot.area([(point.step, low, high) for point, low, high in edges], "band")
    plot.line([(point.step, point.value) for point in found], "curve")
    for point in found if len(found) <= 60 else []:
        value = percent(point.value) if series.is_rate else f"{point.value:.4g}"
        plot.dot(point.step, point.value, f"step {point.step}: {value}", "dot main", radius=2.4)


def share_plot(by_step: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> Markup | None:
    """Stacked shares by training step, one band per name; None with fewer than two steps."""
    steps = sorted(by_step)
    if len(steps) < 2:
        return None
    plot = Plot((760, 230), Range(steps[0], steps[-1]), Range(0.0, 1.0))
    floors = dict.fromkeys(steps, 0.0)
    for index, name in enumerate(names):
        band = [(step, floors[step], floors[step] + by_step[step].get(name, 0.0)) for step in steps]
        plot.area(band, f"fill c{index % NUM_COLOURS}")
        floors = {step: high for step, _, high in band}
    plot.horizontal_grid([0.0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    ticks = [tick for tick in nice_ticks(Range(steps[0], steps[-1]), 8) if tick == int(tick)]
    plot.bottom_labels(ticks, [f"{tick:.0f}" for tick in ticks])
    return plot.render("Share of each tool among all actions, by training step")

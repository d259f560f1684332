"""The report's plots, each a pure function from numbers to SVG, with the numbers beside it.

Reads stage results, curves and shares; makes `Figure` records. Invariants: a rate is drawn with its 95 % interval and
on an axis that starts at zero; an empty input makes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from repairgym.analysis.abstention import Abstention
from repairgym.analysis.curves import Point
from repairgym.analysis.exploits import ExploitCount
from repairgym.analysis.reward_gap import GapPoint
from repairgym.analysis.tables import Table, comparison_table, matrix_tables, stage_table, table
from repairgym.evaluation.matrix import Cell, Matrix
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.stages import TREATMENT, stage_label
from repairgym.evaluation.summary import StageResult
from repairgym.report.svg import KEY_HEIGHT, Margins, Plot, Range, legend_rows, nice_ticks, padded
from repairgym.report.wording import interval, percent, percent_interval, points

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
    data: Table
    """What is drawn."""


@dataclass(frozen=True)
class Series:
    """One curve. ``low`` and ``high`` are the band's edges, one per point, or empty."""

    title: str
    note: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_rate: bool = False


def stage_plot(results: Sequence[StageResult], title: str = "Pass@1 of the stages") -> Figure:
    """Pass@1 per stage: a point with its 95 % interval over tasks, one row per stage."""
    high = max(result.pass_at_1.ci_high for result in results)
    span = Range(0.0, min(1.0, max(0.05, high * 1.08)))
    height = _ROW_HEIGHT * len(results) + 44
    plot = Plot((760, height), span, Range(len(results), 0), _ROW_MARGINS)
    ticks = nice_ticks(span, 6)
    plot.vertical_grid(ticks, [percent(tick, 0) for tick in ticks])
    for index, result in enumerate(results):
        rate = result.pass_at_1
        tip = f"{percent(rate.value)} ({percent_interval(rate.ci_low, rate.ci_high)}), {rate.num_tasks} tasks"
        row = _Row(stage_label(result.stage), rate.value, (rate.ci_low, rate.ci_high), tip, percent(rate.value))
        _draw_row(plot, index + 0.5, row, "main" if result.stage == TREATMENT else "other")
    svg = plot.render("Pass@1 with 95 % intervals for each stage")
    return Figure(title, "95 % intervals over tasks", svg, stage_table(results))


def difference_plot(comparisons: Sequence[Comparison]) -> Figure:
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
    svg = plot.render("Paired differences of Pass@1 in points with 95 % intervals")
    return Figure("Paired differences", "95 % intervals over tasks", svg, comparison_table(comparisons))


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
    lows: Sequence[float | None] = series.low or [None] * len(found)
    highs: Sequence[float | None] = series.high or [None] * len(found)
    rows = [(one.step, one.value, low, high) for one, low, high in zip(found, lows, highs, strict=True)]
    data = table("", series.title, ("step", "value", "low", "high"), rows)
    return Figure(series.title, series.note, plot.render(f"{series.title} by training step"), data)


def _draw_series(plot: Plot, series: Series) -> None:
    found = series.points
    if series.low:
        edges = zip(found, series.low, series.high, strict=True)
        plot.area([(point.step, low, high) for point, low, high in edges], "band")
    plot.line([(point.step, point.value) for point in found], "curve")
    for point in found if len(found) <= 60 else []:
        value = percent(point.value) if series.is_rate else f"{point.value:.4g}"
        plot.dot(point.step, point.value, f"step {point.step}: {value}", "dot main", radius=2.4)


def share_plot(by_step: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> Figure | None:
    """Stacked shares by training step, one band per name; None with fewer than two steps."""
    steps = sorted(by_step)
    if len(steps) < 2:
        return None
    key_rows = legend_rows(names)
    margins = Margins(top=10 + key_rows * KEY_HEIGHT)
    plot = Plot((760, 230 + key_rows * KEY_HEIGHT), Range(steps[0], steps[-1]), Range(0.0, 1.0), margins)
    plot.legend(names)
    floors = dict.fromkeys(steps, 0.0)
    for index, name in enumerate(names):
        band = [(step, floors[step], floors[step] + by_step[step].get(name, 0.0)) for step in steps]
        plot.area(band, f"fill c{index % NUM_COLOURS}")
        floors = {step: high for step, _, high in band}
    plot.horizontal_grid([0.0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    ticks = [tick for tick in nice_ticks(Range(steps[0], steps[-1]), 8) if tick == int(tick)]
    plot.bottom_labels(ticks, [f"{tick:.0f}" for tick in ticks])
    rows = [(step, name, by_step[step].get(name, 0.0)) for step in steps for name in names]
    data = table("", "Tools during training", ("step", "tool", "share"), rows)
    svg = plot.render("Share of each tool among all actions, by training step")
    return Figure("Tools during training", "share of all actions", svg, data)


@dataclass(frozen=True)
class Line:
    """One line of a plot with several, with a band where ``low`` and ``high`` are given."""

    name: str
    points: Sequence[tuple[float, float]]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def lines_plot(title: str, note: str, lines: Sequence[Line], axis: str, x_labels: str = "step") -> Figure | None:
    """Several rates over one axis; None when no line has two points.

    Args:
        title: Of the figure.
        note: Below the title.
        lines: At most `NUM_COLOURS`.
        axis: Name of the horizontal axis, for the data.
        x_labels: ``step`` for whole numbers, ``share`` for percents.
    """
    drawn = [line for line in lines[:NUM_COLOURS] if len(line.points) > 1]
    if not drawn:
        return None
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points] + [y for line in drawn for y in (*line.low, *line.high)]
    span = Range(min(xs), max(xs))
    rows = legend_rows([line.name for line in drawn])
    y_span = Range(0.0, min(1.0, padded(ys, floor=0.0).high))
    plot = Plot((760, 260 + rows * KEY_HEIGHT), span, y_span, Margins(top=10 + rows * KEY_HEIGHT))
    plot.legend([line.name for line in drawn])
    ticks = nice_ticks(y_span)
    plot.horizontal_grid(ticks, [percent(tick, 1 if y_span.high < 0.03 else 0) for tick in ticks])
    places = nice_ticks(span, 8)
    plot.bottom_labels(places, [percent(at, 0) if x_labels == "share" else f"{at:.4g}" for at in places])
    for index, line in enumerate(drawn):
        if line.low:
            edges = zip(line.points, line.low, line.high, strict=True)
            plot.area([(x, low, high) for (x, _), low, high in edges], "band")
        plot.line(line.points, f"curve l{index}")
    data = table("", title, ("line", axis, "value"), [(line.name, x, y) for line in drawn for x, y in line.points])
    return Figure(title, note, plot.render(title), data)


def heat_plot(matrix: Matrix) -> Figure:
    """Policies by environments: the darker the tile, the higher Pass@1; each tile says its interval."""
    left, top, width, height = 170.0, 30.0, 150.0, 52.0
    size = (left + width * len(matrix.environments) + 10, top + height * len(matrix.policies) + 10)
    plot = Plot(size, Range(0, 1), Range(0, 1))
    most = max((one.pass_at_1.value for one in matrix.cells), default=0.0) or 1.0
    for column, environment in enumerate(matrix.environments):
        plot.text(left + width * (column + 0.5), top - 10, environment, css="name other", anchor="middle")
    for row, policy in enumerate(matrix.policies):
        plot.text(left - 12, top + height * (row + 0.5) + 4, policy, css="name other", anchor="end")
        for column, environment in enumerate(matrix.environments):
            cell = matrix.cell(policy, environment)
            if cell:
                _draw_tile(plot, (left + width * column, top + height * row), (width, height), cell, most)
    data = matrix_tables(matrix)[0]
    return Figure(f"Matrix on {matrix.test_set}", "Pass@1, 95 % intervals", plot.render("Pass@1 of a matrix"), data)


def _draw_tile(plot: Plot, corner: tuple[float, float], size: tuple[float, float], cell: Cell, most: float) -> None:
    (x, y), (width, height), rate = corner, size, cell.pass_at_1
    share = round(0.06 + 0.5 * rate.value / most, 3)
    plot.element("rect", x=x + 2, y=y + 2, width=width - 4, height=height - 4, rx=5, opacity=share, css="tile")
    plot.text(x + width / 2, y + height / 2, percent(rate.value), css="value main", anchor="middle")
    plot.text(
        x + width / 2, y + height / 2 + 15, percent_interval(rate.ci_low, rate.ci_high), css="label", anchor="middle"
    )


def gap_plot(gap: Sequence[GapPoint]) -> Figure | None:
    """Reported reward and the true one of the same submissions, by training step; None with fewer than two steps."""
    lines = (
        Line("reported reward", [(one.step, one.reported) for one in gap]),
        Line("the same, every gate on", [(one.step, one.validated) for one in gap]),
        Line("marked by a detector", [(one.step, one.marked_share) for one in gap]),
    )
    return lines_plot("Reported reward against true validation", "the same submissions", lines, "step")


def abstention_plot(curves: Sequence[Abstention]) -> Figure | None:
    """Accuracy on the surest share, one line per confidence."""
    lines = [Line(one.confidence, [(point.coverage, point.accuracy) for point in one.points]) for one in curves]
    note = "success rate of the samples that are accepted, by the share that is"
    return lines_plot("Accuracy when the least sure are turned away", note, lines, "coverage", "share")


def exploit_plot(counts: Sequence[ExploitCount], steps: Sequence[int]) -> Figure | None:
    """Share of each step's episodes that a detector marked, exploits and suspicions alike; None without findings."""
    detectors = sorted({one.detector for one in counts}, key=lambda name: (-_total(counts, name), name))
    lines = []
    for detector in detectors:
        shares = dict.fromkeys(steps, 0.0)
        for one in counts:
            if one.detector == detector:
                shares[one.step] = min(1.0, shares[one.step] + one.share)
        lines.append(Line(detector, list(shares.items())))
    return lines_plot("Exploit findings during training", "share of the step's episodes", lines, "step")


def _total(counts: Sequence[ExploitCount], detector: str) -> int:
    return sum(one.num_episodes for one in counts if one.detector == detector)

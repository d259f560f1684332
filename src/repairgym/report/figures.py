"""Plots of the report and the viewer: pure functions from numbers to SVG with the drawn numbers.

Reads stage results, curves and shares; makes `Figure` records. Guarantees: a rate has its 95 % interval and an axis
from zero; both axes have names; an empty input makes no figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from repairgym.analysis.curves import Point
from repairgym.analysis.examples import ExploitCount
from repairgym.analysis.reward_gap import GapPoint
from repairgym.analysis.selection import Abstention
from repairgym.analysis.tables import Table, comparison_table, matrix_tables, stage_table, table
from repairgym.evaluation.matrix import Matrix, MatrixCell
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.stages import TREATMENT, stage_label
from repairgym.evaluation.summary import StageResult
from repairgym.report.svg import KEY_HEIGHT, Margins, Plot, Range, legend_rows, nice_ticks, padded
from repairgym.report.wording import interval, percent, percent_interval, points

_CURVE_SIZE = (310.0, 194.0)
_ROW_HEIGHT = 30.0
_ROW_MARGINS = Margins(left=270, right=76, top=8, bottom=44)
_WIDE_LEFT = 60.0
NUM_COLORS = 8


@dataclass(frozen=True)
class Figure:
    """A plot and its words."""

    title: str
    note: str
    svg: Markup
    data: Table
    """The drawn numbers."""


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
    """Draw Pass@1 with its 95 % interval over tasks, one row per stage."""
    high = max(result.pass_at_1.ci_high for result in results)
    span = Range(0.0, min(1.0, max(0.05, high * 1.08)))
    height = _ROW_HEIGHT * len(results) + 58
    plot = Plot((760, height), span, Range(len(results), 0), _ROW_MARGINS)
    ticks = nice_ticks(span, 6)
    plot.vertical_grid(ticks, [percent(tick, 0) for tick in ticks])
    for index, result in enumerate(results):
        rate = result.pass_at_1
        tip = f"{percent(rate.value)} ({percent_interval(rate.ci_low, rate.ci_high)}), {rate.num_tasks} tasks"
        row = _IntervalRow(stage_label(result.stage), rate.value, (rate.ci_low, rate.ci_high), tip, percent(rate.value))
        _draw_row(plot, index + 0.5, row, "main" if result.stage == TREATMENT else "other")
    plot.axis_titles("Pass@1")
    svg = plot.render("Pass@1 with 95 % intervals for each stage")
    return Figure(title, "95 % intervals over tasks", svg, stage_table(results))


def difference_plot(comparisons: Sequence[Comparison]) -> Figure:
    """Draw paired differences with their 95 % intervals, one row each; the heavy line is zero."""
    low = min(0.0, *(comparison.ci_low for comparison in comparisons))
    high = max(0.0, *(comparison.ci_high for comparison in comparisons))
    span = padded((low, high))
    height = _ROW_HEIGHT * len(comparisons) + 58
    plot = Plot((760, height), span, Range(len(comparisons), 0), _ROW_MARGINS)
    ticks = nice_ticks(span, 6)
    plot.vertical_grid(ticks, [points(tick).removesuffix(".0") if tick else "0" for tick in ticks])
    plot.element("line", x1=plot.x(0), x2=plot.x(0), y1=_ROW_MARGINS.top, y2=height - _ROW_MARGINS.bottom, css="zero")
    for index, pair in enumerate(comparisons):
        title = f"{points(pair.difference)} points ({interval(pair.ci_low, pair.ci_high)}), {pair.num_tasks} tasks"
        name = f"{stage_label(pair.treatment)} − {stage_label(pair.reference)}"
        row = _IntervalRow(name, pair.difference, (pair.ci_low, pair.ci_high), title, points(pair.difference))
        _draw_row(plot, index + 0.5, row, "main" if pair.is_clear else "other")
    plot.axis_titles("difference of Pass@1 in points")
    svg = plot.render("Paired differences of Pass@1 in points with 95 % intervals")
    return Figure("Paired differences", "95 % intervals over tasks", svg, comparison_table(comparisons))


@dataclass(frozen=True)
class _IntervalRow:
    name: str
    value: float
    interval: tuple[float, float]
    title: str
    label: str


def _draw_row(plot: Plot, place: float, row: _IntervalRow, css: str) -> None:
    y = plot.y(place)
    low, high = row.interval
    plot.text(_ROW_MARGINS.left - 12, y + 4, row.name, css=f"name {css}", anchor="end")
    plot.element("line", x1=plot.x(low), x2=plot.x(high), y1=y, y2=y, css=f"whisker {css}")
    plot.dot(row.value, place, row.title, f"dot {css}", radius=5)
    plot.text(plot.width - _ROW_MARGINS.right + 12, y + 4, row.label, css=f"value {css}")


def curve(series: Series) -> Figure | None:
    """Draw a small line plot by training step; None without points."""
    drawn = series.points
    if not drawn:
        return None
    values = [*(point.value for point in drawn), *series.low, *series.high]
    is_from_zero = series.is_rate or min(values) >= 0
    y_span = padded(values, floor=0.0 if is_from_zero else None)
    if series.is_rate:
        y_span = Range(0.0, min(1.0, y_span.high))
    x_span = Range(drawn[0].step, max(drawn[-1].step, drawn[0].step + 1))
    plot = Plot(_CURVE_SIZE, x_span, y_span)
    ticks = nice_ticks(y_span)
    plot.horizontal_grid(ticks, [percent(tick, 0) if series.is_rate else f"{tick:.4g}" for tick in ticks])
    steps = [tick for tick in nice_ticks(x_span, 5) if tick == int(tick)]
    plot.bottom_labels(steps, [f"{step:.0f}" for step in steps])
    plot.axis_titles("step")
    _draw_series(plot, series)
    lows: Sequence[float | None] = series.low or [None] * len(drawn)
    highs: Sequence[float | None] = series.high or [None] * len(drawn)
    rows = [(point.step, point.value, low, high) for point, low, high in zip(drawn, lows, highs, strict=True)]
    data = table("", series.title, ("step", "value", "low", "high"), rows)
    return Figure(series.title, series.note, plot.render(f"{series.title} by training step"), data)


def _draw_series(plot: Plot, series: Series) -> None:
    drawn = series.points
    if series.low:
        edges = zip(drawn, series.low, series.high, strict=True)
        plot.area([(point.step, low, high) for point, low, high in edges], "band")
    plot.line([(point.step, point.value) for point in drawn], "curve")
    for point in drawn if len(drawn) <= 60 else []:
        value = percent(point.value) if series.is_rate else f"{point.value:.4g}"
        plot.dot(point.step, point.value, f"step {point.step}: {value}", "dot main", radius=2.4)


def share_plot(by_step: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> Figure | None:
    """Draw stacked shares by training step, one band per name; None with fewer than two steps."""
    steps = sorted(by_step)
    if len(steps) < 2:
        return None
    key_rows = legend_rows(names)
    margins = Margins(left=_WIDE_LEFT, top=10 + key_rows * KEY_HEIGHT)
    plot = Plot((760, 244 + key_rows * KEY_HEIGHT), Range(steps[0], steps[-1]), Range(0.0, 1.0), margins)
    plot.legend(names)
    floors = dict.fromkeys(steps, 0.0)
    for index, name in enumerate(names):
        band = [(step, floors[step], floors[step] + by_step[step].get(name, 0.0)) for step in steps]
        plot.area(band, f"fill c{index % NUM_COLORS}")
        floors = {step: high for step, _, high in band}
    plot.horizontal_grid([0.0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    ticks = [tick for tick in nice_ticks(Range(steps[0], steps[-1]), 8) if tick == int(tick)]
    plot.bottom_labels(ticks, [f"{tick:.0f}" for tick in ticks])
    plot.axis_titles("training step", "share of all actions")
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


def lines_plot(
    title: str, note: str, lines: Sequence[Line], axes: tuple[str, str], x_labels: str = "step"
) -> Figure | None:
    """Draw several rates over one axis; None when no line has two points.

    Args:
        title: Of the figure.
        note: Below the title.
        lines: At most `NUM_COLORS`.
        axes: Names of the horizontal and the vertical axis.
        x_labels: ``step`` for whole numbers, ``share`` for percents.
    """
    drawn = [line for line in lines[:NUM_COLORS] if len(line.points) > 1]
    if not drawn:
        return None
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points] + [y for line in drawn for y in (*line.low, *line.high)]
    span = Range(min(xs), max(xs))
    rows = legend_rows([line.name for line in drawn])
    y_span = Range(0.0, min(1.0, padded(ys, floor=0.0).high))
    margins = Margins(left=_WIDE_LEFT, top=10 + rows * KEY_HEIGHT)
    plot = Plot((760, 274 + rows * KEY_HEIGHT), span, y_span, margins)
    plot.legend([line.name for line in drawn])
    ticks = nice_ticks(y_span)
    plot.horizontal_grid(ticks, [percent(tick, 1 if y_span.high < 0.03 else 0) for tick in ticks])
    places = nice_ticks(span, 8)
    plot.bottom_labels(places, [percent(at, 0) if x_labels == "share" else f"{at:.4g}" for at in places])
    plot.axis_titles(*axes)
    for index, line in enumerate(drawn):
        if line.low:
            edges = zip(line.points, line.low, line.high, strict=True)
            plot.area([(x, low, high) for (x, _), low, high in edges], "band")
        plot.line(line.points, f"curve l{index}")
    data = table(
        "",
        title,
        ("line", axes[0].replace(" ", "_"), "value"),
        [(line.name, x, y) for line in drawn for x, y in line.points],
    )
    return Figure(title, note, plot.render(title), data)


def heat_plot(matrix: Matrix) -> Figure:
    """Draw policies by environments: a darker tile means a higher Pass@1."""
    left, top, width, height = 170.0, 30.0, 150.0, 52.0
    size = (left + width * len(matrix.environments) + 10, top + height * len(matrix.policies) + 10)
    plot = Plot(size, Range(0, 1), Range(0, 1))
    most = max((cell.pass_at_1.value for cell in matrix.cells), default=0.0) or 1.0
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


def _draw_tile(
    plot: Plot, corner: tuple[float, float], size: tuple[float, float], cell: MatrixCell, most: float
) -> None:
    (x, y), (width, height), rate = corner, size, cell.pass_at_1
    share = round(0.06 + 0.5 * rate.value / most, 3)
    plot.element("rect", x=x + 2, y=y + 2, width=width - 4, height=height - 4, rx=5, opacity=share, css="tile")
    plot.text(x + width / 2, y + height / 2, percent(rate.value), css="value main", anchor="middle")
    plot.text(
        x + width / 2, y + height / 2 + 15, percent_interval(rate.ci_low, rate.ci_high), css="label", anchor="middle"
    )


def gap_plot(gap: Sequence[GapPoint]) -> Figure | None:
    """Draw reported and validated reward of the same submissions by training step; None with fewer than two steps."""
    lines = (
        Line("reported", [(point.step, point.reported) for point in gap]),
        Line("validated (every gate on)", [(point.step, point.validated) for point in gap]),
        Line("marked by a detector", [(point.step, point.marked_share) for point in gap]),
    )
    axes = ("training step", "mean reward, share marked")
    return lines_plot("Reported against validated reward", "the same submissions", lines, axes)


def abstention_plot(curves: Sequence[Abstention]) -> Figure | None:
    """Draw accuracy against coverage, one line per confidence score."""
    lines = [Line(curve.confidence, [(point.coverage, point.accuracy) for point in curve.points]) for curve in curves]
    note = "accuracy of the accepted samples, most confident first"
    return lines_plot("Selective prediction", note, lines, ("coverage", "accuracy"), "share")


def exploit_plot(counts: Sequence[ExploitCount], steps: Sequence[int]) -> Figure | None:
    """Draw the share of each step's episodes with findings, by detector; None without findings."""
    detectors = sorted({count.detector for count in counts}, key=lambda name: (-_total(counts, name), name))
    lines = []
    for detector in detectors:
        shares = dict.fromkeys(steps, 0.0)
        for count in counts:
            if count.detector == detector:
                shares[count.step] = min(1.0, shares[count.step] + count.share)
        lines.append(Line(detector, list(shares.items())))
    axes = ("training step", "share of episodes")
    return lines_plot("Exploit findings during training", "share of the step's episodes", lines, axes)


def _total(counts: Sequence[ExploitCount], detector: str) -> int:
    return sum(count.num_episodes for count in counts if count.detector == detector)

"""Plots of the report and the viewer: pure functions from numbers to SVG with the drawn numbers.

Reads stage results, curves and shares; makes `Figure` records. Guarantees: a rate has its 95 % interval and an axis
from zero; both axes have names; an empty input makes no figure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from repairgym.analysis.behavior import group_by
from repairgym.analysis.curves import GapPoint, Point
from repairgym.analysis.episodes import ExploitCount
from repairgym.analysis.selection import Abstention
from repairgym.analysis.tables import Table, comparison_table, matrix_tables, rank_table, stage_table, table
from repairgym.evaluation.matrix import Matrix
from repairgym.evaluation.ranking import Place
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.stages import TREATMENT, stage_label
from repairgym.evaluation.summary import StageResult
from repairgym.report.charts import SMALL, WIDE, Axis, Curve, Dot, Row, Tile, row_plot, tile_plot, xy_plot
from repairgym.report.svg import Margins, Plot, Range, nice_ticks, padded
from repairgym.report.wording import interval, percent, percent_interval, points

_WIDE_MARGINS = Margins(left=60)
_MAX_DOTS = 60
_ROW_HEIGHT = 30.0
_ROW_MARGINS = Margins(left=270, top=8, bottom=42)
_MAX_NAME_CHARS = 38
NUM_COLORS = 8


@dataclass(frozen=True)
class Figure:
    """A plot and its words."""

    title: str
    note: str
    svg: Markup
    """Empty where there is one value: the note holds it."""
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
    """Draw Pass@1 with its 95 % interval over tasks, one row per stage.

    Stages that tried another number of tasks than the trained policy (without one: than most) are no rows, because a
    chart compares; the note names them.
    """
    main = next((result for result in results if result.stage == TREATMENT), max(results, key=lambda it: it.num_tasks))
    rows, others = [], [result for result in results if result.num_tasks != main.num_tasks]
    for result in results:
        if result in others:
            continue
        rate = result.pass_at_1
        tip = f"{percent(rate.value)} ({percent_interval(rate.ci_low, rate.ci_high)}), {rate.num_tasks} tasks"
        name, limits = stage_label(result.stage), (rate.ci_low, rate.ci_high)
        rows.append(_interval_row(name, rate.value, limits, tip, percent(rate.value), result.stage == TREATMENT))
    svg = _rate_rows(rows).render("Pass@1 with 95 % intervals for each stage")
    names = [f"{stage_label(it.stage)} ({it.num_tasks} tasks)" for it in others]
    note = f"; not drawn next to {main.num_tasks} tasks: {', '.join(names)}" if others else ""
    return Figure(title, f"95 % intervals over tasks{note}", svg, stage_table(results))


def difference_plot(comparisons: Sequence[Comparison]) -> Figure | None:
    """Draw paired differences with their 95 % intervals, one row each; the heavy line is zero. None without any."""
    if not comparisons:
        return None
    rows = []
    for pair in comparisons:
        tip = f"{points(pair.difference)} points ({interval(pair.ci_low, pair.ci_high)}), {pair.num_tasks} tasks"
        name, limits = f"{stage_label(pair.treatment)} − {stage_label(pair.reference)}", (pair.ci_low, pair.ci_high)
        rows.append(_interval_row(name, pair.difference, limits, tip, points(pair.difference), pair.is_clear))
    span = padded([0.0, *(limit for pair in comparisons for limit in (pair.ci_low, pair.ci_high))])
    axis = Axis(
        "difference of Pass@1 in points",
        span,
        nice_ticks(span, 6),
        lambda tick: points(tick).removesuffix(".0") if tick else "0",
    )
    svg = row_plot(rows, axis, _ROW_HEIGHT, _ROW_MARGINS._replace(right=76)).render(
        "Paired differences of Pass@1 in points with 95 % intervals"
    )
    return Figure("Paired differences", "95 % intervals over tasks", svg, comparison_table(comparisons))


def rank_plot(places: Sequence[Place], labels: Mapping[str, str], title: str) -> Figure:
    """Draw Pass@1 with its 95 % interval, one row per policy with its ranks; the best are the distinct color."""
    rows = []
    for place in places:
        rate, ranks = place.pass_at_1, f"{place.rank_low}"
        ranks += f"–{place.rank_high}" if place.rank_high > place.rank_low else ""
        tip = f"{percent(rate.value)} ({percent_interval(rate.ci_low, rate.ci_high)}), rank {ranks}"
        label, limits = labels.get(place.name, place.name), (rate.ci_low, rate.ci_high)
        label = label if len(label) <= _MAX_NAME_CHARS else f"{label[: _MAX_NAME_CHARS - 1]}…"
        words = f"{percent(rate.value)}  rank {ranks}"
        rows.append(_interval_row(label, rate.value, limits, tip, words, place.rank_low == 1))
    svg = _rate_rows(rows, right=150).render(title)
    return Figure(title, "95 % intervals over tasks", svg, rank_table(places, title))


def _interval_row(name: str, value: float, interval: tuple[float, float], words: str, label: str, is_main: bool) -> Row:
    return Row(name, "main" if is_main else "other", Dot(value, 0.0, words), interval, label)


def _rate_rows(rows: Sequence[Row], right: float = 76) -> Plot:
    """Return the rows of Pass@1 with an axis from zero."""
    highest = max(row.interval[1] for row in rows if row.interval)
    span = Range(0.0, min(1.0, max(0.05, highest * 1.08)))
    axis = Axis("Pass@1", span, nice_ticks(span, 6), lambda tick: percent(tick, 0))
    return row_plot(rows, axis, _ROW_HEIGHT, _ROW_MARGINS._replace(right=right))


def curves(series: Iterable[Series]) -> list[Figure]:
    """Draw each series that has points."""
    return [figure for drawn in series if (figure := curve(drawn))]


def curve(series: Series) -> Figure | None:
    """Draw a small line plot by training step; the only point is a word, not a plot; None without points."""
    drawn = series.points
    if not drawn:
        return None
    if len(drawn) == 1:
        return _only_point(series)
    values = [*(point.value for point in drawn), *series.low, *series.high]
    is_from_zero = series.is_rate or min(values) >= 0
    y_span = padded(values, floor=0.0 if is_from_zero else None)
    if series.is_rate:
        y_span = Range(0.0, min(1.0, y_span.high))
    x_span = Range(drawn[0].step, max(drawn[-1].step, drawn[0].step + 1))
    plot = xy_plot(
        SMALL,
        Axis("step", x_span, _whole(nice_ticks(x_span, 5)), _short),
        Axis("", y_span, nice_ticks(y_span), lambda tick: percent(tick, 0) if series.is_rate else _short(tick)),
        [_curve_of(series)],
    )
    return Figure(series.title, series.note, plot.render(f"{series.title} by training step"), _numbers_of(series))


def _only_point(series: Series) -> Figure:
    point, write = series.points[0], percent if series.is_rate else _short
    limits = f" ({write(series.low[0])} to {write(series.high[0])})" if series.low else ""
    note = f"{write(point.value)}{limits} at step {point.step}; {series.note}"
    return Figure(series.title, note, Markup(""), _numbers_of(series))


def _numbers_of(series: Series) -> Table:
    drawn = series.points
    lows: Sequence[float | None] = series.low or [None] * len(drawn)
    highs: Sequence[float | None] = series.high or [None] * len(drawn)
    rows = [(point.step, point.value, low, high) for point, low, high in zip(drawn, lows, highs, strict=True)]
    return table("", series.title, ("step", "value", "low", "high"), rows)


def _curve_of(series: Series) -> Curve:
    drawn = series.points
    edges = zip(drawn, series.low, series.high, strict=True) if series.low else ()
    values = [percent(point.value) if series.is_rate else _short(point.value) for point in drawn]
    dots = [Dot(it.step, it.value, f"step {it.step}: {value}") for it, value in zip(drawn, values, strict=True)]
    return Curve(
        [(point.step, point.value) for point in drawn],
        band=[(point.step, low, high) for point, low, high in edges],
        dots=dots if len(drawn) <= _MAX_DOTS else (),
        radius=2.4,
    )


def share_plot(by_step: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> Figure | None:
    """Draw stacked shares by training step, one band per name; None with fewer than two steps."""
    steps = sorted(by_step)
    if len(steps) < 2:
        return None
    span = Range(steps[0], steps[-1])
    floors, bands = dict.fromkeys(steps, 0.0), []
    for index, name in enumerate(names):
        band = [(step, floors[step], floors[step] + by_step[step].get(name, 0.0)) for step in steps]
        bands.append(Curve(band=band, band_css=f"fill c{index % NUM_COLORS}"))
        floors = {step: high for step, _, high in band}
    y = Axis("share of all actions", Range(0.0, 1.0), [0.0, 0.5, 1.0], lambda tick: percent(tick, 0))
    x = Axis("training step", span, _whole(nice_ticks(span, 8)), _short)
    plot = xy_plot((WIDE[0], 244), x, y, bands, legend=names, margins=_WIDE_MARGINS)
    rows = [(step, name, by_step[step].get(name, 0.0)) for step in steps for name in names]
    data = table("", "Tools during training", ("step", "tool", "share"), rows)
    svg = plot.render("Share of each tool among all actions, by training step")
    return Figure("Tools during training", "share of all actions", svg, data)


def _whole(ticks: Sequence[float]) -> list[float]:
    return [tick for tick in ticks if tick == int(tick)]


def _short(value: float) -> str:
    return f"{value:.4g}"


Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Name -> points of a line."""


def lines_plot(
    title: str, note: str, lines: Lines, axes: tuple[str, str], x_label: Callable[[float], str] = _short
) -> Figure | None:
    """Draw up to `NUM_COLORS` lines of rates over the horizontal and vertical axis; None when none has two points."""
    drawn = {name: line for name, line in list(lines.items())[:NUM_COLORS] if len(line) > 1}
    if not drawn:
        return None
    rows = [(name, x, y) for name, line in drawn.items() for x, y in line]
    span = Range(min(x for _, x, _ in rows), max(x for _, x, _ in rows))
    y_span = Range(0.0, min(1.0, padded([y for _, _, y in rows], floor=0.0).high))
    plot = xy_plot(
        WIDE,
        Axis(axes[0], span, nice_ticks(span, 8), x_label),
        Axis(axes[1], y_span, nice_ticks(y_span), lambda tick: percent(tick, 1 if y_span.high < 0.03 else 0)),
        [Curve(line, f"curve l{index}") for index, line in enumerate(drawn.values())],
        legend=list(drawn),
        margins=_WIDE_MARGINS,
    )
    data = table("", title, ("line", axes[0].replace(" ", "_"), "value"), rows)
    return Figure(title, note, plot.render(title), data)


def heat_plot(matrix: Matrix) -> Figure:
    """Draw policies by environments: a darker tile means a higher Pass@1."""
    most = max((cell.pass_at_1.value for cell in matrix.cells), default=0.0) or 1.0
    tiles = {
        (cell.policy, cell.environment): Tile(
            rate.value / most, percent(rate.value), percent_interval(rate.ci_low, rate.ci_high)
        )
        for cell in matrix.cells
        for rate in (cell.pass_at_1,)
    }
    svg = tile_plot(matrix.policies, matrix.environments, tiles).render("Pass@1 of a matrix")
    return Figure(f"Matrix on {matrix.test_set}", "Pass@1, 95 % intervals", svg, matrix_tables(matrix)[0])


def gap_plot(gap: Sequence[GapPoint]) -> Figure | None:
    """Draw reported and validated reward of the same submissions by training step; None with fewer than two steps."""
    lines: Lines = {
        "reported": [(point.step, point.reported) for point in gap],
        "validated (every gate on)": [(point.step, point.validated) for point in gap],
        "marked by a detector": [(point.step, point.marked_share) for point in gap],
    }
    axes = ("training step", "mean reward, share marked")
    return lines_plot("Reported against validated reward", "the same submissions", lines, axes)


def abstention_plot(scores: Sequence[Abstention]) -> Figure | None:
    """Draw accuracy against coverage, one line per confidence score."""
    lines = {score.confidence: score.points for score in scores}
    note = "accuracy of the accepted samples, most confident first"
    return lines_plot("Selective prediction", note, lines, ("coverage", "accuracy"), lambda at: percent(at, 0))


def exploit_plot(counts: Sequence[ExploitCount], steps: Sequence[int]) -> Figure | None:
    """Draw the share of each step's episodes with findings, by detector; None without findings."""
    by_detector = group_by(counts, lambda count: count.detector)
    most_first = sorted(by_detector, key=lambda name: (-sum(it.num_episodes for it in by_detector[name]), name))
    lines = {}
    for detector in most_first:
        shares = dict.fromkeys(steps, 0.0)
        for count in by_detector[detector]:
            shares[count.step] = min(1.0, shares[count.step] + count.share)
        lines[detector] = list(shares.items())
    axes = ("training step", "share of episodes")
    return lines_plot("Exploit findings during training", "share of the step's episodes", lines, axes)

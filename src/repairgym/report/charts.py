"""Charts over two axes, rows over one, and tiles: the only place that draws for the report, the viewer and sweeps.

Reads numbers with their axes; makes a `Plot`. Guarantees: a horizontal axis has ticks and a name; bands lie below the
grid, all else above it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from repairgym.report.svg import KEY_HEIGHT, Margins, Plot, Range, legend_rows

SMALL, LARGE, WIDE = (310.0, 194.0), (860.0, 340.0), (760.0, 274.0)
_CHAR_WIDTH = 7.4
_TILES_LEFT, _TILES_TOP, _TILE_SIZE = 170.0, 30.0, (150.0, 52.0)


class Axis(NamedTuple):
    """The data along one side of a chart."""

    title: str
    span: Range
    ticks: Sequence[float]
    label: Callable[[float], str]


class Dot(NamedTuple):
    """A point with the words that appear over it."""

    x: float
    y: float
    words: str
    address: str = ""
    """Page that it leads to; empty: none."""


@dataclass(frozen=True)
class Curve:
    """A line, the band around it, and its points; each may be absent."""

    line: Sequence[tuple[float, float]] = ()
    css: str = "curve"
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high)."""
    band_css: str = "band"
    dots: Sequence[Dot] = ()
    radius: float = 3.0


def xy_plot(
    size: tuple[float, float],
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    *,
    legend: Sequence[str] = (),
    margins: Margins | None = None,
) -> Plot:
    """Return a chart of ``curves``, below a legend of their names where it is given."""
    margins = margins or Margins()
    legend_height = legend_rows(legend) * KEY_HEIGHT if legend else 0.0
    plot = Plot((size[0], size[1] + legend_height), x.span, y.span, margins._replace(top=margins.top + legend_height))
    if legend:
        plot.legend(legend)
    for curve in curves:
        if curve.band:
            plot.area(curve.band, curve.band_css)
    plot.horizontal_grid(y.ticks, y.label)
    plot.bottom_labels(x.ticks, x.label)
    plot.axis_titles(x.title, y.title)
    for curve in curves:
        if curve.line:
            plot.line(curve.line, curve.css)
    for curve in curves:
        for dot in curve.dots:
            if dot.address:
                plot.linked_dot(dot.x, dot.y, dot.words, dot.address, "dot main", curve.radius)
            else:
                plot.dot(dot.x, dot.y, dot.words, "dot main", curve.radius)
    return plot


class Bar(NamedTuple):
    """A stretch of a row."""

    start: float
    end: float
    css: str
    words: str


@dataclass(frozen=True)
class Row:
    """A name with what lies on its line: a value and its interval, or stretches one after the other."""

    name: str
    css: str = "other"
    """``main`` or ``other``: of the name, the value and the interval."""
    dot: Dot | None = None
    """The value; its place on the vertical axis is that of the row."""
    interval: tuple[float, float] | None = None
    label: str = ""
    """Words on the right."""
    bars: Sequence[Bar] = ()


def row_plot(rows: Sequence[Row], x: Axis, height: float, margins: Margins, *, name_css: str = "name") -> Plot:
    """Return a chart of one row per name, each ``height`` high, with a heavy line at a zero inside of the span.

    The left margin is a bound: names that are shorter leave their room to the values.
    """
    margins = margins._replace(left=min(margins.left, 24 + _CHAR_WIDTH * max(len(row.name) for row in rows)))
    total = height * len(rows) + margins.top + margins.bottom
    plot = Plot((WIDE[0], total), x.span, Range(len(rows), 0), margins)
    plot.vertical_grid(x.ticks, x.label)
    if x.span.low < 0:
        plot.element("line", x1=plot.x(0), x2=plot.x(0), y1=margins.top, y2=total - margins.bottom, css="zero")
    for index, row in enumerate(rows):
        y = plot.y(index + 0.5)
        plot.text(margins.left - 8, y + 4, row.name, css=f"{name_css} {row.css}", anchor="end")
        if row.interval is not None:
            low, high = map(plot.x, row.interval)
            plot.element("line", x1=low, x2=high, y1=y, y2=y, css=f"whisker {row.css}")
        if row.dot is not None:
            plot.dot(row.dot.x, index + 0.5, row.dot.words, f"dot {row.css}", radius=5)
        for bar in row.bars:
            left, tip = plot.x(bar.start), Markup("<title>{}</title>").format(bar.words)
            place = {"x": left, "y": y - height / 2 + 2, "width": round(max(0.5, plot.x(bar.end) - left), 2)}
            plot.element("rect", tip, **place, height=height - 4, rx=2, css=bar.css)
        if row.label:
            plot.text(plot.width - margins.right + 12, y + 4, row.label, css=f"value {row.css}")
    plot.axis_titles(x.title)
    return plot


class Tile(NamedTuple):
    """One value of a table of tiles, with its words."""

    weight: float
    """0 to 1: the darkness of the tile."""
    value: str
    note: str


def tile_plot(rows: Sequence[str], columns: Sequence[str], tiles: Mapping[tuple[str, str], Tile]) -> Plot:
    """Return a table of tiles by (row, column); a pair without a tile stays empty."""
    width, height = _TILE_SIZE
    size = (_TILES_LEFT + width * len(columns) + 10, _TILES_TOP + height * len(rows) + 10)
    margins = Margins(left=_TILES_LEFT, right=10, top=_TILES_TOP, bottom=10)
    plot = Plot(size, Range(0, len(columns)), Range(len(rows), 0), margins)
    for column, name in enumerate(columns):
        plot.text(plot.x(column + 0.5), _TILES_TOP - 10, name, css="name other", anchor="middle")
    for row, name in enumerate(rows):
        plot.text(_TILES_LEFT - 12, plot.y(row + 0.5) + 4, name, css="name other", anchor="end")
        for column, other in enumerate(columns):
            if tile := tiles.get((name, other)):
                x, y, share = plot.x(column), plot.y(row), round(0.06 + 0.5 * tile.weight, 3)
                place = {"x": x + 2, "y": y + 2, "width": width - 4, "height": height - 4, "rx": 5}
                plot.element("rect", "", **place, opacity=share, css="tile")
                plot.text(x + width / 2, y + height / 2, tile.value, css="value main", anchor="middle")
                plot.text(x + width / 2, y + height / 2 + 15, tile.note, anchor="middle")
    return plot

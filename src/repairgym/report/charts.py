"""Charts over two axes: the only place that draws lines, bands and points, for the report, the viewer and sweeps.

Reads numbers with their axes; makes a `Plot`. Guarantees: both axes have ticks and the horizontal one a name; bands lie
below the grid, lines and points above it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repairgym.report.svg import KEY_HEIGHT, Margins, Plot, Range, legend_rows

SMALL, LARGE, WIDE = (310.0, 194.0), (860.0, 340.0), (760.0, 274.0)


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

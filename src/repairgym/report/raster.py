"""The report's plots as files of their own: SVG with its colours in it, and PNG.

Reads SVG of :mod:`.svg` (lines, polylines, polygons, circles, rectangles, text with the report's classes); makes
standalone SVG text and PNG bytes. Invariants: both show the same elements in the light colours of the page; an element
or class that is not known is an error, so that no figure is exported with a part missing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch, Polygon, Rectangle

INK, MUTED, LINE, ACCENT, CARD = "#1f2328", "#646b73", "#e3e0d8", "#0b6e6e", "#ffffff"
PALETTE = ("#0b6e6e", "#d08a1d", "#5b6fb5", "#b4574b", "#6b8e4e", "#8a5a9e", "#4a97b8", "#8b8579")
_FILLS = {f"c{index}": colour for index, colour in enumerate(PALETTE)}
_LINES = {f"l{index}": colour for index, colour in enumerate(PALETTE)}
_BAND_OPACITY = 0.14
_WHISKER_OPACITY = 0.55
_POINTS_PER_PIXEL = 72.0 / 96.0

STYLE = f"""
svg {{ font: 11px sans-serif; background: {CARD}; }}
.label {{ fill: {MUTED}; font-size: 12px; }} .grid {{ stroke: {LINE}; }} .zero {{ stroke: {MUTED}; stroke-width: 1.5; }}
.name, .value {{ font-size: 13px; fill: {INK}; }} .name.main, .value.main {{ font-weight: 650; }}
.value.other {{ fill: {MUTED}; }}
.whisker {{ stroke-width: 3; opacity: {_WHISKER_OPACITY}; }}
.whisker.main {{ stroke: {ACCENT}; }} .whisker.other {{ stroke: {MUTED}; }}
.dot.main {{ fill: {ACCENT}; }} .dot.other {{ fill: {MUTED}; }} .tile {{ fill: {ACCENT}; }}
.curve {{ fill: none; stroke: {ACCENT}; stroke-width: 2; }} .band {{ fill: {ACCENT}; opacity: {_BAND_OPACITY}; }}
.fill {{ stroke: {CARD}; stroke-width: .75; }}
""" + "".join(
    [f".{name} {{ fill: {colour}; }} " for name, colour in _FILLS.items()]
    + [f".curve.{name} {{ stroke: {colour}; }} " for name, colour in _LINES.items()]
)


def standalone(svg: str) -> str:
    """The plot as a file that needs no page."""
    width, height = _size(svg)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
    return re.sub(r">", f"><style>{STYLE}</style>", svg.replace("<svg ", head, 1), count=1) + "\n"


def png(svg: str, dpi: int = 144) -> bytes:
    """The plot as PNG.

    Raises:
        ValueError: the SVG holds an element or a class that is not known here.
    """
    width, height = _size(svg)
    canvas = Canvas(figsize=(width / 96.0, height / 96.0), dpi=dpi, facecolor=CARD)
    axes = canvas.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for element in ElementTree.fromstring(svg):
        draw = _DRAW.get(element.tag)
        if draw is None:
            raise ValueError(f"got the SVG element {element.tag!r}, expected one of {sorted(_DRAW)}")
        draw(axes, element, (element.get("class") or "").split())
    buffer = io.BytesIO()
    FigureCanvasAgg(canvas)
    canvas.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _size(svg: str) -> tuple[float, float]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if not found:
        raise ValueError("the plot has no viewBox")
    return float(found[1]), float(found[2])


def _number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name) or 0.0)


def _stroke(classes: Sequence[str]) -> tuple[str, float, float]:
    """Colour, width and opacity of a line."""
    if "grid" in classes:
        return LINE, 1.0, 1.0
    if "zero" in classes:
        return MUTED, 1.5, 1.0
    if "whisker" in classes:
        return (ACCENT if "main" in classes else MUTED), 3.0, _WHISKER_OPACITY
    if "curve" in classes:
        return next((_LINES[name] for name in classes if name in _LINES), ACCENT), 2.0, 1.0
    raise ValueError(f"got a line of the classes {list(classes)}, expected grid, zero, whisker or curve")


def _fill(classes: Sequence[str]) -> tuple[str, float]:
    """Colour and opacity of an area."""
    coloured = next((_FILLS[name] for name in classes if name in _FILLS), None)
    if coloured:
        return coloured, 1.0
    if "band" in classes:
        return ACCENT, _BAND_OPACITY
    if "dot" in classes:
        return (ACCENT if "main" in classes else MUTED), 1.0
    if "tile" in classes:
        return ACCENT, 1.0
    raise ValueError(f"got an area of the classes {list(classes)}, expected band, dot, tile or c0 to c7")


def _points(element: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in (element.get("points") or "").split())
    return [(float(x), float(y)) for x, y in pairs]


def _draw_line(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    ends = [(_number(element, f"x{end}"), _number(element, f"y{end}")) for end in (1, 2)]
    _add_line(axes, ends, classes)


def _draw_polyline(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    _add_line(axes, _points(element), classes)


def _add_line(axes: object, points: Sequence[tuple[float, float]], classes: Sequence[str]) -> None:
    colour, width, opacity = _stroke(classes)
    xs, ys = zip(*points, strict=True)
    line = Line2D(xs, ys, color=colour, linewidth=width * _POINTS_PER_PIXEL, alpha=opacity)
    axes.add_line(line)  # type: ignore[attr-defined]


def _add_patch(axes: object, patch: Patch, classes: Sequence[str], opacity: float = 1.0) -> None:
    colour, own = _fill(classes)
    patch.set(facecolor=colour, alpha=own * opacity, edgecolor=CARD if "fill" in classes else "none", linewidth=0.5)
    axes.add_patch(patch)  # type: ignore[attr-defined]


def _draw_polygon(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    _add_patch(axes, Polygon(_points(element)), classes)


def _draw_circle(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    centre = (_number(element, "cx"), _number(element, "cy"))
    _add_patch(axes, Circle(centre, _number(element, "r")), classes)


def _draw_rect(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    corner = (_number(element, "x"), _number(element, "y"))
    patch = Rectangle(corner, _number(element, "width"), _number(element, "height"))
    _add_patch(axes, patch, classes, float(element.get("opacity") or 1.0))


def _draw_text(axes: object, element: ElementTree.Element, classes: Sequence[str]) -> None:
    sides = {"start": "left", "middle": "center", "end": "right"}
    is_small = "label" in classes
    axes.text(  # type: ignore[attr-defined]
        _number(element, "x"),
        _number(element, "y"),
        (element.text or "").replace("$", r"\$"),
        color=MUTED if is_small or ("other" in classes and "value" in classes) else INK,
        fontsize=(12 if is_small else 13) * _POINTS_PER_PIXEL,
        fontweight="bold" if "main" in classes else "normal",
        ha=sides[element.get("text-anchor") or "start"],
        va="baseline",
    )


_DRAW: Mapping[str, Callable[[object, ElementTree.Element, Sequence[str]], None]] = {
    "line": _draw_line,
    "polyline": _draw_polyline,
    "polygon": _draw_polygon,
    "circle": _draw_circle,
    "rect": _draw_rect,
    "text": _draw_text,
}

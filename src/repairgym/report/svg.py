"""Small SVG plots that follow the light or dark colors of their page.

Reads numbers; makes SVG markup with the CSS classes of ``base.css``. Guarantees: text is escaped; a plot holds no
absolute color.
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from repairgym.report.safe_text import visible

STATIC_FOLDER = Path(__file__).with_name("static")
"""``base.css``, which the viewer serves and the report inlines."""

KEY_HEIGHT = 18.0
"""Height of one row of a legend."""
_KEY_LEFT = 44.0
_KEY_RIGHT = 740.0
_CHAR_WIDTH = 6.6


class Range(NamedTuple):
    """A closed interval of data."""

    low: float
    high: float


class Margins(NamedTuple):
    """Space around the plotting area, in view-box units."""

    left: float = 44
    right: float = 12
    top: float = 10
    bottom: float = 40


def nice_ticks(span: Range, num_ticks: int = 4) -> list[float]:
    """Return about ``num_ticks`` round numbers within ``span``."""
    width = span.high - span.low
    if width <= 0:
        return [span.low]
    rough = width / max(1, num_ticks)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999)
    first = math.ceil(span.low / step - 1e-9)
    last = math.floor(span.high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def padded(values: Sequence[float], *, floor: float | None = None, share: float = 0.08) -> Range:
    """Return a range with some margin around ``values``; it starts at ``floor`` if given."""
    low, high = min(values), max(values)
    air = (high - low) * share or abs(high) * 0.1 or 0.1
    return Range(low - air if floor is None else floor, high + air)


def legend_places(names: Sequence[str]) -> list[tuple[float, int]]:
    """Return (x, row) of each name, filling the rows of a plot of full width."""
    places: list[tuple[float, int]] = []
    x, row = _KEY_LEFT, 0
    for name in names:
        width = 34.0 + _CHAR_WIDTH * len(name)
        if x > _KEY_LEFT and x + width > _KEY_RIGHT:
            x, row = _KEY_LEFT, row + 1
        places.append((x, row))
        x += width
    return places


def legend_rows(names: Sequence[str]) -> int:
    """Return the number of rows of a legend."""
    return 1 + max((row for _, row in legend_places(names)), default=-1)


class Plot:
    """One plot, drawn element by element."""

    def __init__(self, size: tuple[float, float], x: Range, y: Range, margins: Margins | None = None) -> None:
        self.width, self.height = size
        self._x, self._y = x, y
        self._margins = margins or Margins()
        self._parts: list[Markup] = []

    def x(self, value: float) -> float:
        """Return the horizontal place of a data value."""
        inner = self.width - self._margins.left - self._margins.right
        return round(self._margins.left + _position(value, self._x) * inner, 2)

    def y(self, value: float) -> float:
        """Return the vertical place of a data value."""
        inner = self.height - self._margins.top - self._margins.bottom
        return round(self.height - self._margins.bottom - _position(value, self._y) * inner, 2)

    def element(self, name: str, text: str = "", **attributes: object) -> None:
        """Add an element; ``css`` becomes its class, underscores in names become hyphens."""
        words = (("class" if key == "css" else key.replace("_", "-"), value) for key, value in attributes.items())
        inside = "".join(f' {key}="{value if isinstance(value, float) else escape(value)}"' for key, value in words)
        self._parts.append(Markup(f"<{name}{inside}>{escape(text)}</{name}>"))  # format() of Markup is ten times slower

    def text(self, x: float, y: float, text: str, *, css: str = "label", anchor: str = "start") -> None:
        """Add text at a place in view-box units."""
        self.element("text", text, x=x, y=y, css=css, text_anchor=anchor)

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Add a polyline through data points."""
        path = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        self.element("polyline", points=path, css=css)

    def area(self, points: Sequence[tuple[float, float, float]], css: str) -> None:
        """Add the band between low and high; points are (x, low, high)."""
        upper = [f"{self.x(x)},{self.y(high)}" for x, _, high in points]
        lower = [f"{self.x(x)},{self.y(low)}" for x, low, _ in reversed(points)]
        self.element("polygon", points=" ".join(upper + lower), css=css)

    def dot(self, x: float, y: float, title: str, css: str, radius: float = 3.0) -> None:
        """Add a point in data units with a hover title."""
        tip = Markup("<title>{}</title>").format(title)
        self.element("circle", tip, cx=self.x(x), cy=self.y(y), r=radius, css=css)

    def linked_dot(self, x: float, y: float, title: str, address: str, css: str, radius: float = 3.0) -> None:
        """Add a point in data units that leads to ``address``, with a larger area to hit."""
        words, place = escape(title), f'cx="{self.x(x)}" cy="{self.y(y)}"'
        self._parts.append(
            Markup(
                f'<a href="{escape(address)}" aria-label="{words}"><title>{words}</title><circle {place} r="9" '
                f'class="hit"/><circle {place} r="{radius}" class="{css}"/></a>'
            )
        )

    def horizontal_grid(self, ticks: Sequence[float], label: Callable[[float], str]) -> None:
        """Add lines at values of y with their labels on the left."""
        left, right = self._margins.left, self.width - self._margins.right
        for tick in ticks:
            self.element("line", x1=left, x2=right, y1=self.y(tick), y2=self.y(tick), css="grid")
            self.text(left - 6, self.y(tick) + 3.5, label(tick), anchor="end")

    def vertical_grid(self, ticks: Sequence[float], label: Callable[[float], str]) -> None:
        """Add lines at values of x with their labels below."""
        top, bottom = self._margins.top, self.height - self._margins.bottom
        for tick in ticks:
            self.element("line", x1=self.x(tick), x2=self.x(tick), y1=top, y2=bottom, css="grid")
        self.bottom_labels(ticks, label)

    def bottom_labels(self, ticks: Sequence[float], label: Callable[[float], str]) -> None:
        """Add labels below, without lines."""
        for tick in ticks:
            self.text(self.x(tick), self.height - self._margins.bottom + 16, label(tick), anchor="middle")

    def axis_titles(self, x: str, y: str = "") -> None:
        """Name the horizontal axis below and the vertical one along the left side."""
        area = self._margins
        self.text((area.left + self.width - area.right) / 2, self.height - 5, x, css="axis", anchor="middle")
        if y:
            middle = (area.top + self.height - area.bottom) / 2
            turned = f"rotate(-90 12 {middle:g})"
            self.element("text", y, x=12, y=middle, transform=turned, css="axis", text_anchor="middle")

    def legend(self, names: Sequence[str]) -> None:
        """Add the names of the colors c0, c1, ... above the plotting area."""
        for index, (name, (x, row)) in enumerate(zip(names, legend_places(names), strict=True)):
            y = row * KEY_HEIGHT + 4
            self.element("rect", x=x, y=y, width=10, height=10, css=f"c{index}")
            self.text(x + 15, y + 9, name.replace("_", " "))

    def render(self, description: str) -> Markup:
        """Return the SVG element; ``description`` is its text alternative."""
        body = Markup("").join(self._parts)
        role = "group" if "<a " in body else "img"  # a picture cannot hold links
        return Markup('<svg viewBox="0 0 {} {}" role="{}" aria-label="{}">{}</svg>').format(
            f"{self.width:g}", f"{self.height:g}", role, escape(description), body
        )


def _position(value: float, span: Range) -> float:
    width = span.high - span.low
    return (value - span.low) / width if width else 0.5


def standalone(svg: str) -> str:
    """Return a plot as an SVG file with the light colors of the page in it.

    Raises:
        ValueError: the plot has no view box.
    """
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if not size:
        raise ValueError("the plot has no viewBox")
    css = (STATIC_FOLDER / "base.css").read_text()
    colors: dict[str, str] = dict(re.findall(r"--([\w-]+): ([^;]+);", css.partition("@media")[0]))
    rules = css.partition("/* --- charts")[2].partition("*/")[2].partition("/* ---")[0].strip()
    style = f"svg {{ background: {colors['card']}; }}\n" + re.sub(
        r"var\(--([\w-]+)\)", lambda name: colors[name[1]], rules
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[1]}" height="{size[2]}" '
    return visible(svg).replace("<svg ", head, 1).replace(">", f"><style>{style}</style>", 1) + "\n"

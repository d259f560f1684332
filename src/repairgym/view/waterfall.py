"""A rollout as a waterfall: when each turn sampled, when its tool ran, and when the end was graded.

Reads the stored seconds of turns and stages; makes SVG. Guarantees: bars follow each other without the waits between
turns, which no turn records; the longest rollouts are drawn up to a bound, and the rest is one bar.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from repairgym.records import Turn
from repairgym.report.svg import Margins, Plot, Range, nice_ticks
from repairgym.report.wording import seconds

_MAX_ROWS = 60
_ROW_HEIGHT = 16.0
_MARGINS = Margins(left=130, right=14, top=6, bottom=36)


class _Bar(NamedTuple):
    name: str
    start_s: float
    parts: tuple[tuple[str, float], ...]
    """(css, seconds) in order."""


def waterfall(turns: Sequence[Turn], durations_s: Mapping[str, float]) -> Markup:
    """Draw a rollout; empty where no time was stored."""
    bars = list(_bars(turns, durations_s))
    end_s = max((bar.start_s + sum(part for _, part in bar.parts) for bar in bars), default=0.0)
    if end_s <= 0:
        return Markup("")
    height = _ROW_HEIGHT * len(bars) + _MARGINS.top + _MARGINS.bottom
    plot = Plot((760, height), Range(0, end_s), Range(len(bars), 0), _MARGINS)
    plot.vertical_grid(nice_ticks(Range(0, end_s), 8), lambda tick: f"{tick:.4g}")
    for row, bar in enumerate(bars):
        plot.text(_MARGINS.left - 8, plot.y(row + 0.5) + 4, bar.name, anchor="end")
        start_s = bar.start_s
        for css, part_s in bar.parts:
            title = Markup("<title>{}: {} {}</title>").format(bar.name, css, seconds(part_s))
            width = max(0.5, plot.x(start_s + part_s) - plot.x(start_s))
            place = {"x": plot.x(start_s), "y": plot.y(row) + 2, "width": round(width, 2), "height": _ROW_HEIGHT - 4}
            plot.element("rect", title, **place, rx=2, css=f"w-{css}")
            start_s += part_s
    plot.axis_titles("seconds, without waits")
    return plot.render("Seconds of each turn: sampling, then its tool; at the end grading")


def _bars(turns: Sequence[Turn], durations_s: Mapping[str, float]) -> "list[_Bar]":
    bars, at_s = [], 0.0
    for number, turn in enumerate(turns[:_MAX_ROWS], 1):
        parts = (("generate", turn.generate_s), ("tool", turn.tool_s))
        bars.append(
            _Bar(f"{number} {turn.tool or 'unparsed'}"[:18], at_s, tuple(part for part in parts if part[1] > 0))
        )
        at_s += turn.generate_s + turn.tool_s
    if rest := turns[_MAX_ROWS:]:
        spent = (("generate", sum(turn.generate_s for turn in rest)), ("tool", sum(turn.tool_s for turn in rest)))
        bars.append(_Bar(f"{len(rest)} more turns", at_s, spent))
        at_s += sum(part for _, part in spent)
    if graded_s := durations_s.get("grade", 0.0):
        bars.append(_Bar("grading", at_s, (("grade", graded_s),)))
    return bars

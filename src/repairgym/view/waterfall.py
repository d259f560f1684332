"""A rollout as a waterfall: when each turn sampled, when its tool ran, and when the end was graded.

Reads the stored seconds of turns and stages; makes SVG. Guarantees: bars follow each other without the waits between
turns, which no turn records; the longest rollouts are drawn up to a bound, and the rest is one bar.
"""

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from repairgym.records import Turn
from repairgym.report.charts import Axis, Bar, Row, row_plot
from repairgym.report.svg import Margins, Range, nice_ticks
from repairgym.report.wording import seconds

_MAX_ROWS = 60
_ROW_HEIGHT = 16.0
_MARGINS = Margins(left=130, right=14, top=6, bottom=36)


def waterfall(turns: Sequence[Turn], durations_s: Mapping[str, float]) -> Markup:
    """Draw a rollout; empty where no time was stored."""
    rows, end_s = [], 0.0
    for name, parts in _rows(turns, durations_s):
        bars = []
        for kind, part_s in parts:
            bars.append(Bar(end_s, end_s + part_s, f"w-{kind}", f"{name}: {kind} {seconds(part_s)}"))
            end_s += part_s
        rows.append(Row(name, bars=[bar for bar in bars if bar.end > bar.start]))
    if end_s <= 0:
        return Markup("")
    span = Range(0, end_s)
    axis = Axis("seconds, without waits", span, nice_ticks(span, 8), lambda tick: f"{tick:.4g}")
    plot = row_plot(rows, axis, _ROW_HEIGHT, _MARGINS, name_css="label")
    return plot.render("Seconds of each turn: sampling, then its tool; at the end grading")


def _rows(turns: Sequence[Turn], durations_s: Mapping[str, float]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield each name with its kinds of work and their seconds, in order."""
    for number, turn in enumerate(turns[:_MAX_ROWS], 1):
        yield f"{number} {turn.tool or 'unparsed'}"[:18], [("generate", turn.generate_s), ("tool", turn.tool_s)]
    if rest := turns[_MAX_ROWS:]:
        spent = [("generate", sum(turn.generate_s for turn in rest)), ("tool", sum(turn.tool_s for turn in rest))]
        yield f"{len(rest)} more turns", spent
    if graded_s := durations_s.get("grade", 0.0):
        yield "grading", [("grade", graded_s)]

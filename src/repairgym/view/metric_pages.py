"""Pages of metrics: all of a phase in groups, and one of them large, over one run or several.

Reads run stores and the address; makes HTML. Guarantees: what is shown is in the address, so a page can be sent; an
unknown value there is an error; a point leads to the trajectories of its steps.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, get_args
from urllib.parse import urlencode

from pydantic import Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from repairgym.analysis.behavior import group_by
from repairgym.errors import InputError
from repairgym.records import Record
from repairgym.report.charts import LARGE, SMALL
from repairgym.report.figures import NUM_COLORS
from repairgym.rollout.names import RL
from repairgym.view.curves import CurvePoint
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.metric_charts import Chart, Line, Over, draw, key_metrics, title_of
from repairgym.view.reader import Count, RunReader
from repairgym.view.site import OpenRun, Site, list_url, run_url

_CHARTS_PER_PAGE = 40
_SMALL_POINTS, _LARGE_POINTS = 150, 300
"""Of one curve; a chart cannot resolve more."""
_SMOOTHINGS = (0.0, 0.6, 0.9, 0.97)


class MetricView(Record):
    """The part of the metrics that an address asks for."""

    phase: str = ""
    q: str = ""
    """Regular expression over the names."""
    x: Over = "step"
    smooth: float = Field(0.0, ge=0.0, lt=1.0)
    """Weight of the past in the moving average."""
    log: bool = False
    runs: tuple[str, ...] = ()
    """Keys of other runs in the same charts."""
    page: int = Field(1, ge=1, le=10_000)
    name: str = ""
    """The metric of a large chart."""

    def url(self, run: OpenRun, **changes: Any) -> str:
        """Return the address after ``changes``, without what is as in an empty address."""
        view = self.model_copy(update={"page": 1, **changes})
        defaults = MetricView()
        pairs = [(name, value) for name, value in view if name != "runs" and value != getattr(defaults, name)]
        shown = [(name, int(value) if isinstance(value, bool) else value) for name, value in pairs]
        query = urlencode([*shown, *(("with", key) for key in view.runs)], errors="replace")
        return run_url(run.viewed, "metric" if view.name else "metrics") + (f"?{query}" if query else "")


def view_of(request: Request) -> MetricView:
    """Return the view in the address; status 400 for an invalid one."""
    query = request.query_params
    given = {name: value for name, value in query.items() if value and name != "with"}
    try:
        view = MetricView.model_validate({**given, "runs": tuple(dict.fromkeys(filter(None, query.getlist("with"))))})
        re.compile(view.q)
    except ValidationError as error:
        problem = error.errors()[0]
        raise HTTPException(400, f"the address has {problem['loc'][0]}: {problem['msg'].lower()}") from error
    except re.error as error:
        raise HTTPException(400, f"the address has q={view.q!r}, which is no regular expression: {error}") from error
    return view


@dataclass(frozen=True)
class Step:
    """A row below a large chart."""

    point: CurvePoint
    num: int
    """Trajectories of these steps."""
    url: str


class MetricPages:
    """Handlers: request -> page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def metrics(self, request: Request) -> HTMLResponse:
        """All metrics of a phase, in groups."""
        view = view_of(request)
        with self._opened(request, view) as (run, view, others):
            names = [name for name in _names([run, *others], view.phase) if re.search(view.q, name, re.IGNORECASE)]
            first = (view.page - 1) * _CHARTS_PER_PAGE
            charts, constants = self._drawn(run, view, others, names[first : first + _CHARTS_PER_PAGE])
            return self._page(
                run,
                "metrics.html.j2",
                view,
                others,
                groups=group_by(charts, lambda chart: chart.name.rpartition("/")[0] or "other"),
                constants=constants,
                num_metrics=len(names),
                num_pages=-(-len(names) // _CHARTS_PER_PAGE),
            )

    def metric(self, request: Request) -> HTMLResponse:
        """One metric, large, with its steps."""
        view = view_of(request)
        with self._opened(request, view) as (run, view, others):
            lines = _lines([run, *others], view, view.name, _LARGE_POINTS)
            if not any(line.points for line in lines):
                raise InputError(f"phase {view.phase!r} has no metric {view.name!r} with finite values")
            link = _links(run, view.phase)
            chart = draw(view.name, lines, axis=view.x, smoothing=view.smooth, is_log=view.log, size=LARGE, link=link)
            num_until = _sums(run, view.phase, lambda count: count.num)
            steps = [
                Step(point, num_until(point.last) - num_until(point.first - 1), link(point))
                for point in lines[0].points
            ]
            num_lost = run.reader.num_not_finite(view.phase, view.name, lines[0].points)
            return self._page(run, "metric.html.j2", view, others, chart=chart, steps=steps, num_not_finite=num_lost)

    def _page(
        self, run: OpenRun, template: str, view: MetricView, others: Sequence[OpenRun], **context: Any
    ) -> HTMLResponse:
        return run.page(
            template,
            title_of(view.name) if view.name else "Metrics",
            view=view,
            url=lambda **changes: view.url(run, **changes),
            phases=run.reader.metric_phases(),
            smoothings=_SMOOTHINGS,
            axes=get_args(Over),
            runs=[run, *others],
            choices=[viewed for viewed in self._site.folders.all() if viewed.key != run.viewed.key],
            **context,
        )

    @contextmanager
    def _opened(self, request: Request, view: MetricView) -> Iterator[tuple[OpenRun, MetricView, list[OpenRun]]]:
        """Open the run and those that it is compared with; choose a phase where the address names none."""
        if len(view.runs) >= NUM_COLORS:
            raise HTTPException(400, f"got {len(view.runs)} other runs, expected fewer than {NUM_COLORS}")
        with self._site.opened(request) as run:
            phase = view.phase or main_phase(run.reader)
            with self._site.opened_all(view.runs) as others:
                yield run, view.model_copy(update={"phase": phase}), others

    def _drawn(
        self, run: OpenRun, view: MetricView, others: Sequence[OpenRun], names: Sequence[str]
    ) -> tuple[list[Chart], list[tuple[str, float]]]:
        """Return the charts of ``names``, and the metrics that have one value only, with it."""
        charts, constants = [], []
        for name in names:
            lines = _lines([run, *others], view, name, _SMALL_POINTS)
            if (value := only_value(lines)) is not None:
                constants.append((name, value))
            elif chart := draw(name, lines, axis=view.x, smoothing=view.smooth, is_log=view.log):
                charts.append(chart)
        return charts, constants


def main_phase(reader: RunReader) -> str:
    """Return the phase whose metrics tell most: RL, else the last with metrics; empty without any."""
    phases = reader.metric_phases()
    return RL if RL in phases else phases[-1] if phases else ""


def only_value(lines: Sequence[Line]) -> float | None:
    """Return the value of a metric that has one only: words say as much as a chart of it."""
    values = {value for line in lines for point in line.points for value in (point.low, point.high)}
    return values.pop() if len(values) == 1 else None


def key_charts(run: OpenRun, phase: str) -> tuple[list[tuple[Chart, str]], list[tuple[str, float, str]]]:
    """Return the key curves of a phase with their addresses, and titles and values of those with one value."""
    view = MetricView(phase=phase)
    names = key_metrics(run.reader.metric_names(view.phase)) if view.phase else []
    charts, values = [], []
    for name in names:
        lines, url = _lines([run], view, name, _SMALL_POINTS), view.url(run, name=name)
        if (value := only_value(lines)) is not None:
            values.append((title_of(name), value, url))
        elif chart := draw(name, lines, size=SMALL):
            charts.append((chart, url))
    return charts, values


def metric_phase_of(reader: RunReader, phase: str) -> str:
    """Return the phase that holds the metrics of ``phase``: supervised stages have them below ``train/``."""
    return next((name for name in (phase, f"train/{phase}") if reader.metric_names(name)), phase)


def has_one_step(reader: RunReader, phase: str) -> bool:
    """Return True for a phase whose key metrics have a single step."""
    names = key_metrics(reader.metric_names(phase)) if phase else []
    return bool(names) and all(len(reader.curve(phase, name, 2)) == 1 for name in names)


def _names(runs: Sequence[OpenRun], phase: str) -> list[str]:
    """Return the names of the metrics of all runs, those that tell most first, then group by group."""
    names = sorted({name for run in runs for name in run.reader.metric_names(phase)})
    return sorted(names, key=lambda name: (_GROUPS.get(name.partition("/")[0], len(_GROUPS)), name))


_GROUPS = {name: number for number, name in enumerate(("rollout", "policy", "optim", "train", "validation", "time"))}


def _lines(runs: Sequence[OpenRun], view: MetricView, name: str, max_points: int) -> list[Line]:
    lines = []
    for color, run in enumerate(runs):
        points = run.reader.curve(view.phase, name, max_points)
        place = _place(run, view)
        lines.append(Line(run.viewed.name, points, [place(point) for point in points], color))
    return lines


def _place(run: OpenRun, view: MetricView) -> Callable[[CurvePoint], float]:
    """Return the function from a point to its place on the horizontal axis."""
    if view.x == "time":
        begin = run.reader.first_time(view.phase)
        return lambda point: _hours(begin, point.time)
    if view.x == "tokens":
        num_tokens_until = _sums(run, view.phase, lambda count: count.num_tokens)
        return lambda point: float(num_tokens_until(point.last))
    return lambda point: float(point.last)


def _sums(run: OpenRun, phase: str, number: Callable[[Count], int]) -> Callable[[int], int]:
    """Return the function from a step to the sum of ``number`` over the trajectories of all steps until it."""
    counts = sorted(run.counts.by("step", phase=phase).items())
    steps, totals = [step for step, _ in counts], [0, *accumulate(number(count) for _, count in counts)]
    return lambda step: totals[bisect_right(steps, step)]


def _hours(begin: str, end: str) -> float:
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() / 3600)


def _links(run: OpenRun, phase: str) -> Callable[[CurvePoint], str]:
    """Return the function from a point to the address of its trajectories."""

    def link(point: CurvePoint) -> str:
        if point.first == point.last:
            return list_url(run.viewed, TrajectoryFilter(phase=phase, step=max(0, point.last)))
        return list_url(run.viewed, TrajectoryFilter(phase=phase, min_step=point.first, max_step=point.last))

    return link

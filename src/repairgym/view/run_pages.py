"""Pages about runs, phases and groups, and the list of trajectories.

Reads run stores; makes HTML. Invariant: a run that cannot be read is one line of the list of runs, with its reason.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from repairgym.analysis.curves import Point, metric_curve
from repairgym.errors import InputError
from repairgym.report.figures import Figure, Series, curve
from repairgym.report.html import REPORT_FILE, SUMMARY_FILE
from repairgym.rollout.rows import PhaseRow
from repairgym.view.filters import TrajectoryFilter, parse_filter
from repairgym.view.folders import Viewed
from repairgym.view.listing import Key
from repairgym.view.reader import RunReader
from repairgym.view.site import Site, digest_of, number_in, phase_label, run_state, run_url
from repairgym.view.tally import Count, RunCounts

_MAX_EVENTS = 30
_MAX_POINTS = 300
"""Of one curve: more cannot be told apart on a page."""
_MAX_SUMMARY_BYTES = 10_000_000
_PLACES = ("after", "before")


@dataclass(frozen=True)
class RunCard:
    """One run in the list of runs."""

    viewed: Viewed
    problem: str = ""
    state: str = ""
    sentence: str = ""
    count: Count = field(default_factory=Count)
    num_phases: int = 0
    num_phases_done: int = 0
    last_write_s: float = 0.0


@dataclass(frozen=True)
class PhaseCard:
    """One phase in the list of phases; ``row`` is None when the run noted no such phase."""

    name: str
    row: PhaseRow | None
    count: Count
    num_steps: int


class RunPages:
    """Handlers; each takes a request and gives a page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def index(self, request: Request) -> HTMLResponse:
        """All runs."""
        stamp = digest_of(self._site.folders.stamp())
        cards = [_card(viewed) for viewed in self._site.folders.all()]
        return self._site.page(
            "runs.html.j2", title="Runs", live="/pulse", stamp=stamp, cards=cards, root=self._site.folders.root.name
        )

    def run(self, request: Request) -> HTMLResponse:
        """One run: phases, learning curves, events."""
        viewed = self._site.run(request)
        stamp = digest_of(viewed.stamp())
        with viewed.opened() as reader:
            tally = viewed.tally(reader)
            return self._site.page(
                "run.html.j2",
                title=viewed.name,
                live=run_url(viewed, "pulse"),
                stamp=stamp,
                viewed=viewed,
                count=tally.total(),
                state=run_state(reader.phases(), viewed.last_write_s()),
                last_write_s=viewed.last_write_s(),
                sentence=_sentence(viewed),
                phases=_phases(reader, tally),
                charts=_charts(tally),
                metric_phases=reader.metric_phases(),
                events=reader.events()[: -_MAX_EVENTS - 1 : -1],
                has_report=(viewed.folder / REPORT_FILE).is_file(),
            )

    def phase(self, request: Request) -> HTMLResponse:
        """One phase: its steps."""
        viewed = self._site.run(request)
        name = request.query_params.get("name", "")
        stamp = digest_of(viewed.stamp())
        with viewed.opened() as reader:
            tally = viewed.tally(reader)
            found = next((one for one in _phases(reader, tally) if one.name == name), None)
            if found is None:
                raise InputError(f"the run has no phase {name!r}")
            return self._site.page(
                "phase.html.j2",
                title=f"{phase_label(name)} · {viewed.name}",
                live=run_url(viewed, "pulse"),
                stamp=stamp,
                viewed=viewed,
                phase=found,
                steps=sorted(tally.by("step", phase=name).items()),
                statuses=reader.group_statuses(name),
                charts=_charts(tally, name),
                metrics=_metrics(reader, name),
            )

    def groups(self, request: Request) -> HTMLResponse:
        """Groups of a phase with the verdicts of their members."""
        viewed = self._site.run(request)
        name, status = request.query_params.get("phase", ""), request.query_params.get("status", "")
        step = number_in(request, "step")
        after_step = number_in(request, "after_step")
        after = None if after_step is None else (after_step, request.query_params.get("after", ""))
        stamp = digest_of(viewed.stamp())
        with viewed.opened() as reader:
            tally = viewed.tally(reader)
            phases = [one.name for one in _phases(reader, tally) if one.count.num]
            name = name or (phases[0] if phases else "")
            found, more = reader.group_page(name, step, status, self._site.page_size, after)
            return self._site.page(
                "groups.html.j2",
                title=f"Groups · {viewed.name}",
                live=run_url(viewed, "pulse"),
                stamp=stamp,
                viewed=viewed,
                phase=name,
                step=step,
                status=status,
                phases=phases,
                statuses=reader.group_statuses(name),
                groups=[(group, reader.members(group)) for group in found],
                is_first=after is None,
                more=more,
            )

    def trajectories(self, request: Request) -> HTMLResponse:
        """A list of trajectories, narrowed by the address."""
        viewed = self._site.run(request)
        wanted = filter_of(request)
        after, before = (_key(request.query_params.get(name, "")) for name in _PLACES)
        stamp = digest_of(viewed.stamp())
        with viewed.opened() as reader:
            tally = viewed.tally(reader)
            page = reader.page(wanted, self._site.page_size, after=after, before=before)
            known = tally.matching(wanted)
            counted = (known.num, False) if known else reader.count(wanted)
            return self._site.page(
                "trajectories.html.j2",
                title=f"Trajectories · {viewed.name}",
                live="" if after or before or wanted.text else run_url(viewed, "pulse"),
                stamp=stamp,
                viewed=viewed,
                wanted=wanted,
                page=page,
                count=known,
                num=counted[0],
                is_more=counted[1],
                total=tally.total().num,
                choices=_choices(reader, tally),
            )

    def pulse(self, request: Request) -> JSONResponse:
        """A word that changes whenever the run writes; without a run, whenever any does."""
        has_run = "run" in request.path_params
        stamp = self._site.run(request).stamp() if has_run else self._site.folders.stamp()
        return JSONResponse({"stamp": digest_of(stamp)})


def filter_of(request: Request) -> TrajectoryFilter:
    """The filter in the address.

    Raises:
        HTTPException: 400, it cannot be.
    """
    items = [(name, value) for name, value in request.query_params.multi_items() if name not in (*_PLACES, "turn")]
    try:
        return parse_filter(items)
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _key(text: str) -> Key | None:
    if not text:
        return None
    parts = text.split("-")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
        raise HTTPException(400, f"the address has the place {text[:40]!r}, expected numbers; start over")
    return tuple(int(part) for part in parts)


def _card(viewed: Viewed) -> RunCard:
    try:
        with viewed.opened() as reader:
            phases = reader.phases()
            return RunCard(
                viewed=viewed,
                state=run_state(phases, viewed.last_write_s()),
                sentence=_sentence(viewed),
                count=viewed.tally(reader).total(),
                num_phases=len(phases),
                num_phases_done=sum(phase.status == "done" for phase in phases),
                last_write_s=viewed.last_write_s(),
            )
    except (InputError, sqlite3.Error, OSError) as error:
        return RunCard(viewed=viewed, problem=str(error))


def _sentence(viewed: Viewed) -> str:
    """The first result of the run's summary; empty when there is none."""
    path = viewed.folder / SUMMARY_FILE
    try:
        if path.stat().st_size > _MAX_SUMMARY_BYTES:
            return ""
        headline = json.loads(path.read_text(encoding="utf-8")).get("headline") or {}
        return str(headline.get("sentence", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def _phases(reader: RunReader, tally: RunCounts) -> list[PhaseCard]:
    """Phases in the order of the run; those that only trajectories know come last."""
    counts, noted = tally.by("phase"), {row.name: row for row in reader.phases()}
    names = [*noted, *(name for name in counts if name not in noted)]
    return [
        PhaseCard(name, noted.get(name), counts.get(name, Count()), len(tally.by("step", phase=name))) for name in names
    ]


def _charts(tally: RunCounts, phase: str = "") -> list[Figure]:
    """Pass rate and length by step of each phase that has several steps."""
    names = [phase] if phase else tally.values("phase")
    figures = []
    for name in names:
        steps = sorted(tally.by("step", phase=name).items())
        if len(steps) < 2:
            continue
        rates = [Point(step=step, value=count.pass_rate or 0.0) for step, count in steps]
        turns = [Point(step=step, value=count.mean("num_turns") or 0.0) for step, count in steps]
        series = (
            Series("Passed", f"{phase_label(name)}: share of the sampled trajectories", _thinned(rates), is_rate=True),
            Series("Turns", f"{phase_label(name)}: mean per trajectory", _thinned(turns)),
        )
        figures += [figure for one in series if (figure := curve(one))]
    return figures


def _metrics(reader: RunReader, phase: str) -> list[Figure]:
    names = reader.metric_names(phase)
    drawn = (curve(Series(name, phase, _thinned(metric_curve(reader, phase, name)))) for name in names)
    return [figure for figure in drawn if figure]


def _thinned(points: list[Point]) -> list[Point]:
    """At most about `_MAX_POINTS` of the points, the last one among them."""
    every = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::every][::-1]


def _choices(reader: RunReader, tally: RunCounts) -> dict[str, list[Any]]:
    """What each menu of the filter offers: what the run has."""
    phases = [one.name for one in _phases(reader, tally) if one.count.num]
    return {"phase": phases, **{name: tally.values(name) for name in ("step", "split", "policy_id", "stop_reason")}}

"""Pages about runs, phases and groups, and the list of trajectories.

Reads run stores; makes HTML. Guarantees: an unreadable run is one line of the list of runs, with the reason.
"""

import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from repairgym.analysis.curves import Point
from repairgym.errors import InputError
from repairgym.evaluation.stages import TREATMENT, parse_eval_phase, phase_label, stage_label
from repairgym.records import VerdictKind
from repairgym.report.figures import Figure, Series, curves
from repairgym.report.html import REPORT_FILE
from repairgym.report.results import Result
from repairgym.rollout.names import ALARM_PREFIX, RL, UPDATE_TIME
from repairgym.rollout.rows import PhaseRow
from repairgym.view.folders import ViewedRun
from repairgym.view.guard import RAW_POLICY
from repairgym.view.lists import Key, TrajectoryFilter, parse_filter
from repairgym.view.metric_pages import MetricView, has_one_step, key_charts, main_phase, metric_phase_of
from repairgym.view.reader import Count, RunCounts
from repairgym.view.setup import cost_of, outcome_of, read_setup, text_files
from repairgym.view.site import OpenRun, Site, digest_of, number_in

_MAX_EVENTS = 30
_MAX_POINTS = 300
"""Of one curve; a page cannot resolve more."""
_PLACES = ("after", "before")


@dataclass(frozen=True)
class RunCard:
    """One run in the list of runs."""

    viewed: ViewedRun
    problem: str = ""
    state: str = ""
    result: Result = field(default_factory=Result)
    count: Count = field(default_factory=Count)
    num_phases: int = 0
    num_phases_tried: int = 0
    """Phases with trajectories."""
    num_phases_done: int = 0
    last_write_s: float = 0.0


@dataclass(frozen=True)
class PhaseCard:
    """One phase in the list of phases; ``row`` is None when the run planned no such phase."""

    name: str
    row: PhaseRow | None
    count: Count
    num_steps: int
    state: str


@dataclass(frozen=True)
class ReadFirst:
    """A trajectory that shows what the last policy does, with the cause of its verdict."""

    number: int
    task_id: str
    phase: str
    verdict: str
    reason: str
    cause: str
    """Main error of the build or the tests; empty where none is stored."""


class RunPages:
    """Handlers: request -> page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def index(self, request: Request) -> HTMLResponse:
        """All runs."""
        stamp = digest_of(self._site.folders.stamp())
        cards = [_card(viewed) for viewed in self._site.folders.all()]
        return self._site.page(
            "runs.html.j2",
            title="Runs",
            live="/pulse",
            is_running=any(card.state == "running" for card in cards),
            stamp=stamp,
            cards=cards,
            root=self._site.folders.root.name,
        )

    def run(self, request: Request) -> HTMLResponse:
        """One run: state, alarms, key curves, phases, circumstances, events."""
        with self._site.opened(request) as run:
            count, events = run.counts.total(), run.reader.events()
            key_phase = main_phase(run.reader)
            keys, key_values = key_charts(run, key_phase)
            return run.page(
                "run.html.j2",
                count=count,
                num_exported=None if run.reader.chosen is None else len(run.reader.chosen),
                state=run.state,
                last_write_s=run.viewed.last_write_s(),
                result=run.viewed.result,
                phases=phase_cards(run),
                key_charts=keys,
                key_values=key_values,
                key_phase=key_phase,
                is_one_step=has_one_step(run.reader, key_phase),
                charts=[] if keys or key_values else _charts(run.counts),
                read_first=_read_first(run),
                setup=read_setup(run.viewed.folder, run.reader.phases()),
                cost=cost_of(run.reader.phases(), count.num_tokens, run.reader.cost_usd()),
                alarms=[event for event in events if event.kind.startswith(ALARM_PREFIX)],
                events=events[: -_MAX_EVENTS - 1 : -1],
                has_report=(run.viewed.folder / REPORT_FILE).is_file(),
            )

    def words(self, request: Request) -> HTMLResponse:
        """The words of the pages."""
        return self._site.page("words.html.j2", title="Words")

    def setup(self, request: Request) -> HTMLResponse:
        """The circumstances of a run: calls, settings, log, checkpoints, disk."""
        with self._site.opened(request) as run:
            cost = cost_of(run.reader.phases(), run.counts.total().num_tokens, run.reader.cost_usd())
            setup = read_setup(run.viewed.folder, run.reader.phases())
            return run.page("setup.html.j2", "Setup and log", setup=setup, cost=cost, state=run.state)

    def file(self, request: Request) -> Response:
        """A text file of the run: its settings, log or summary."""
        folder, name = self._site.run(request).folder, request.path_params["name"]
        if name not in text_files(folder):
            raise HTTPException(404, f"this run has no file {name!r} that is shown here")
        headers = {"content-security-policy": RAW_POLICY}
        return FileResponse(folder / name, media_type="text/plain; charset=utf-8", headers=headers)

    def phase(self, request: Request) -> HTMLResponse:
        """One phase: its steps."""
        name = request.query_params.get("name", "")
        with self._site.opened(request) as run:
            phase = next((card for card in phase_cards(run) if card.name == name), None)
            if phase is None:
                raise InputError(f"the run has no phase {name!r}")
            metric_phase = metric_phase_of(run.reader, name)
            keys, key_values = ([], []) if phase.count.num else key_charts(run, metric_phase)
            return run.page(
                "phase.html.j2",
                phase_label(name),
                phase=phase,
                weights=weights_of(run, name),
                steps=sorted(run.counts.by("step", phase=name).items()),
                statuses=run.reader.group_statuses(name),
                outcome=outcome_of(run.viewed.folder, name),
                events=[event for event in run.reader.events() if event.phase == name][-_MAX_EVENTS:],
                charts=_charts(run.counts, name),
                key_charts=keys,
                key_values=key_values,
                num_metrics=len(run.reader.metric_names(metric_phase)),
                metrics_url=MetricView(phase=metric_phase).url(run),
            )

    def groups(self, request: Request) -> HTMLResponse:
        """Groups of a phase with the verdicts of their members."""
        query = request.query_params
        step, after_step = number_in(request, "step"), number_in(request, "after_step")
        after = None if after_step is None else (after_step, query.get("after", ""))
        with self._site.opened(request) as run:
            phases = _phases_with_trajectories(run)
            name, status = query.get("phase") or (phases[0] if phases else ""), query.get("status", "")
            groups, more = run.reader.group_page(name, step, status, self._site.page_size, after)
            return run.page(
                "groups.html.j2",
                "Groups",
                phase=name,
                step=step,
                status=status,
                phases=phases,
                statuses=run.reader.group_statuses(name),
                groups=[(group, run.reader.members(group)) for group in groups],
                is_first=after is None,
                more=more,
            )

    def trajectories(self, request: Request) -> HTMLResponse:
        """A list of trajectories, narrowed by the filter in the address."""
        wanted = filter_of(request)
        after, before = (key_in(request, name) for name in _PLACES)
        with self._site.opened(request) as run:
            page = run.reader.page(wanted, self._site.page_size, after=after, before=before)
            known = run.counts.matching(wanted) if run.reader.chosen is None else None
            num, is_more = (known.num, False) if known else run.reader.count(wanted)
            menus = {name: run.counts.values(name) for name in ("step", "split", "policy_id", "stop_reason")}
            return run.page(
                "trajectories.html.j2",
                "Trajectories",
                is_live=not (after or before or wanted.text),
                wanted=wanted,
                page=page,
                count=known,
                num=num,
                is_more=is_more,
                total=run.counts.total().num,
                choices={"phase": _phases_with_trajectories(run), **menus},
            )

    def pulse(self, request: Request) -> JSONResponse:
        """A digest that changes whenever the run writes; without a run, whenever any run writes."""
        has_run = "run" in request.path_params
        stamp = self._site.run(request).stamp() if has_run else self._site.folders.stamp()
        return JSONResponse({"stamp": digest_of(stamp)})


def filter_of(request: Request) -> TrajectoryFilter:
    """Return the filter in the address; status 400 for an invalid one."""
    items = [(name, value) for name, value in request.query_params.multi_items() if name not in (*_PLACES, "turn")]
    try:
        return parse_filter(items)
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def key_in(request: Request, name: str) -> Key | None:
    """Return a position in a list from the query string, None without one; status 400 for any other value."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,18}(-[0-9]{1,18})*", text):
        raise HTTPException(400, f"the address has the place {text[:40]!r}, expected numbers; start over")
    return tuple(int(part) for part in text.split("-"))


def _card(viewed: ViewedRun) -> RunCard:
    try:
        with viewed.opened() as reader:
            phases, counts = reader.phases(), viewed.counts(reader)
            return RunCard(
                viewed=viewed,
                state=viewed.state(phases),
                result=viewed.result,
                count=counts.total(),
                num_phases=len(phases),
                num_phases_tried=len(counts.values("phase")),
                num_phases_done=sum(phase.status == "done" for phase in phases),
                last_write_s=viewed.last_write_s(),
            )
    except (InputError, sqlite3.Error, OSError) as error:
        return RunCard(viewed=viewed, problem=str(error))


def phase_cards(run: OpenRun) -> list[PhaseCard]:
    """Return the phases in the order of the run, then those that only trajectories name."""
    by_phase, rows = run.counts.by("phase"), {row.name: row for row in run.reader.phases()}
    states = {"done": "finished", "running": run.state}
    cards = []
    for name in {**rows, **by_phase}:
        status = rows[name].status if name in rows else "unplanned"
        num_steps = len(run.counts.by("step", phase=name))
        cards.append(
            PhaseCard(name, rows.get(name), by_phase.get(name, Count()), num_steps, states.get(status, status))
        )
    return cards


def weights_of(run: OpenRun, phase: str) -> str:
    """Return the policy of an evaluation, for a reader, with the updates that it had seen; empty for other phases."""
    evaluated = parse_eval_phase(phase)
    if evaluated is None:
        return ""
    num = len(run.reader.metrics(RL, UPDATE_TIME)) if evaluated.stage == TREATMENT else 0
    return stage_label(evaluated.stage) + (f" after {num} iteration{'s' if num > 1 else ''}" if num else "")


def _read_first(run: OpenRun) -> list[ReadFirst]:
    """Return a failed and a passed trajectory of the trained policy's evaluation, or of the last phase with any."""
    phases = [*_phases_with_trajectories(run)]
    evaluated = [name for name in phases if (phase := parse_eval_phase(name)) and phase.stage == TREATMENT]
    chosen = (evaluated or phases[-1:])[:1]
    shown = []
    for kind in (VerdictKind.FAILED, VerdictKind.PASSED) if chosen else ():
        for entry in run.reader.page(TrajectoryFilter(phase=chosen[0], verdict=kind), 1).rows:
            with suppress(InputError):
                error = run.reader.document(entry).verdict.main_error
                row, cause = entry.row, error.message if error else ""
                if error and error.path:
                    cause = f"{error.path}{f':{error.line}' if error.line else ''}: {cause}"
                shown.append(ReadFirst(entry.number, row.task_id, row.phase, row.verdict.value, row.reason, cause))
    return shown


def _phases_with_trajectories(run: OpenRun) -> list[str]:
    return [card.name for card in phase_cards(run) if card.count.num]


def _charts(counts: RunCounts, phase: str = "") -> list[Figure]:
    """Draw pass rate and length by step of each phase with several steps."""
    series = []
    for name in [phase] if phase else counts.values("phase"):
        steps = sorted(counts.by("step", phase=name).items())
        if len(steps) < 2:
            continue
        rates = [Point(step=step, value=count.pass_rate or 0.0) for step, count in steps]
        turns = [Point(step=step, value=count.mean("num_turns") or 0.0) for step, count in steps]
        label = phase_label(name)
        series += [
            Series("Passed", f"{label}: share of the sampled trajectories", _thinned(rates), is_rate=True),
            Series("Turns", f"{label}: mean per trajectory", _thinned(turns)),
        ]
    return curves(series)


def _thinned(points: list[Point]) -> list[Point]:
    """Return at most about `_MAX_POINTS` of the points, including the last."""
    every = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::every][::-1]

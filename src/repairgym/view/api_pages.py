"""The JSON API: the same runs, lists, trajectories, tokens and metrics as the pages, for programs.

Reads run stores; makes JSON, and the page that documents it. Guarantees: addresses and filters are those of the pages;
numbers that are not finite are null; nothing is changed by any request.
"""

import dataclasses
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from repairgym.errors import InputError
from repairgym.records import Trajectory
from repairgym.rollout.reviews import read_reviews
from repairgym.rollout.rows import join_trajectory
from repairgym.view.curves import CurvePoint
from repairgym.view.folders import ViewedRun
from repairgym.view.lists import Entry
from repairgym.view.metric_pages import main_phase
from repairgym.view.reader import Count
from repairgym.view.run_pages import filter_of, key_in, phase_cards
from repairgym.view.setup import read_setup
from repairgym.view.site import Site, api_url, number_in

MAX_POINTS = 1_000
"""Of one curve."""
Formats = Mapping[str, Callable[[Trajectory, Path], Any]]
"""Name -> function from a trajectory and its run folder to a document of another system."""
ENDPOINTS = (
    ("runs.json", "", "Every run: key, state, result in a sentence, counts of verdicts."),
    ("r/RUN/run.json", "", "One run: phases, verdicts, alarms and events, call, cost, checkpoints, names of metrics."),
    ("r/RUN/metrics.json", "phase, name", f"Curves, at most {MAX_POINTS} points each: steps, mean, extremes, time."),
    ("r/RUN/trajectories.json", "those of the list; after", "A page of rows; next is the value of after, or null."),
    ("r/RUN/groups.json", "phase, step, status, after_step, after", "A page of groups with their members."),
    ("r/RUN/t/NUMBER.json", "", "A trajectory: row, turns, verdict with tests and findings, patch, parent."),
    (
        "r/RUN/t/NUMBER/tokens.json",
        "",
        "Its tokens: id, log-probability, mask, policy version; what an update learned.",
    ),
    ("r/RUN/reviews.json", "", "Notes, tags and the review queue."),
    ("r/RUN/t/NUMBER/FORMAT.json", "", "The trajectory as ATIF (atif) or as messages (chat)."),
)
"""(address below /api/, its query, its answer)."""
EXPORTED = (
    "runs.json",
    "r/RUN/run.json",
    "r/RUN/metrics.json",
    "r/RUN/trajectories.json",
    "r/RUN/t/NUMBER.json",
    "r/RUN/t/NUMBER/FORMAT.json",
)
"""Addresses that are files of an export."""


class ApiPages:
    """Handlers: request -> JSON."""

    def __init__(self, site: Site, formats: Formats) -> None:
        self._site = site
        self._formats = formats

    def document(self, request: Request) -> HTMLResponse:
        """The page that documents the API."""
        first = next(iter(self._site.folders.all()), None)
        shown = [row for row in ENDPOINTS if not self._site.is_static or row[0] in EXPORTED]
        return self._site.page("api.html.j2", title="JSON API", endpoints=shown, viewed=first)

    def runs(self, request: Request) -> Response:
        """All runs."""
        return _json({"runs": [_summary(viewed) for viewed in self._site.folders.all()]})

    def run(self, request: Request) -> Response:
        """One run."""
        with self._site.opened(request) as run:
            setup = read_setup(run.viewed.folder, run.reader.phases())
            phases = [
                {**(card.row.model_dump() if card.row else {}), "name": card.name, "state": card.state}
                | {"num_steps": card.num_steps, **_count(card.count)}
                for card in phase_cards(run)
            ]
            return _json(
                _summary(run.viewed)
                | {"phases": phases, "main_phase": main_phase(run.reader)}
                | {"metrics": {name: run.reader.metric_names(name) for name in run.reader.metric_phases()}}
                | {"events": [event.model_dump() for event in run.reader.events()]}
                | {"calls": [call.model_dump() for call in setup.calls], "configs": dict(setup.configs)}
                | {"checkpoints": [dataclasses.asdict(folder) for folder in setup.checkpoints]}
                | {"disk_bytes": setup.num_bytes}
            )

    def metrics(self, request: Request) -> Response:
        """Curves of a phase, or one of them."""
        with self._site.opened(request) as run:
            phase = request.query_params.get("phase") or main_phase(run.reader)
            wanted = request.query_params.get("name")
            names = [wanted] if wanted else run.reader.metric_names(phase)
            curves = {name: run.reader.curve(phase, name, MAX_POINTS) for name in names}
            return _json({"phase": phase, "fields": CurvePoint._fields, "metrics": curves})

    def trajectories(self, request: Request) -> Response:
        """A page of rows."""
        wanted, after = filter_of(request), key_in(request, "after")
        with self._site.opened(request) as run:
            size = run.reader.extent().num_rows + 1 if self._site.is_static else self._site.page_size
            page = run.reader.page(wanted, size, after=after)
            place = "-".join(map(str, page.after)) if page.after else None
            return _json({"rows": [_row(run.viewed, entry) for entry in page.rows], "next": place})

    def groups(self, request: Request) -> Response:
        """A page of groups."""
        query = request.query_params
        step, after_step = number_in(request, "step"), number_in(request, "after_step")
        after = None if after_step is None else (after_step, query.get("after", ""))
        with self._site.opened(request) as run:
            name = query.get("phase") or main_phase(run.reader)
            groups, more = run.reader.group_page(name, step, query.get("status", ""), self._site.page_size, after)
            rows = [
                {**group.model_dump(), "members": [member._asdict() for member in run.reader.members(group)]}
                for group in groups
            ]
            place = {"after_step": more[0], "after": more[1]} if more else None
            return _json({"groups": rows, "next": place})

    def reviews(self, request: Request) -> Response:
        """Notes, tags and the review queue."""
        with self._site.opened(request) as run:
            reviews = read_reviews(run.viewed.folder)
            entries = run.reader.of_ids(list(reviews))
            return _json({"reviews": [{"number": e.number, **reviews[e.row.id].model_dump()} for e in entries]})

    def trajectory(self, request: Request) -> Response:
        """One trajectory."""
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            document, parent = run.reader.document(entry), run.reader.parent(entry)
            fields = {field.name: getattr(document, field.name) for field in dataclasses.fields(document)}
            content = {
                **_row(run.viewed, entry),
                **fields,
                "turns": [turn.model_dump() for turn in document.turns],
                "attempts": [attempt.model_dump() for attempt in document.attempts],
                "verdict": document.verdict.model_dump(),
                "agent_run": document.agent_run and document.agent_run.model_dump(),
                "parent": parent and parent._asdict(),
            }
            return _json(content)

    def tokens(self, request: Request) -> Response:
        """The tokens of a trajectory."""
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            ledger, signals = run.reader.ledger(entry), run.reader.signals(entry)
            arrays = {name: getattr(ledger, name) for name in ("token_id", "log_prob", "is_action", "policy_version")}
            learned = signals and {**dataclasses.asdict(signals), "ratio": signals.ratio}
            content = {name: array.tolist() for name, array in arrays.items()}
            return _json(content | {"learned": learned and {name: a.tolist() for name, a in learned.items()}})

    def exchanged(self, request: Request) -> Response:
        """A trajectory in a format of another system."""
        name = request.path_params["form"]
        if name not in self._formats:
            raise HTTPException(404, f"got the format {name!r}, expected one of {', '.join(self._formats) or 'none'}")
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            document, ledger = run.reader.document(entry), run.reader.ledger(entry)
            trajectory = join_trajectory(entry.row, document, ledger, run.reader.parent_of(entry.row.id))
            return _json(self._formats[name](trajectory, run.viewed.folder))


def _summary(viewed: ViewedRun) -> dict[str, Any]:
    summary: dict[str, Any] = {"key": viewed.key, "name": viewed.name, "url": api_url(viewed, "run")}
    try:
        with viewed.opened() as reader:
            count = viewed.counts(reader).total()
            result = {"result": viewed.result.sentence, "limits": viewed.result.limits}
            return {**summary, "state": viewed.state(reader.phases()), **result, **_count(count)}
    except (InputError, sqlite3.Error, OSError) as error:
        return {**summary, "problem": str(error)}


def _count(count: Count) -> dict[str, Any]:
    return {
        "num_trajectories": count.num,
        "verdicts": {kind: num for kind, num in count.by_verdict.items() if num},
        "pass_rate": count.pass_rate,
        "num_turns": count.num_turns,
        "num_tokens": count.num_tokens,
    }


def _row(viewed: ViewedRun, entry: Entry) -> dict[str, Any]:
    return {"number": entry.number, "url": api_url(viewed, f"t/{entry.number}"), **entry.row.model_dump()}


def _json(content: Any) -> Response:
    text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


def _finite(content: Any) -> Any:
    """Return ``content`` with null for numbers that JSON does not have."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, (list, tuple)) else content

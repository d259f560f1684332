"""Pages about single trajectories: reading, tokens, comparison, and the task behind them.

Reads run stores and task files; makes HTML, and text of agents as it is under a policy that lets it do nothing.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from repairgym.errors import InputError
from repairgym.report.html import REPORT_FILE
from repairgym.view.comparing import MAX_COLUMNS, address_of, compare
from repairgym.view.filters import TrajectoryFilter
from repairgym.view.folders import Viewed
from repairgym.view.guard import RAW_POLICY, REPORT_POLICY
from repairgym.view.listing import Listed
from repairgym.view.reader import RunReader
from repairgym.view.reading import MAX_TURNS, find_task, read
from repairgym.view.run_pages import filter_of
from repairgym.view.site import Site, number_in
from repairgym.view.tokens import NUM_LEVELS, STRETCH_TOKENS, read_facts, stretch

_MAX_OF_TASK = 500


class TrajectoryPages:
    """Handlers; each takes a request and gives a page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def trajectory(self, request: Request) -> HTMLResponse:
        """One trajectory, turn by turn."""
        viewed, wanted = self._site.run(request), filter_of(request)
        first_turn = number_in(request, "turn") or 1
        with viewed.opened() as reader:
            listed = reader.listed(request.path_params["number"])
            before, after = reader.neighbours(wanted, listed)
            group = reader.group(listed.row.phase, listed.row.step, listed.row.group_id)
            return self._site.page(
                "trajectory.html.j2",
                title=f"{listed.row.task_id} · {viewed.name}",
                viewed=viewed,
                wanted=wanted,
                reading=read(viewed, reader, listed, first_turn),
                group=group,
                members=reader.members(group),
                before=before,
                after=after,
                max_turns=MAX_TURNS,
            )

    def tokens(self, request: Request) -> HTMLResponse:
        """The tokens of a trajectory, a stretch at a time."""
        viewed = self._site.run(request)
        with viewed.opened() as reader:
            listed = reader.listed(request.path_params["number"])
            ledger = reader.ledger(listed)
            start = max(0, min(number_in(request, "from") or 0, max(0, len(ledger) - 1)))
            tokenizer = viewed.tokenizer
            spans = self._spans(reader, listed)
            facts = read_facts(ledger)
            return self._site.page(
                "tokens.html.j2",
                title=f"Tokens of {listed.row.task_id} · {viewed.name}",
                viewed=viewed,
                listed=listed,
                facts=facts,
                unlikely=[stretch(ledger, tokenizer, place, 1)[0] for place in facts.unlikely],
                pieces=stretch(ledger, tokenizer, start),
                turn_starts={span[0]: number for number, span in enumerate(spans, 1)},
                start=start,
                end=min(len(ledger), start + STRETCH_TOKENS),
                size=STRETCH_TOKENS,
                has_tokenizer=tokenizer is not None,
                num_levels=NUM_LEVELS,
            )

    def _spans(self, reader: RunReader, listed: Listed) -> list[tuple[int, int]]:
        try:
            return [turn.action_span for turn in reader.document(listed).turns]
        except InputError:
            return []

    def raw(self, request: Request) -> Response:
        """One text of a trajectory as it is: ``observation`` or ``action`` of a turn, ``patch``, or a build ``log``."""
        viewed = self._site.run(request)
        part, index = request.path_params["part"], number_in(request, "of") or 1
        with viewed.opened() as reader:
            document = reader.document(reader.listed(request.path_params["number"]))
        texts: dict[str, list[str]] = {
            "observation": [turn.observation for turn in document.turns],
            "action": [turn.action for turn in document.turns],
            "patch": [document.final_patch],
            "log": [step.log for step in document.verdict.build],
        }
        if part not in texts or not 1 <= index <= len(texts[part]):
            raise HTTPException(404, f"this trajectory has no {part} {index}")
        headers = {"content-security-policy": RAW_POLICY}
        body = texts[part][index - 1].encode("utf-8", "replace")
        return Response(body, media_type="text/plain; charset=utf-8", headers=headers)

    def group(self, request: Request) -> HTMLResponse:
        """The members of a group side by side."""
        viewed = self._site.run(request)
        query = request.query_params
        with viewed.opened() as reader:
            group = reader.group(query.get("phase", ""), number_in(request, "step") or 0, query.get("id", ""))
            members = reader.members(group)
        names = [address_of(viewed, member.number) for member in members]
        task, problem = find_task(viewed, group.task_id)
        return self._site.page(
            "group.html.j2",
            title=f"Group of {group.task_id} · {viewed.name}",
            viewed=viewed,
            group=group,
            members=members,
            task=task,
            task_problem=problem,
            comparison=compare(self._site.folders, names[:MAX_COLUMNS]) if len(names) > 1 else None,
        )

    def compare(self, request: Request) -> HTMLResponse:
        """Any trajectories side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("of")))
        try:
            comparison = compare(self._site.folders, names)
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        return self._site.page("compare.html.j2", title="Comparison", comparison=comparison)

    def task(self, request: Request) -> HTMLResponse:
        """A task and every attempt at it in the run."""
        viewed = self._site.run(request)
        task_id = request.query_params.get("id", "")
        with viewed.opened() as reader:
            attempts = reader.of_task(task_id, _MAX_OF_TASK)
        task, problem = find_task(viewed, task_id)
        if task is None and not attempts:
            raise InputError(f"the run has no task {task_id!r}")
        return self._site.page(
            "task.html.j2",
            title=f"{task_id} · {viewed.name}",
            viewed=viewed,
            task_id=task_id,
            task=task,
            task_problem=problem,
            attempts=_by_phase_and_step(attempts),
            num_attempts=len(attempts),
            is_cut=len(attempts) == _MAX_OF_TASK,
            wanted=TrajectoryFilter(task_id=task_id),
        )

    def report(self, request: Request) -> Response:
        """The ``report.html`` of a run, as it was written."""
        viewed: Viewed = self._site.run(request)
        path = viewed.folder / REPORT_FILE
        if not path.is_file():
            raise HTTPException(404, "this run has no report yet; make one with: repairgym report")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=headers)


def _by_phase_and_step(attempts: list[Listed]) -> dict[tuple[str, int], list[Listed]]:
    found: dict[tuple[str, int], list[Listed]] = {}
    for one in attempts:
        found.setdefault((one.row.phase, one.row.step), []).append(one)
    return found

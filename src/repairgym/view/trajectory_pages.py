"""Pages about single trajectories: reading, tokens, comparison, and their task.

Reads run stores and task files; makes HTML, and raw text of agents under a policy that forbids everything.
"""

from collections.abc import Callable
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from repairgym.analysis.behavior import group_by
from repairgym.errors import InputError
from repairgym.records import Task
from repairgym.report.html import REPORT_FILE
from repairgym.report.reading import MAX_TURNS, read
from repairgym.report.tokens import WINDOW_TOKENS, read_pieces, summarize_tokens
from repairgym.view.comparison import MAX_COLUMNS, compare
from repairgym.view.folders import ViewedRun
from repairgym.view.guard import RAW_POLICY, REPORT_POLICY
from repairgym.view.lists import TrajectoryFilter
from repairgym.view.replay import grow
from repairgym.view.run_pages import filter_of
from repairgym.view.site import Site, number_in

_MAX_OF_TASK = 500
T = TypeVar("T")


class TrajectoryPages:
    """Handlers: request -> page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def trajectory(self, request: Request) -> HTMLResponse:
        """One trajectory, turn by turn."""
        wanted, first_turn = filter_of(request), number_in(request, "turn") or 1
        with self._site.opened(request) as run:
            viewed, reader = run.viewed, run.reader
            entry = reader.entry(request.path_params["number"])
            before, after = reader.neighbors(wanted, entry)
            group = reader.group(entry.row.phase, entry.row.step, entry.row.group_id)
            document, problem = _or_problem(lambda: reader.document(entry))
            task, task_problem = find_task(viewed, entry.row.task_id)
            growth = grow(task, document) if task and document else ""
            ledger, _ = _or_problem(lambda: reader.ledger(entry))  # the tokens page shows the problem
            growths, growth_problem = ((), growth) if isinstance(growth, str) else (growth, "")
            reading = document and read(
                document, task, ledger, viewed.tokenizer, growths=growths, first_turn=first_turn
            )
            return run.page(
                "trajectory.html.j2",
                entry.row.task_id,
                is_live=False,
                wanted=wanted,
                entry=entry,
                document=document,
                problem=problem,
                task=task,
                task_problem=task_problem,
                growth_problem=growth_problem,
                reading=reading,
                group=group,
                members=reader.members(group),
                before=before,
                after=after,
                max_turns=MAX_TURNS,
            )

    def tokens(self, request: Request) -> HTMLResponse:
        """The tokens of a trajectory, a window at a time."""
        with self._site.opened(request) as run:
            entry = run.reader.entry(request.path_params["number"])
            ledger, tokenizer = run.reader.ledger(entry), run.viewed.tokenizer
            start = max(0, min(number_in(request, "from") or 0, max(0, len(ledger) - 1)))
            document, _ = _or_problem(lambda: run.reader.document(entry))
            spans = [turn.action_span for turn in document.turns] if document else []
            facts = summarize_tokens(ledger)
            return run.page(
                "tokens.html.j2",
                f"Tokens of {entry.row.task_id}",
                is_live=False,
                entry=entry,
                facts=facts,
                unlikely=[read_pieces(ledger, tokenizer, place, 1)[0] for place in facts.unlikely],
                pieces=read_pieces(ledger, tokenizer, start),
                turn_starts={span[0]: number for number, span in enumerate(spans, 1)},
                start=start,
                end=min(len(ledger), start + WINDOW_TOKENS),
                size=WINDOW_TOKENS,
                has_tokenizer=tokenizer is not None,
            )

    def raw(self, request: Request) -> Response:
        """One raw text of a trajectory: ``observation`` or ``action`` of a turn, ``patch``, or a build ``log``."""
        part, index = request.path_params["part"], number_in(request, "of") or 1
        with self._site.opened(request) as run:
            document = run.reader.document(run.reader.entry(request.path_params["number"]))
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
        query, step = request.query_params, number_in(request, "step") or 0
        with self._site.opened(request) as run:
            group = run.reader.group(query.get("phase", ""), step, query.get("id", ""))
            members = run.reader.members(group)
            names = [run.viewed.address(member.number) for member in members]
            task, problem = find_task(run.viewed, group.task_id)
            return run.page(
                "group.html.j2",
                f"Group of {group.task_id}",
                is_live=False,
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
        task_id = request.query_params.get("id", "")
        with self._site.opened(request) as run:
            attempts = run.reader.of_task(task_id, _MAX_OF_TASK)
            task, problem = find_task(run.viewed, task_id)
            if task is None and not attempts:
                raise InputError(f"the run has no task {task_id!r}")
            return run.page(
                "task.html.j2",
                task_id,
                is_live=False,
                task_id=task_id,
                task=task,
                task_problem=problem,
                attempts=group_by(attempts, lambda entry: (entry.row.phase, entry.row.step)),
                num_attempts=len(attempts),
                is_cut=len(attempts) == _MAX_OF_TASK,
                wanted=TrajectoryFilter(task_id=task_id),
            )

    def report(self, request: Request) -> Response:
        """The stored ``report.html`` of a run."""
        path = self._site.run(request).folder / REPORT_FILE
        if not path.is_file():
            raise HTTPException(404, "this run has no report yet; make one with: repairgym report")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(path, media_type="text/html; charset=utf-8", headers=headers)


def find_task(viewed: ViewedRun, task_id: str) -> tuple[Task | None, str]:
    """Return the task, or None and the reason."""
    task, problem = _or_problem(lambda: viewed.tasks.get(task_id))
    return task, problem or ("" if task else "The run folder does not hold this task.")


def _or_problem(read_part: Callable[[], T]) -> tuple[T | None, str]:
    """Return a part of a trajectory, or None and the reason why it cannot be read."""
    try:
        return read_part(), ""
    except InputError as error:
        return None, str(error)

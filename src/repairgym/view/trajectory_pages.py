"""Pages about single trajectories: reading, their task, and trajectories side by side.

Reads run stores and task files; makes HTML, and raw text of agents under a policy that forbids everything. Guarantees
of a comparison: equal patches have the same letter; the turn is marked where the actions of a column first differ from
those of the first column.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape, unescape
from itertools import zip_longest
from string import ascii_uppercase
from typing import TypeVar

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from repairgym.analysis.behavior import group_by
from repairgym.errors import InputError
from repairgym.evaluation.summary import EPISODE_PARTS
from repairgym.records import Task
from repairgym.report.html import REPORT_FILE
from repairgym.report.reading import MAX_TURNS, Diff, read, read_diff, split_thought
from repairgym.report.safe_text import block
from repairgym.rollout.reviews import STATUSES, read_reviews
from repairgym.rollout.rows import Document
from repairgym.view.folders import RunFolders, ViewedRun
from repairgym.view.guard import RAW_POLICY, REPORT_POLICY
from repairgym.view.lists import Entry, TrajectoryFilter
from repairgym.view.replay import grow
from repairgym.view.run_pages import filter_of, weights_of
from repairgym.view.site import Site, number_in, run_url, trajectory_url
from repairgym.view.trees import tree_of, trees_of
from repairgym.view.waterfall import waterfall

_MAX_OF_TASK = 500
_MAX_COLUMNS = 16
_MAX_ROWS = 200
_CELL_CHARS = 1_500
_MIN_CELL_CHARS = 200
_PAGE_CHARS = 2_000_000
_SECTIONS = '<nav class="sections" aria-label="Sections"><ul>'
_NAMED = re.compile(r'<p class="note" data-trajectory="([^"]*)">')
"""Places of ``report.html`` that the viewer makes links of."""
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
            group = reader.group(entry.row.phase, entry.row.step, entry.row.group_id)
            document, problem = or_problem(lambda: reader.document(entry))
            task, task_problem = find_task(viewed, entry.row.task_id)
            growth = grow(task, document) if task and document else ""
            ledger, _ = or_problem(lambda: reader.ledger(entry))  # the tokens page shows the problem
            growths, growth_problem = ((), growth) if isinstance(growth, str) else (growth, "")
            reading = document and read(
                document, task, ledger, viewed.tokenizer, growths=growths, first_turn=first_turn
            )
            return run.page(
                "trajectory.html.j2",
                entry.row.task_id,
                is_live=False,
                wanted=wanted,
                weights=weights_of(run, entry.row.phase),
                entry=entry,
                document=document,
                problem=problem,
                task=task,
                task_problem=task_problem,
                growth_problem=growth_problem,
                reading=reading,
                group=group,
                members=reader.members(group),
                parent=reader.parent(entry),
                price_usd=reader.cost_usd(entry.number),
                tree=tree_of(reader, entry),
                review=read_reviews(viewed.folder).get(entry.row.id),
                statuses=STATUSES,
                around=reader.around(wanted, entry),
                timeline=waterfall(document.turns, entry.row.durations_s) if document else "",
                time_s=sum(entry.row.durations_s.get(name, 0.0) for name in EPISODE_PARTS),
                max_turns=MAX_TURNS,
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
                num_shown=min(len(members), _MAX_COLUMNS),
                task=task,
                task_problem=problem,
                trees=trees_of(run.reader, [member.number for member in members[:_MAX_COLUMNS]]),
                comparison=compare(self._site.folders, names[:_MAX_COLUMNS]) if len(names) > 1 else None,
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
        """The stored ``report.html`` of a run, with links to the pages of the run and of its examples."""
        path = self._site.run(request).folder / REPORT_FILE
        if not path.is_file():
            raise HTTPException(404, "this run has no report yet; make one with: repairgym report")
        with self._site.opened(request) as run:
            text = path.read_text(encoding="utf-8")
            numbers = {entry.row.id: entry.number for entry in run.reader.of_ids(named_in(text))}
            text = text.replace(_SECTIONS, f'{_SECTIONS}\n<li><a href="{escape(run_url(run.viewed))}">Run</a></li>', 1)

            def link(match: re.Match[str]) -> str:
                number = numbers.get(unescape(match[1]))
                address = escape(trajectory_url(run.viewed, number)) if number else ""
                return f'{match[0]}<a href="{address}">Page of this trajectory</a>: ' if number else match[0]

            text = _NAMED.sub(link, text)
        return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})


def named_in(report: str) -> list[str]:
    """Return the ids of the trajectories that a report shows in full."""
    return [unescape(name) for name in _NAMED.findall(report)]


def find_task(viewed: ViewedRun, task_id: str) -> tuple[Task | None, str]:
    """Return the task, or None and the reason."""
    task, problem = or_problem(lambda: viewed.tasks.get(task_id))
    return task, problem or ("" if task else "The run folder does not hold this task.")


def or_problem(read_part: Callable[[], T]) -> tuple[T | None, str]:
    """Return a part of a trajectory, or None and the reason why it cannot be read."""
    try:
        return read_part(), ""
    except InputError as error:
        return None, str(error)


# --- side by side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnCell:
    """A turn of one trajectory."""

    action: Markup
    observation: Markup
    error: str
    is_fork: bool
    """The first turn whose action differs from the first column's."""


@dataclass(frozen=True)
class ComparedTrajectory:
    """One trajectory."""

    viewed: ViewedRun
    entry: Entry
    document: Document | None
    problem: str

    @property
    def final_patch(self) -> str:
        """The submission; empty without any."""
        return self.document.final_patch if self.document else ""

    @cached_property
    def patch(self) -> Diff:
        """The submission ready to show."""
        return read_diff(self.final_patch)


@dataclass(frozen=True)
class Comparison:
    """Trajectories as columns, turns as rows."""

    columns: tuple[ComparedTrajectory, ...]
    patch_letters: tuple[str, ...]
    """Of the columns; the same for equal patches, empty for an empty patch."""
    rows: tuple[tuple[TurnCell | None, ...], ...]
    num_rows_left_out: int
    is_one_task: bool


def compare(folders: RunFolders, names: Sequence[str]) -> Comparison:
    """Put trajectories side by side; `InputError` for too few, too many or absent ones."""
    if not 2 <= len(names) <= _MAX_COLUMNS:
        raise InputError(f"got {len(names)} trajectories to compare, expected 2 to {_MAX_COLUMNS}")
    columns = tuple(_load(folders, name) for name in names)
    longest = max(len(column.document.turns) if column.document else 0 for column in columns)
    num_rows = min(longest, _MAX_ROWS)
    room = max(_MIN_CELL_CHARS, min(_CELL_CHARS, _PAGE_CHARS // (2 * len(columns) * max(1, num_rows))))
    patches = dict.fromkeys(column.final_patch for column in columns if column.final_patch)
    letters = dict(zip(patches, ascii_uppercase, strict=False))
    forks = [_first_difference(columns[0].document, column.document) for column in columns]
    return Comparison(
        columns=columns,
        patch_letters=tuple(letters.get(column.final_patch, "") for column in columns),
        rows=tuple(
            tuple(_cell(column.document, index, fork, room) for column, fork in zip(columns, forks, strict=True))
            for index in range(num_rows)
        ),
        num_rows_left_out=longest - num_rows,
        is_one_task=len({column.entry.row.task_id for column in columns}) == 1,
    )


def _load(folders: RunFolders, name: str) -> ComparedTrajectory:
    viewed, number = folders.find(name)
    with viewed.opened() as reader:
        entry = reader.entry(number)
        try:
            return ComparedTrajectory(viewed, entry, reader.document(entry), "")
        except InputError as error:
            return ComparedTrajectory(viewed, entry, None, str(error))


def _first_difference(reference: Document | None, other: Document | None) -> int:
    """Return the index of the first turn with different actions; -1 without any."""
    if reference is None or other is None or reference is other:
        return -1
    actions = ([turn.action.strip() for turn in document.turns] for document in (reference, other))
    pairs = enumerate(zip_longest(*actions))
    return next((index for index, (left, right) in pairs if left != right), -1)


def _cell(document: Document | None, index: int, fork: int, room: int) -> TurnCell | None:
    if document is None or index >= len(document.turns):
        return None
    turn = document.turns[index]
    _, action = split_thought(turn.action)
    return TurnCell(
        action=block(action.strip(), room),
        observation=block(turn.observation.strip(), room),
        error=turn.error,
        is_fork=index == fork,
    )

"""Trajectories side by side: siblings of a group, or one task at two checkpoints.

Reads stored trajectories; makes columns for a template. Guarantees: equal patches have the same letter; the turn is
marked where the actions of a column first differ from those of the first column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from markupsafe import Markup

from repairgym.errors import InputError
from repairgym.report.reading import Diff, read_diff, split_thought
from repairgym.report.safe_text import block
from repairgym.rollout.rows import Document
from repairgym.view.folders import RunFolders, ViewedRun
from repairgym.view.lists import Entry

MAX_COLUMNS = 16
_MAX_TURNS = 200
_CELL_CHARS = 1_500
_MIN_CELL_CHARS = 200
_PAGE_CHARS = 2_000_000


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

    @cached_property
    def patch(self) -> Diff | None:
        """The submission."""
        return read_diff(self.document.final_patch) if self.document else None


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
    """Put trajectories side by side.

    Raises:
        InputError: too few or too many, or a trajectory does not exist.
    """
    if not 2 <= len(names) <= MAX_COLUMNS:
        raise InputError(f"got {len(names)} trajectories to compare, expected 2 to {MAX_COLUMNS}")
    columns = tuple(_load(folders, name) for name in names)
    longest = max(len(column.document.turns) if column.document else 0 for column in columns)
    num_rows = min(longest, _MAX_TURNS)
    room = max(_MIN_CELL_CHARS, min(_CELL_CHARS, _PAGE_CHARS // (2 * len(columns) * max(1, num_rows))))
    forks = [_first_difference(columns[0].document, column.document) for column in columns]
    return Comparison(
        columns=columns,
        patch_letters=tuple(_letters([column.document for column in columns])),
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


def _letters(documents: Sequence[Document | None]) -> list[str]:
    known: dict[str, str] = {}
    letters = []
    for document in documents:
        patch = document.final_patch if document else ""
        if patch and patch not in known:
            known[patch] = chr(ord("A") + len(known))
        letters.append(known.get(patch, ""))
    return letters


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

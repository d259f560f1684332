"""Pages of a run store, read and never written.

Reads ``run.db``; makes pages of light rows, groups with their members, and single trajectories. Invariants: a page is
found by the key of its neighbour (never by an offset), so that a page deep inside costs what the first one costs; a
store that no process has open is read without leaving a lock file beside it.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from mendwright.errors import InputError
from mendwright.ledger import TokenLedger
from mendwright.records import VerdictKind
from mendwright.rollout.rows import Document, GroupRow, TrajectoryRow, unpack_document, unpack_ledger
from mendwright.rollout.schema import SCHEMA_VERSION, check_schema
from mendwright.rollout.store import RunStore
from mendwright.view.filters import Order, TrajectoryFilter

_COLUMNS = ("number", *TrajectoryRow.model_fields)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM trajectories"
_ORDERS: dict[Order, tuple[tuple[str, ...], str]] = {
    "newest": (("number",), "DESC"),
    "oldest": (("number",), "ASC"),
    "most_turns": (("num_turns", "number"), "DESC"),
    "most_tokens": (("num_tokens", "number"), "DESC"),
}
_CHUNK = 64
_MAX_COUNTED = 10_000
Key = tuple[int, ...]
"""Where a row stands in an order: the value of its column, if it has one, and the row's number."""


class Member(NamedTuple):
    """One trajectory of a group, as a list of groups shows it."""

    number: int
    id: str
    verdict: VerdictKind


class Listed(NamedTuple):
    """One row of a list: its number in the store, which addresses it, and what it says."""

    number: int
    row: TrajectoryRow


class Page(NamedTuple):
    """Rows that follow each other, and the keys behind which the neighbouring pages begin."""

    rows: list[Listed]
    before: Key | None
    after: Key | None
    is_cut: bool = False
    """The time for searching text ran out before the page was full."""
    num_searched: int = 0


class RunReader(RunStore):
    """A ``run.db`` opened for looking only."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open a store without changing anything in its folder.

        Raises:
            InputError: there is no store, or it is of another program, damaged, or of another schema version.
        """
        if not path.is_file():
            raise InputError(f"{path} does not exist; name the folder of a run, which holds a run.db")
        # Without a write-ahead log no process writes, and SQLite need not make its lock file to read.
        mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        try:
            version = check_schema(connection, path)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise InputError(f"{path} cannot be read as a run store ({error})") from error
        if version < SCHEMA_VERSION:
            connection.close()
            raise InputError(
                f"{path} has the older schema {version}, this viewer reads {SCHEMA_VERSION} and changes nothing; "
                "open it once for writing to migrate it (`mend report` says how), or use the version that made it"
            )
        return cls(path, connection)

    # --- lists -----------------------------------------------------------------------------------------------------

    def page(
        self, wanted: TrajectoryFilter, size: int, *, after: Key | None = None, before: Key | None = None,
        text_budget_s: float = 0.7,
    ) -> Page:
        """Up to ``size`` rows behind ``after``, or the last ones in front of ``before``; neither: the first."""
        is_backward = before is not None
        key = before if is_backward else after
        if wanted.text:
            return self._searched(wanted, size, key, is_backward, text_budget_s)
        rows = self._slice(wanted, size + 1, key, is_backward)
        has_more = len(rows) > size
        return _paged(rows[:size], wanted.order, key, is_backward, has_more)

    def _searched(
        self, wanted: TrajectoryFilter, size: int, key: Key | None, is_backward: bool, budget_s: float
    ) -> Page:
        """Rows whose text matches: read on from ``key`` until the page is full or the time is over."""
        deadline = time.monotonic() + budget_s
        found: list[Listed] = []
        num_searched, cursor = 0, key
        while True:
            chunk = self._slice(wanted, _CHUNK, cursor, is_backward)
            for one in chunk:
                num_searched += 1
                cursor = _key_of(one, wanted.order)
                if self._says(one.number, wanted.text):
                    found.append(one)
                is_late = time.monotonic() > deadline
                if len(found) == size or is_late:
                    page = _paged(found, wanted.order, key, is_backward, True, end=cursor)
                    return page._replace(is_cut=len(found) < size, num_searched=num_searched)
            if len(chunk) < _CHUNK:
                return _paged(found, wanted.order, key, is_backward, False)._replace(num_searched=num_searched)

    def _says(self, number: int, text: str) -> bool:
        (blob,) = self._fetch("SELECT document FROM documents WHERE number = ?", (number,))[0]
        try:
            content = json.loads(zlib.decompress(blob))
        except (zlib.error, ValueError):
            return False
        return _holds(content, text.casefold())

    def _slice(self, wanted: TrajectoryFilter, size: int, key: Key | None, is_backward: bool) -> list[Listed]:
        condition, values = wanted.sql()
        columns, direction = _ORDERS[wanted.order]
        if is_backward:
            direction = "ASC" if direction == "DESC" else "DESC"
        if key is not None:
            if len(key) != len(columns):
                raise InputError(f"the address has a place of {len(key)} numbers, expected {len(columns)}; start over")
            comparison = "<" if direction == "DESC" else ">"
            condition += f" AND ({', '.join(columns)}) {comparison} ({', '.join('?' * len(key))})"
            values += key
        order = ", ".join(f"{column} {direction}" for column in columns)
        found = self._fetch(f"{_SELECT} WHERE {condition} ORDER BY {order} LIMIT ?", [*values, size])
        return [_to_listed(one) for one in found]

    def count(self, wanted: TrajectoryFilter) -> tuple[int, bool]:
        """Rows that match all but the text, counted up to a bound, and whether there are more than that."""
        condition, values = wanted.sql()
        query = f"SELECT count(*) FROM (SELECT 1 FROM trajectories WHERE {condition} LIMIT ?)"
        ((counted,),) = self._fetch(query, [*values, _MAX_COUNTED + 1])
        return min(counted, _MAX_COUNTED), counted > _MAX_COUNTED

    def neighbours(self, wanted: TrajectoryFilter, listed: Listed) -> tuple[int | None, int | None]:
        """Numbers of the rows before and after ``listed`` in the list, its text condition aside."""
        plain = wanted.model_copy(update={"text": ""})
        key = _key_of(listed, wanted.order)
        sides = (self._slice(plain, 1, key, is_backward) for is_backward in (True, False))
        before, after = (side[0].number if side else None for side in sides)
        return before, after

    def newest_number(self) -> int:
        """Number of the row that was stored last; 0 when there is none."""
        return int(self._fetch("SELECT coalesce(max(number), 0) FROM trajectories", ())[0][0])

    def counted(self, after: int, last: int) -> Iterator[tuple[tuple[Any, ...], tuple[int, ...]]]:
        """(phase, step, verdict, split, policy, stop reason) and (trajectories, turns, tokens, sampled tokens) of the
        rows with ``after`` < number <= ``last``.
        """
        found = self._fetch(
            "SELECT phase, step, verdict, split, policy_id, stop_reason, count(*), sum(num_turns), sum(num_tokens), "
            "sum(num_action_tokens) FROM trajectories WHERE number > ? AND number <= ? GROUP BY 1, 2, 3, 4, 5, 6",
            (after, last),
        )
        yield from ((one[:6], one[6:]) for one in found)

    # --- single ----------------------------------------------------------------------------------------------------

    def listed(self, number: int) -> Listed:
        """The row of a trajectory.

        Raises:
            InputError: there is none of this number.
        """
        found = self._fetch(f"{_SELECT} WHERE number = ?", (number,)) if number < 1 << 62 else []
        if not found:
            raise InputError(f"there is no trajectory {number} in this run")
        return _to_listed(found[0])

    def document(self, listed: Listed) -> Document:
        """The text of a trajectory.

        Raises:
            InputError: it is damaged, or another version of Mendwright wrote it.
        """
        with _readable(f"the text of trajectory {listed.number}"):
            return unpack_document(self._blob(listed.row.id, "document"))

    def ledger(self, listed: Listed) -> TokenLedger:
        """The tokens of a trajectory.

        Raises:
            InputError: they are damaged.
        """
        with _readable(f"the tokens of trajectory {listed.number}"):
            return unpack_ledger(self._blob(listed.row.id, "ledger"))

    # --- groups ----------------------------------------------------------------------------------------------------

    def group_page(
        self, phase: str, step: int | None, status: str, size: int, after: tuple[int, str] | None
    ) -> tuple[list[GroupRow], tuple[int, str] | None]:
        """Up to ``size`` groups of a phase behind ``after`` (step, id), and the key behind which the next ones begin."""
        values: list[Any] = [phase]
        condition = "phase = ?"
        for name, value in (("step", step), ("status", status or None)):
            if value is not None:
                condition += f" AND {name} = ?"
                values.append(value)
        if after:
            condition += " AND (step, id) > (?, ?)"
            values += after
        names = tuple(GroupRow.model_fields)
        query = f"SELECT {', '.join(names)} FROM groups WHERE {condition} ORDER BY step, id LIMIT ?"
        found = [GroupRow.model_validate(dict(zip(names, row, strict=True))) for row in self._fetch(query, [*values, size + 1])]
        more = (found[size - 1].step, found[size - 1].id) if len(found) > size else None
        return found[:size], more

    def group(self, phase: str, step: int, group_id: str) -> GroupRow:
        """One group.

        Raises:
            InputError: there is none.
        """
        names = tuple(GroupRow.model_fields)
        query = f"SELECT {', '.join(names)} FROM groups WHERE (phase, step, id) = (?, ?, ?)"
        found = self._fetch(query, (phase, step, group_id))
        if not found:
            raise InputError(f"phase {phase!r} has no group {group_id!r} in step {step}")
        return GroupRow.model_validate(dict(zip(names, found[0], strict=True)))

    def group_statuses(self, phase: str) -> dict[str, int]:
        """Status -> number of groups of a phase."""
        query = "SELECT status, count(*) FROM groups WHERE phase = ? GROUP BY 1 ORDER BY 1"
        return dict(self._fetch(query, (phase,)))

    def members(self, group: GroupRow) -> list[Member]:
        """The trajectories of a group, by id."""
        found = self._fetch(
            "SELECT number, id, verdict FROM trajectories "
            "WHERE phase = ? AND step = ? AND task_id = ? AND group_id = ? ORDER BY id",
            (group.phase, group.step, group.task_id, group.id),
        )
        return [Member(number, name, VerdictKind(verdict)) for number, name, verdict in found]

    def of_task(self, task_id: str, limit: int) -> list[Listed]:
        """Trajectories of a task in the order in which they were stored, up to ``limit``."""
        query = f"{_SELECT} WHERE number IN (SELECT number FROM trajectories WHERE task_id = ?) ORDER BY number LIMIT ?"
        return [_to_listed(one) for one in self._fetch(query, (task_id, limit))]


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (zlib.error, ValueError, TypeError, KeyError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{what} cannot be read: it is damaged, or another version of Mendwright wrote it ({reason})"
        ) from error


def _to_listed(values: tuple[Any, ...]) -> Listed:
    content = dict(zip(_COLUMNS, values, strict=True))
    content["durations_s"] = json.loads(content["durations_s"])
    number = content.pop("number")
    return Listed(number, TrajectoryRow.model_validate(content))


def _key_of(listed: Listed, order: Order) -> Key:
    columns, _ = _ORDERS[order]
    return tuple(listed.number if name == "number" else getattr(listed.row, name) for name in columns)


def _paged(
    rows: list[Listed], order: Order, start: Key | None, is_backward: bool, has_more: bool, end: Key | None = None
) -> Page:
    """A page from rows in the order in which they were looked at, from ``start`` to ``end``."""
    end = end or (_key_of(rows[-1], order) if rows else start)
    beyond = end if has_more else None
    if not is_backward:
        return Page(rows, before=_key_of(rows[0], order) if start and rows else start, after=beyond)
    return Page(rows[::-1], before=beyond, after=_key_of(rows[0], order) if rows else start)


def _holds(content: Any, text: str) -> bool:
    """True when a string inside ``content`` holds ``text``; names of fields do not count."""
    if isinstance(content, str):
        return text in content.casefold()
    if isinstance(content, dict):
        return any(_holds(value, text) for value in content.values())
    return isinstance(content, list) and any(_holds(value, text) for value in content)

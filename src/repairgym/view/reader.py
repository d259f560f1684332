"""A read-only run store, and counts of its trajectories that are updated by reading only new rows.

Reads ``run.db``; makes single trajectories, groups with their members, and counts per phase, step, verdict and more
(lists: `lists`). Guarantees: reading a store that no process writes leaves no lock file; the sums cover exactly the
rows of the store; after rows were removed (a resumed step drops its invalid ones), everything is counted again; a
trajectory or group that is absent, damaged or of another version is an `InputError`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from repairgym.errors import InputError
from repairgym.ledger import TokenLedger
from repairgym.records import VerdictKind
from repairgym.rollout.connection import check_schema, has_table
from repairgym.rollout.rows import Document, GroupRow, unpack_document, unpack_ledger
from repairgym.rollout.signals import TokenSignals, unpack_signals
from repairgym.view.curves import MetricCurves
from repairgym.view.lists import CHOSEN, COUNTED, SELECT, TOO_LARGE, Entry, TrajectoryFilter, TrajectoryLists, to_entry

_MAX_BRANCHES = 200
_STRETCH = 2_000
"""Rows that are counted at once."""
_GROUP_COLUMNS = tuple(GroupRow.model_fields)
_SELECT_GROUPS = f"SELECT {', '.join(_GROUP_COLUMNS)} FROM groups"


class GroupMember(NamedTuple):
    """One trajectory of a group in a list of groups."""

    number: int
    id: str
    verdict: VerdictKind


class Relative(NamedTuple):
    """The parent of a branch, or a branch of a trajectory."""

    number: int | None
    """None: the parent is not in this run any more."""
    id: str
    num_turns: int
    """Turns that both share."""


class Extent(NamedTuple):
    """Number of rows, and the last row."""

    num_rows: int
    newest_number: int
    newest_created_at: str


class RunReader(MetricCurves, TrajectoryLists):
    """A ``run.db`` opened for reading only."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open a store without changing anything in its folder.

        Raises:
            InputError: there is no store, or it is of another program, damaged, or of another schema version.
        """
        if not path.is_file():
            raise InputError(f"{path} does not exist; name the folder of a run, which holds a run.db")
        # With nothing in its write-ahead log the file is the whole store, and SQLite needs no lock file to read it.
        log = path.with_name(path.name + "-wal")
        mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        try:
            if not check_schema(connection, path):
                raise InputError(f"{path} is still empty; a run that has just begun has tables in a moment")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.DatabaseError):
                raise InputError(f"{path} cannot be read as a run store ({error})") from error
            raise
        return cls(path, connection)

    def extent(self) -> Extent:
        """Return the number of rows and the last row."""
        ((num_rows, newest),) = self._fetch("SELECT count(*), coalesce(max(number), 0) FROM trajectories", ())
        return Extent(num_rows, newest, self.created_at(newest))

    def created_at(self, number: int) -> str:
        """Return the time when the row of this number was stored; empty without such a row."""
        rows = self._fetch("SELECT created_at FROM trajectories WHERE number = ?", (number,))
        return str(rows[0][0]) if rows else ""

    def counted(self, after: int, last: int) -> Iterator[tuple[CountKey, Count]]:
        """Yield the sums over the rows with ``after`` < number <= ``last``, by the columns `COUNTED`."""
        columns, differing = ", ".join(COUNTED), ", ".join(reversed(COUNTED))  # rows compare faster by what differs
        rows = self._fetch(
            f"SELECT {columns}, count(*), sum(num_turns), sum(num_tokens) FROM trajectories "
            f"WHERE number > ? AND number <= ? GROUP BY {differing}",
            (after, last),
        )
        for *values, num, num_turns, num_tokens in rows:
            key, count = CountKey(*values), Count(num_turns, num_tokens)
            count.by_verdict[key.verdict] = num
            yield key, count

    def cost_usd(self, number: int | None = None) -> float:
        """Return the price of the answers of one trajectory, or of all; 0 where the policy has none."""
        if not has_table(self._connection, "costs"):
            return 0.0
        rows = self._fetch("SELECT total(usd) FROM costs WHERE number = ?1 OR ?1 IS NULL", (number,))
        return float(rows[0][0])

    # --- single ----------------------------------------------------------------------------------------------------

    def entry(self, number: int) -> Entry:
        """Return the row of the trajectory with this number."""
        rows = self._fetch(f"{SELECT} WHERE number = ?", (number,)) if number < TOO_LARGE else []
        if not rows:
            raise InputError(f"there is no trajectory {number} in this run")
        return to_entry(rows[0])

    def document(self, entry: Entry) -> Document:
        """Return the text of a trajectory."""
        with _readable(f"the text of trajectory {entry.number}"):
            return unpack_document(self._blob(entry.row.id, "document"))

    def ledger(self, entry: Entry) -> TokenLedger:
        """Return the tokens of a trajectory."""
        with _readable(f"the tokens of trajectory {entry.number}"):
            return unpack_ledger(self._blob(entry.row.id, "ledger"))

    def signals(self, entry: Entry) -> TokenSignals | None:
        """Return what an update learned of the tokens of a trajectory; None: nothing, or it was not kept."""
        if not has_table(self._connection, "signals"):
            return None
        rows = self._fetch("SELECT signals FROM signals WHERE number = ?", (entry.number,))
        with _readable(f"what was learned of trajectory {entry.number}"):
            return unpack_signals(rows[0][0]) if rows else None

    def parent(self, entry: Entry) -> Relative | None:
        """Return what a trajectory begins with; None: it is no branch."""
        parent = self.parent_of(entry.row.id)
        if parent is None:
            return None
        rows = self._fetch("SELECT number FROM trajectories WHERE id = ?", (parent.trajectory_id,))
        return Relative(rows[0][0] if rows else None, parent.trajectory_id, parent.num_turns)

    def branches(self, entry: Entry) -> list[Relative]:
        """Return the branches of a trajectory, up to a number that a page can show."""
        if not has_table(self._connection, "parents"):
            return []
        query = (
            "SELECT number, id, parents.num_turns FROM parents JOIN trajectories USING (number) WHERE parent_id = ? "
            "ORDER BY parents.num_turns, number LIMIT ?"
        )
        return [Relative(*row) for row in self._fetch(query, (entry.row.id, _MAX_BRANCHES))]

    # --- groups ----------------------------------------------------------------------------------------------------

    def group_page(
        self, phase: str, step: int | None, status: str, size: int, after: tuple[int, str] | None
    ) -> tuple[list[GroupRow], tuple[int, str] | None]:
        """Return up to ``size`` groups after ``after`` (step, id), and the key of the last if more follow."""
        values: list[Any] = [phase]
        condition = "phase = ?"
        for name, value in (("step", step), ("status", status or None)):
            if value is not None:
                condition += f" AND {name} = ?"
                values.append(value)
        if self.chosen is not None:
            members = f"SELECT step, group_id FROM trajectories WHERE phase = groups.phase AND {CHOSEN}"
            condition += f" AND (step, id) IN ({members})"
            values.append(json.dumps(sorted(self.chosen)))
        if after:
            condition += " AND (step, id) > (?, ?)"
            values += after
        query = f"{_SELECT_GROUPS} WHERE {condition} ORDER BY step, id LIMIT ?"
        rows = [_to_group(row) for row in self._fetch(query, [*values, size + 1])]
        more = (rows[size - 1].step, rows[size - 1].id) if len(rows) > size else None
        return rows[:size], more

    def group(self, phase: str, step: int, group_id: str) -> GroupRow:
        """Return one group."""
        rows = self._fetch(f"{_SELECT_GROUPS} WHERE (phase, step, id) = (?, ?, ?)", (phase, step, group_id))
        if not rows:
            raise InputError(f"phase {phase!r} has no group {group_id!r} in step {step}")
        return _to_group(rows[0])

    def group_statuses(self, phase: str) -> dict[str, int]:
        """Return status -> number of groups of a phase."""
        query = "SELECT status, count(*) FROM groups WHERE phase = ? GROUP BY 1 ORDER BY 1"
        return dict(self._fetch(query, (phase,)))

    def members(self, group: GroupRow) -> list[GroupMember]:
        """Return the trajectories of a group, by id."""
        rows = self._fetch(
            "SELECT number, id, verdict FROM trajectories "
            "WHERE phase = ? AND step = ? AND task_id = ? AND group_id = ? ORDER BY length(id), id",
            (group.phase, group.step, group.task_id, group.id),
        )
        return [GroupMember(number, name, VerdictKind(verdict)) for number, name, verdict in rows]


@contextmanager
def _readable(part: str) -> Iterator[None]:
    try:
        yield
    except (zlib.error, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{part} cannot be read: it is damaged, or another version of RepairGym wrote it ({reason})"
        ) from error


def _to_group(values: tuple[Any, ...]) -> GroupRow:
    return GroupRow.model_validate(dict(zip(_GROUP_COLUMNS, values, strict=True)))


# --- counts -----------------------------------------------------------------------------------------------------------


class CountKey(NamedTuple):
    """Common values of trajectories that are counted together; the fields are `COUNTED`."""

    phase: str
    step: int
    verdict: str
    split: str
    policy_id: str
    stop_reason: str


@dataclass
class Count:
    """Sums over trajectories."""

    num_turns: int = 0
    num_tokens: int = 0
    by_verdict: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VerdictKind, 0))

    @property
    def num(self) -> int:
        """Number of trajectories."""
        return sum(self.by_verdict.values())

    @property
    def pass_rate(self) -> float | None:
        """Share of passed trajectories, strict (invalid and exploited are not passed); None without any."""
        return self.by_verdict[VerdictKind.PASSED] / self.num if self.num else None

    def mean(self, name: str) -> float | None:
        """Return the mean of ``num_turns`` or ``num_tokens``."""
        return float(getattr(self, name)) / self.num if self.num else None

    def add(self, other: Count) -> None:
        """Add the sums of ``other``."""
        for verdict, num in other.by_verdict.items():
            self.by_verdict[verdict] += num
        self.num_turns += other.num_turns
        self.num_tokens += other.num_tokens


class RunCounts:
    """Counts of one store. Threads may share it."""

    def __init__(self) -> None:
        self._counts: dict[CountKey, Count] = {}
        self._extent = Extent(0, 0, "")
        self._lock = threading.Lock()

    def update(self, reader: RunReader) -> None:
        """Count the rows since the last update."""
        with self._lock:
            extent = reader.extent()
            # SQLite reuses a number that was freed at the end; then the last row is a different one.
            if reader.created_at(self._extent.newest_number) != self._extent.newest_created_at:
                self._clear()
            self._add(reader, self._extent.newest_number, extent.newest_number)
            if sum(count.num for count in self._counts.values()) != extent.num_rows:
                self._clear()
                self._add(reader, 0, extent.newest_number)
            self._extent = extent

    def _clear(self) -> None:
        self._counts.clear()
        self._extent = Extent(0, 0, "")

    def _add(self, reader: RunReader, after: int, last: int) -> None:
        for first in range(after, last, _STRETCH):  # sorting many short stretches costs half of sorting all rows
            for key, count in reader.counted(first, min(first + _STRETCH, last)):
                self._counts.setdefault(key, Count()).add(count)

    def _items(self, **wanted: Any) -> list[tuple[CountKey, Count]]:
        with self._lock:
            items = list(self._counts.items())
        return [item for item in items if all(getattr(item[0], name) == value for name, value in wanted.items())]

    def total(self, **wanted: Any) -> Count:
        """Return the sums over the keys whose fields equal ``wanted``."""
        total = Count()
        for _, count in self._items(**wanted):
            total.add(count)
        return total

    def by(self, name: str, **wanted: Any) -> dict[Any, Count]:
        """Return the sums per value of the field ``name``, over the keys whose fields equal ``wanted``."""
        sums: dict[Any, Count] = {}
        for key, count in self._items(**wanted):
            sums.setdefault(getattr(key, name), Count()).add(count)
        return sums

    def values(self, name: str) -> list[Any]:
        """Return the values of a field, sorted."""
        return sorted({getattr(key, name) for key, _ in self._items()})

    def matching(self, wanted: TrajectoryFilter) -> Count | None:
        """Return the sums over the matches of a filter; None when it has a condition that is not counted here."""
        conditions = wanted.narrowing()
        return self.total(**conditions) if set(conditions) <= set(COUNTED) else None

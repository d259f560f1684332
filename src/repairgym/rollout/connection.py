"""The SQLite file of a run store: tables, opening, transactions, errors.

Reads and makes ``run.db``. Guarantees: each write is one ``BEGIN IMMEDIATE`` transaction, committed whole or not at
all; the threads of a process share one connection behind a lock; one process writes at a time, any number read (WAL);
a store of another version or program is rejected.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from repairgym.errors import DiskFullError, InputError

APPLICATION_ID = 0x5247594D
"""``RGYM`` in ASCII, in ``PRAGMA application_id``: distinguishes a run store from any other SQLite file."""
_UNRELEASED_APPLICATION_ID = 0x4D454E44
SCHEMA_VERSION = 7
"""In ``PRAGMA user_version``. 1 and 2 were never released. Version 3 has turns without a state (`Turn.state`), 3 and 4
have no parents of branches, 3 to 5 no waits (`Turn.wait_s`), 3 to 6 no prices: they are read as they are, and become
version 7 where they are opened for writing."""
_OLDEST_VERSION, _PARENTS_VERSION = 3, 5
_PARENTS = (
    """CREATE TABLE parents (
        number INTEGER PRIMARY KEY REFERENCES trajectories (number) ON DELETE CASCADE,
        parent_id TEXT NOT NULL, num_turns INTEGER NOT NULL)""",
    "CREATE INDEX parents_by_id ON parents (parent_id)",
)
_COSTS = (
    """CREATE TABLE costs (
        number INTEGER PRIMARY KEY REFERENCES trajectories (number) ON DELETE CASCADE, usd REAL NOT NULL)""",
)
_TABLES = (
    """CREATE TABLE groups (
        id TEXT NOT NULL, phase TEXT NOT NULL, step INTEGER NOT NULL, task_id TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'open',
        PRIMARY KEY (phase, step, id))""",
    """CREATE TABLE trajectories (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, phase TEXT NOT NULL, step INTEGER NOT NULL,
        group_id TEXT NOT NULL, task_id TEXT NOT NULL, split TEXT NOT NULL, policy_id TEXT NOT NULL,
        verdict TEXT NOT NULL, reason TEXT NOT NULL, is_restored INTEGER, reward REAL, stop_reason TEXT NOT NULL,
        seed INTEGER NOT NULL, num_turns INTEGER NOT NULL, num_tokens INTEGER NOT NULL,
        num_action_tokens INTEGER NOT NULL, durations_s TEXT NOT NULL, created_at TEXT NOT NULL,
        FOREIGN KEY (phase, step, group_id) REFERENCES groups (phase, step, id),
        CHECK ((verdict = 'invalid') = (reward IS NULL)))""",
    "CREATE INDEX trajectories_by_phase ON trajectories (phase, step, task_id)",
    """CREATE TABLE documents (
        number INTEGER PRIMARY KEY REFERENCES trajectories (number) ON DELETE CASCADE,
        document BLOB NOT NULL, ledger BLOB NOT NULL)""",
    """CREATE TABLE metrics (
        phase TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, time TEXT NOT NULL,
        PRIMARY KEY (phase, name, step)) WITHOUT ROWID""",
    """CREATE TABLE phases (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, status TEXT NOT NULL, started_at TEXT,
        resumed_at TEXT, ended_at TEXT, wall_s REAL NOT NULL DEFAULT 0, cpu_s REAL NOT NULL DEFAULT 0,
        peak_rss_bytes INTEGER NOT NULL DEFAULT 0, detail TEXT NOT NULL DEFAULT '{}')""",
    """CREATE TABLE events (
        number INTEGER PRIMARY KEY, time TEXT NOT NULL, phase TEXT NOT NULL, kind TEXT NOT NULL,
        message TEXT NOT NULL)""",
    *_PARENTS,
    *_COSTS,
)


def check_schema(connection: sqlite3.Connection, path: object) -> bool:
    """Return False for a file without tables; `InputError` if another program or version made it."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if not version and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return False
    if application == _UNRELEASED_APPLICATION_ID or (application == APPLICATION_ID and version < _OLDEST_VERSION):
        raise InputError(f"{path}: this run folder was written by an earlier, unreleased version; start a new run")
    if application != APPLICATION_ID:
        raise InputError(
            f"{path} is a SQLite file of another program, not a run store; name the run.db of a run folder"
        )
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version}, this RepairGym reads {SCHEMA_VERSION}; "
            "use the version that made the run, or a newer one"
        )
    return True


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the missing tables in one transaction; a killed process leaves the file as it was."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            parents = _PARENTS if version < _PARENTS_VERSION else ()
            for statement in (*parents, *_COSTS) if version else _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


_BUSY_TIMEOUT_S = 30.0
Listener = Callable[[str, int, Mapping[str, float]], None]
"""Called with phase, step and metrics once they are stored."""


class StoreConnection:
    """An open ``run.db``. Threads may share it; every call is its own transaction."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Hold an open connection; use `create` or `open`."""
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        self._listeners: list[Listener] = []

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a new store; `InputError` if ``path`` exists, or its folder does not."""
        if path.exists():
            raise InputError(f"{path} exists; open it to resume the run, or name another run folder")
        if not path.parent.is_dir():
            raise InputError(f"{path.parent} is no folder; make the run folder before its run.db")
        path.touch()
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, is_read_only: bool = False) -> Self:
        """Open a store; `InputError` if there is no such file, it is no run store, or another version made it."""
        if not path.is_file():
            raise InputError(f"{path} does not exist; name the folder of a run, which holds a run.db")
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if is_read_only else 'rw'}",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _prepare(connection, path, is_read_only)
        except BaseException as error:
            connection.close()
            if not isinstance(error, sqlite3.DatabaseError):
                raise
            raise InputError(f"{path} cannot be read as a run store ({error}); name the run.db of a run") from error
        return cls(path, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()

    def _fetch(self, query: str, values: Iterable[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, tuple(values)).fetchall()
            except sqlite3.DatabaseError as error:
                raise InputError(f"{self.path} cannot be read ({error}); restore a copy of it") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise _as_repairgym_error(error, self.path) from error
                raise


def _prepare(connection: sqlite3.Connection, path: Path, is_read_only: bool) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    has_tables = check_schema(connection, path)
    if is_read_only:
        if not has_tables:
            raise InputError(f"{path} is empty; open it once for writing")
        return
    connection.execute("PRAGMA journal_mode = WAL")
    if not has_tables or connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        _make_tables(connection)


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return False for a table that a store of an older version, open for reading, does not have."""
    return bool(connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])


def _as_repairgym_error(error: sqlite3.OperationalError, path: Path) -> Exception:
    code = error.sqlite_errorcode & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(f"no space left on the device that holds {path}; what was stored before is intact")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(f"another process has been writing {path} for {_BUSY_TIMEOUT_S:.0f} s; one run, one writer")
    if code == sqlite3.SQLITE_READONLY:
        return InputError(f"{path} is open read-only; open it for writing")
    return error


def where(
    phase: str | None, phase_prefix: str | None, step: int | None, task_ids: Collection[str] | None
) -> tuple[str, list[Any]]:
    """A ``WHERE`` clause with its values; None does not filter."""
    conditions: list[tuple[str, Any]] = []
    if phase is not None:
        conditions.append(("phase = ?", phase))
    if phase_prefix is not None:
        conditions.append(("instr(phase, ?) = 1", phase_prefix))
    if step is not None:
        conditions.append(("step = ?", step))
    if task_ids is not None:
        conditions.append(("task_id IN (SELECT value FROM json_each(?))", json.dumps(list(task_ids))))
    text = " AND ".join(condition for condition, _ in conditions)
    return (f"WHERE {text}" if text else ""), [value for _, value in conditions]


def now() -> str:
    """The time in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""The tables of ``run.db`` and how an older file becomes a current one.

Reads and makes a SQLite connection's schema. Invariants: ``PRAGMA user_version`` is the schema version, changed in the
same transaction as the tables; version 0 is an empty file, so making a store is the migration from 0; a file that
another program made, or a newer RepairGym, is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from repairgym.errors import InputError

APPLICATION_ID = 0x4D454E44
"""``REPAIRGYM`` in ASCII, in ``PRAGMA application_id``: tells a run store from any other SQLite file."""

MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    0: (
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
    ),
    # Ledgers may end with branches (`rows.pack_ledger`), which a reader of version 1 would take for one history; those
    # without stay as they are.
    1: (),
}
"""Version -> statements that lead to the next version. To change a table: add an entry, never edit an old one."""

SCHEMA_VERSION = max(MIGRATIONS) + 1
OLDEST_READABLE_VERSION = 1
"""Stores from this version on can be read as they are; older ones must be migrated first, which needs writing."""


def schema_version(connection: sqlite3.Connection) -> int:
    """``PRAGMA user_version``; 0 is a file without tables."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_schema(connection: sqlite3.Connection, path: object, newest: int = SCHEMA_VERSION) -> int:
    """Version of the file, when it is a run store that this code can read or migrate.

    Raises:
        InputError: the file belongs to another program, or a newer RepairGym made it.
    """
    version = schema_version(connection)
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (version or num_tables):
        raise InputError(
            f"{path} is a SQLite file of another program, not a run store; name the run.db of a run folder"
        )
    if version > newest:
        raise InputError(
            f"{path} has schema version {version}, this RepairGym reads up to {newest}; "
            "use the version that made the run, or a newer one"
        )
    return version


def migrate(
    connection: sqlite3.Connection,
    *,
    newest: int = SCHEMA_VERSION,
    migrations: Mapping[int, tuple[str, ...]] = MIGRATIONS,
) -> None:
    """Bring the connection's file to schema version ``newest``, in one transaction.

    The connection is in autocommit mode (``isolation_level=None``); a killed migration leaves the old version.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for version in range(schema_version(connection), newest):
            for statement in migrations[version]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise

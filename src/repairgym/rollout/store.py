"""``run.db``: everything that a run leaves behind, in one SQLite file.

Reads and makes trajectories, groups, metrics, phases and events. Invariants: one transaction per call, so a process
killed at any moment loses at most the call it was in; a trajectory id is stored once; a group holds one task; a row has
a reward exactly when its verdict is valid; a resumed phase adds to its seconds and keeps its first start, its peak is
the largest seen; of a killed one they are those of its last note (`note_usage`). After a power cut the last commits can
be missing, the file is whole (``synchronous=NORMAL``).
"""

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from repairgym.errors import InputError, Interrupted
from repairgym.ledger import Parent
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.connection import Listener, StoreConnection, has_table, now, where
from repairgym.rollout.rows import (
    Document,
    Event,
    GroupRow,
    PhaseRow,
    TrajectoryRow,
    join_trajectory,
    pack_document,
    pack_ledger,
    unpack_document,
    unpack_ledger,
)
from repairgym.rollout.signals import SIGNALS_TABLE, TokenSignals, pack_signals
from repairgym.rollout.usage import TreeUsage

_ROW_COLUMNS = ", ".join(TrajectoryRow.model_fields)
_PHASE_COLUMNS = ", ".join(PhaseRow.model_fields)
_NOTE = "used_so_far"
"""Key of a running phase's detail."""
_NOTE_EVERY_S = 10.0


class _ForgottenError(InputError):
    """A trajectory went between the reading of its row and of its text."""


class RunStore(StoreConnection):
    """One run's ``run.db``: `create` or `open` it, `close` it or use it as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Hold an open connection; use `create` or `open`."""
        super().__init__(path, connection)
        self._measured: dict[str, TreeUsage] = {}
        """Phases that run now."""
        self._next_note_s = 0.0

    def add_trajectory(self, trajectory: Trajectory, *, phase: str, step: int, split: str) -> bool:
        """Store a trajectory in one transaction; False when its id is already there (nothing changes).

        Raises:
            InputError: the id is stored for another phase, step or task, or the group belongs to another task.
            DiskFullError: no room; nothing was written.
        """
        row = row_values(trajectory, phase, step, split)
        blobs = pack_document(trajectory), pack_ledger(trajectory.ledger)
        with self._transaction() as connection:
            if self._is_stored(row):
                return False
            self._join_group(trajectory, phase, step)
            marks = ", ".join("?" * len(row))
            number = connection.execute(
                f"INSERT INTO trajectories ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
            ).lastrowid
            connection.execute("INSERT INTO documents VALUES (?, ?, ?)", (number, *blobs))
            if (parent := trajectory.parent) is not None:
                values = (number, parent.trajectory_id, parent.num_turns)
                connection.execute("INSERT INTO parents VALUES (?, ?, ?)", values)
            if trajectory.cost_usd:
                connection.execute("INSERT INTO costs VALUES (?, ?)", (number, trajectory.cost_usd))
        self._note_in_time()
        return True

    def _is_stored(self, row: Mapping[str, Any]) -> bool:
        stored = self._connection.execute(
            "SELECT phase, step, task_id FROM trajectories WHERE id = ?", (row["id"],)
        ).fetchone()
        if stored and tuple(stored) != (row["phase"], row["step"], row["task_id"]):
            raise InputError(
                f"trajectory id {row['id']!r} is already stored for phase, step, task {tuple(stored)}, "
                f"got {(row['phase'], row['step'], row['task_id'])}; give every episode an id of its own"
            )
        return bool(stored)

    def _join_group(self, trajectory: Trajectory, phase: str, step: int) -> None:
        key = (phase, step, trajectory.group_id)
        self._connection.execute(
            "INSERT OR IGNORE INTO groups (phase, step, id, task_id) VALUES (?, ?, ?, ?)", (*key, trajectory.task_id)
        )
        (task_id,) = self._connection.execute(
            "SELECT task_id FROM groups WHERE (phase, step, id) = (?, ?, ?)", key
        ).fetchone()
        if task_id != trajectory.task_id:
            raise InputError(
                f"group {trajectory.group_id!r} holds task {task_id!r}, got {trajectory.task_id!r}; "
                "a group compares trajectories of one task"
            )

    def rows(
        self,
        *,
        phase: str | None = None,
        phase_prefix: str | None = None,
        step: int | None = None,
        task_ids: Collection[str] | None = None,
    ) -> list[TrajectoryRow]:
        """Light rows in the order in which they were stored; each filter narrows."""
        condition, values = where(phase, phase_prefix, step, task_ids)
        records = self._fetch(f"SELECT {_ROW_COLUMNS} FROM trajectories {condition} ORDER BY number", values)
        return [_to_row(values) for values in records]

    def verdicts(self, phase_prefix: str) -> dict[str, dict[str, list[VerdictKind]]]:
        """Phase -> task -> verdicts of its samples in the order of their seeds."""
        by_phase: dict[str, dict[str, list[VerdictKind]]] = {}
        query = (
            "SELECT phase, task_id, verdict FROM trajectories WHERE phase >= ? AND phase < ? "
            "ORDER BY phase, task_id, seed, id"
        )
        for phase, task, verdict in self._fetch(query, (phase_prefix, phase_prefix + chr(0x10FFFF))):
            by_phase.setdefault(phase, {}).setdefault(task, []).append(VerdictKind(verdict))
        return by_phase

    def documents(
        self, *, phase: str | None = None, phase_prefix: str | None = None, step: int | None = None
    ) -> Iterator[tuple[TrajectoryRow, Document]]:
        """Rows with their text, without tokens, one at a time; what a resumed run forgets meanwhile is left out."""
        for row in self.rows(phase=phase, phase_prefix=phase_prefix, step=step):
            try:
                document = self._document(row.id)
            except _ForgottenError:
                continue
            yield row, document

    def trajectories(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        task_ids: Collection[str] | None = None,
    ) -> Iterator[Trajectory]:
        """Whole trajectories, token arrays included, one at a time, in the order in which they were stored.

        Those that a resumed run forgets meanwhile are left out.
        """
        for row in self.rows(phase=phase, step=step, task_ids=task_ids):
            try:
                trajectory = self._join(row)
            except _ForgottenError:
                continue
            yield trajectory

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One whole trajectory; `InputError` if there is none of this id."""
        records = self._fetch(f"SELECT {_ROW_COLUMNS} FROM trajectories WHERE id = ?", (trajectory_id,))
        if not records:
            raise InputError(f"{self.path} holds no trajectory {trajectory_id!r}; `rows` lists those it holds")
        return self._join(_to_row(records[0]))

    def trajectory_ids(self, *, phase: str, step: int | None = None) -> set[str]:
        """Ids already stored: what a resumed phase need not run again."""
        condition, values = where(phase, None, step, None)
        return {row[0] for row in self._fetch(f"SELECT id FROM trajectories {condition}", values)}

    def num_trajectories(self) -> dict[str, int]:
        """Phase -> stored trajectories, phases sorted."""
        return dict(self._fetch("SELECT phase, count(*) FROM trajectories GROUP BY phase ORDER BY phase", ()))

    def drop_invalid(self, *, phase: str, step: int) -> int:
        """Forget the invalid trajectories of a step, so that a resumed run tries them again; returns how many."""
        with self._transaction() as connection:
            deleted = connection.execute(
                "DELETE FROM trajectories WHERE (phase, step, verdict) = (?, ?, 'invalid')", (phase, step)
            )
        return deleted.rowcount

    def drop_steps(self, *, phase: str, first_step: int) -> int:
        """Forget a phase from a step on, where an engine with own checkpoints begins again; returns the number."""
        condition = "WHERE phase = ? AND step >= ?"
        with self._transaction() as connection:
            deleted = connection.execute(f"DELETE FROM trajectories {condition}", (phase, first_step))
            connection.execute(f"DELETE FROM groups {condition}", (phase, first_step))
        return deleted.rowcount

    def _join(self, row: TrajectoryRow) -> Trajectory:
        ledger = unpack_ledger(self._blob(row.id, "ledger"))
        return join_trajectory(row, self._document(row.id), ledger, self.parent_of(row.id))

    def parent_of(self, trajectory_id: str) -> Parent | None:
        """Return what a trajectory begins with; None: it is no branch."""
        if not has_table(self._connection, "parents"):
            return None
        query = "SELECT parent_id, parents.num_turns FROM parents JOIN trajectories USING (number) WHERE id = ?"
        rows = self._fetch(query, (trajectory_id,))
        return Parent(trajectory_id=rows[0][0], num_turns=rows[0][1]) if rows else None

    def _document(self, trajectory_id: str) -> Document:
        blob = self._blob(trajectory_id, "document")
        try:
            return unpack_document(blob)
        except InputError as error:
            raise InputError(f"{self.path}: {trajectory_id}: {error}") from error

    def _blob(self, trajectory_id: str, column: str) -> bytes:
        query = f"SELECT {column} FROM documents JOIN trajectories USING (number) WHERE id = ?"
        records = self._fetch(query, (trajectory_id,))
        if not records:
            raise _ForgottenError(f"{self.path} no longer holds {trajectory_id!r}: a resumed run forgot it")
        return bytes(records[0][0])

    def add_signals(self, signals: Mapping[str, TokenSignals]) -> None:
        """Store what an update learned of the tokens of trajectories, by id; a resumed update overwrites its own."""
        rows = [(pack_signals(value), name) for name, value in signals.items()]
        if not rows:
            return
        with self._transaction() as connection:
            connection.execute(SIGNALS_TABLE)
            connection.executemany(
                "INSERT OR REPLACE INTO signals SELECT number, ? FROM trajectories WHERE id = ?", rows
            )

    # --- groups ----------------------------------------------------------------------------------------------------

    def set_group_status(self, group_id: str, *, phase: str, step: int, task_id: str, status: str) -> None:
        """Say what became of a group, e.g. ``trained``, ``dropped_equal_rewards``, ``failed``."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO groups (id, phase, step, task_id, status) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET status = excluded.status",
                (group_id, phase, step, task_id, status),
            )

    def groups(self, *, phase: str, step: int | None = None) -> list[GroupRow]:
        """Groups of a phase in the order of their steps and ids."""
        condition, values = where(phase, None, step, None)
        records = self._fetch(
            f"SELECT id, phase, step, task_id, status FROM groups {condition} ORDER BY step, id", values
        )
        names = tuple(GroupRow.model_fields)
        return [GroupRow.model_validate(dict(zip(names, row, strict=True))) for row in records]

    # --- phases ----------------------------------------------------------------------------------------------------

    def plan_phases(self, names: Iterable[str]) -> None:
        """Say which phases the run is going to have, so that a report can name those that are missing."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO phases (name, status) VALUES (?, 'planned')", [(name,) for name in names]
            )

    def start_phase(self, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """Start or resume a phase; ``detail`` is merged into what is there, the use of a killed call is added up."""
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO phases (name, status) VALUES (?, 'planned')", (name,))
            _add_killed(connection, name)
            connection.execute(
                "UPDATE phases SET status = 'running', started_at = coalesce(started_at, ?1), resumed_at = ?1, "
                "ended_at = NULL, detail = json_patch(detail, ?2) WHERE name = ?3",
                (now(), json.dumps({**(detail or {}), _NOTE: None}), name),
            )

    def end_phase(
        self,
        name: str,
        *,
        status: str = "done",
        cpu_s: float = 0.0,
        peak_rss_bytes: int = 0,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """End a running phase (else `InputError`); wall and CPU seconds since the last start are added up."""
        with self._transaction() as connection:
            row = connection.execute("SELECT status, resumed_at FROM phases WHERE name = ?", (name,)).fetchone()
            if not row or row[0] != "running":
                raise InputError(f"phase {name!r} is {row[0] if row else 'unknown'}, not running; start it first")
            ended_at = now()
            wall_s = (datetime.fromisoformat(ended_at) - datetime.fromisoformat(row[1])).total_seconds()
            connection.execute(
                "UPDATE phases SET status = ?, ended_at = ?, wall_s = wall_s + ?, cpu_s = cpu_s + ?, "
                "peak_rss_bytes = max(peak_rss_bytes, ?), detail = json_patch(detail, ?) WHERE name = ?",
                (status, ended_at, wall_s, cpu_s, peak_rss_bytes, json.dumps({**(detail or {}), _NOTE: None}), name),
            )

    def note_usage(self) -> None:
        """Store what the running phases have used since their last start, for the call that resumes them after a kill.

        Metrics and trajectories do it by themselves, at most every 10 s.
        """
        self._next_note_s = time.monotonic() + _NOTE_EVERY_S
        notes = [
            (json.dumps({_NOTE: {"until": now(), "cpu_s": usage.cpu_s, "peak_rss_bytes": usage.peak_bytes}}), name)
            for name, usage in tuple(self._measured.items())
        ]
        if notes:
            with self._transaction() as connection:
                connection.executemany("UPDATE phases SET detail = json_patch(detail, ?) WHERE name = ?", notes)

    def _note_in_time(self) -> None:
        if time.monotonic() >= self._next_note_s:
            self.note_usage()

    @contextmanager
    def phase(self, name: str, detail: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Run a phase and measure it; what is put into the yielded dict becomes part of its detail.

        CPU seconds and memory are those of the process tree (`TreeUsage`). An exception ends the phase as
        ``interrupted`` (Ctrl-C) or ``failed``. Phases may be nested: the outer one includes the inner.
        """
        more: dict[str, Any] = {}
        self.start_phase(name, detail)
        status = "failed"
        usage = TreeUsage()
        self._measured[name] = usage
        try:
            with usage:
                yield more
            status = "done"
        except (KeyboardInterrupt, Interrupted, asyncio.CancelledError):
            status = "interrupted"
            raise
        finally:
            self._measured.pop(name, None)
            self.end_phase(name, status=status, cpu_s=usage.cpu_s, peak_rss_bytes=usage.peak_bytes, detail=more)

    def phase_status(self, name: str) -> str:
        """Status of a phase; ``missing`` when nothing is known of it."""
        rows = self._fetch("SELECT status FROM phases WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else "missing"

    def phases(self) -> list[PhaseRow]:
        """All phases, in the order in which they were planned or first started."""
        records = self._fetch(f"SELECT {_PHASE_COLUMNS} FROM phases ORDER BY number", ())
        rows = [dict(zip(PhaseRow.model_fields, values, strict=True)) for values in records]
        return [PhaseRow.model_validate({**row, "detail": json.loads(row["detail"])}) for row in rows]

    def prices(self) -> dict[str, float]:
        """Phase -> dollars for its answers, of phases whose model has a price."""
        if not has_table(self._connection, "costs"):
            return {}
        return dict(self._fetch("SELECT phase, sum(usd) FROM costs JOIN trajectories USING (number) GROUP BY 1", ()))

    # --- metrics and events ----------------------------------------------------------------------------------------

    def add_metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Store one number per name; a resumed step overwrites its own."""
        written_at = now()
        # SQLite keeps NaN as NULL; `metrics` turns it back
        rows = [(phase, step, name, float(value), written_at) for name, value in values.items()]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
        for listener in self._listeners:
            listener(phase, step, values)
        self._note_in_time()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Within, ``listener`` hears of all metrics that this store takes."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def metrics(self, phase: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of one metric by step."""
        rows = self._fetch("SELECT step, value FROM metrics WHERE phase = ? AND name = ? ORDER BY step", (phase, name))
        return [(step, math.nan if value is None else value) for step, value in rows]

    def metric_names(self, phase: str) -> list[str]:
        """Names of the metrics of a phase, sorted."""
        return [row[0] for row in self._fetch("SELECT DISTINCT name FROM metrics WHERE phase = ? ORDER BY 1", (phase,))]

    def newest_metrics(self) -> list[tuple[str, str, float]]:
        """(phase, metric, value at its newest step), by phase and name."""
        query = "SELECT phase, name, value, max(step) FROM metrics GROUP BY phase, name"
        return [(phase, name, math.nan if value is None else value) for phase, name, value, _ in self._fetch(query, ())]

    def phase_totals(self) -> list[tuple[str, int, int, int]]:
        """(phase, trajectories, valid ones, passed ones), by phase."""
        query = "SELECT phase, count(*), count(reward), sum(verdict = 'passed') FROM trajectories GROUP BY phase"
        return [tuple(row) for row in self._fetch(query, ())]

    def metric_phases(self) -> list[str]:
        """Phases that have metrics, in the order of their first number."""
        return [row[0] for row in self._fetch("SELECT phase FROM metrics GROUP BY phase ORDER BY min(time)", ())]

    def add_event(self, kind: str, message: str, *, phase: str = "") -> None:
        """Note that something worth telling happened, e.g. kind ``sandbox_lost``."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO events (time, phase, kind, message) VALUES (?, ?, ?, ?)", (now(), phase, kind, message)
            )

    def events(self) -> list[Event]:
        """All events, oldest first."""
        rows = self._fetch("SELECT time, phase, kind, message FROM events ORDER BY number", ())
        return [Event(time=row[0], phase=row[1], kind=row[2], message=row[3]) for row in rows]


def _add_killed(connection: sqlite3.Connection, name: str) -> None:
    """Add what a phase that was never ended had used at its last note."""
    query = "SELECT status, resumed_at, detail FROM phases WHERE name = ?"
    status, resumed_at, detail = connection.execute(query, (name,)).fetchone()
    note = json.loads(detail).get(_NOTE)
    if status == "running" and note is not None:
        wall_s = (datetime.fromisoformat(note["until"]) - datetime.fromisoformat(resumed_at)).total_seconds()
        connection.execute(
            "UPDATE phases SET wall_s = wall_s + ?, cpu_s = cpu_s + ?, peak_rss_bytes = max(peak_rss_bytes, ?) "
            "WHERE name = ?",
            (wall_s, note["cpu_s"], note["peak_rss_bytes"], name),
        )


def row_values(trajectory: Trajectory, phase: str, step: int, split: str) -> dict[str, Any]:
    """The columns of a trajectory's row, as they are stored."""
    verdict = trajectory.verdict
    return {
        "id": trajectory.id,
        "phase": phase,
        "step": step,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "split": split,
        "policy_id": trajectory.policy_id,
        "verdict": verdict.kind.value,
        "reason": verdict.reason,
        "is_restored": verdict.is_restored,
        "reward": verdict.reward if verdict.is_valid else None,
        "stop_reason": trajectory.stop_reason.value,
        "seed": trajectory.seed,
        "num_turns": len(trajectory.turns),
        "num_tokens": len(trajectory.ledger),
        "num_action_tokens": int(trajectory.ledger.is_action.sum()),
        "durations_s": json.dumps(trajectory.durations_s),
        "created_at": now(),
    }


def _to_row(values: tuple[Any, ...]) -> TrajectoryRow:
    content = dict(zip(TrajectoryRow.model_fields, values, strict=True))
    content["durations_s"] = json.loads(content["durations_s"])
    return TrajectoryRow.model_validate(content)

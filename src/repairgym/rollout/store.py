"""``run.db``: everything that a run leaves behind, in one SQLite file.

Reads and makes trajectories, groups, metrics, phases and events. Invariants: one transaction per call, so a process
killed at any moment loses at most the call it was in; a trajectory id is stored once; a group holds one task; a row has
a reward exactly when its verdict is valid. After a power cut the last commits can be missing, the file is whole
(``synchronous=NORMAL``).
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from repairgym.errors import InputError
from repairgym.records import Trajectory
from repairgym.rollout.connection import now, where
from repairgym.rollout.phases import MeasurementTables, PhaseTable
from repairgym.rollout.rows import (
    Document,
    GroupRow,
    TrajectoryRow,
    join_trajectory,
    pack_document,
    pack_ledger,
    unpack_document,
    unpack_ledger,
)

_ROW_COLUMNS = ", ".join(TrajectoryRow.model_fields)


class RunStore(PhaseTable, MeasurementTables):
    """One run's ``run.db``: `create` or `open` it, `close` it or use it as a context manager."""

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

    def documents(
        self, *, phase: str | None = None, phase_prefix: str | None = None, step: int | None = None
    ) -> Iterator[tuple[TrajectoryRow, Document]]:
        """Rows with their text, without tokens, one at a time."""
        for row in self.rows(phase=phase, phase_prefix=phase_prefix, step=step):
            yield row, self._document(row.id)

    def trajectories(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        task_ids: Collection[str] | None = None,
    ) -> Iterator[Trajectory]:
        """Whole trajectories, token arrays included, one at a time, in the order in which they were stored."""
        for row in self.rows(phase=phase, step=step, task_ids=task_ids):
            yield self._join(row)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One whole trajectory.

        Raises:
            InputError: there is none of this id.
        """
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
        """Forget a phase from ``first_step`` on, where an engine that keeps its own checkpoints begins again there.

        Returns the number of trajectories.
        """
        condition = "WHERE phase = ? AND step >= ?"
        with self._transaction() as connection:
            deleted = connection.execute(f"DELETE FROM trajectories {condition}", (phase, first_step))
            connection.execute(f"DELETE FROM groups {condition}", (phase, first_step))
        return deleted.rowcount

    def _join(self, row: TrajectoryRow) -> Trajectory:
        return join_trajectory(row, self._document(row.id), unpack_ledger(self._blob(row.id, "ledger")))

    def _document(self, trajectory_id: str) -> Document:
        try:
            return unpack_document(self._blob(trajectory_id, "document"))
        except InputError as error:
            raise InputError(f"{self.path}: {trajectory_id}: {error}") from error

    def _blob(self, trajectory_id: str, column: str) -> bytes:
        query = f"SELECT {column} FROM documents JOIN trajectories USING (number) WHERE id = ?"
        return bytes(self._fetch(query, (trajectory_id,))[0][0])

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

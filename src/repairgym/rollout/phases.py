"""Phases of a run: what was planned, what ran, how long, how much memory.

Reads and makes the ``phases`` table. Names: ``teacher``, ``rft``, ``rl`` for training (step = iteration) and
``eval/<stage>/<test set>`` for evaluation. Invariants: a resumed phase adds to its seconds and keeps its first start;
the peak is the largest seen.
"""

import asyncio
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from repairgym.errors import InputError, Interrupted
from repairgym.rollout.connection import Listener, StoreConnection, now
from repairgym.rollout.rows import Event, PhaseRow
from repairgym.rollout.usage import TreeUsage

_COLUMNS = "name, status, started_at, ended_at, wall_s, cpu_s, peak_rss_bytes, detail"


class PhaseTable(StoreConnection):
    """The phases of a run."""

    def plan_phases(self, names: Iterable[str]) -> None:
        """Say which phases the run is going to have, so that a report can name those that are missing."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO phases (name, status) VALUES (?, 'planned')", [(name,) for name in names]
            )

    def start_phase(self, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """Start or resume a phase; ``detail`` is merged into what is there."""
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO phases (name, status) VALUES (?, 'planned')", (name,))
            connection.execute(
                "UPDATE phases SET status = 'running', started_at = coalesce(started_at, ?1), resumed_at = ?1, "
                "ended_at = NULL, detail = json_patch(detail, ?2) WHERE name = ?3",
                (now(), json.dumps(detail or {}), name),
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
        """End a phase: its wall and CPU seconds since the last start are added to those before.

        Raises:
            InputError: the phase is not running.
        """
        with self._transaction() as connection:
            row = connection.execute("SELECT status, resumed_at FROM phases WHERE name = ?", (name,)).fetchone()
            if not row or row[0] != "running":
                raise InputError(f"phase {name!r} is {row[0] if row else 'unknown'}, not running; start it first")
            ended_at = now()
            wall_s = (datetime.fromisoformat(ended_at) - datetime.fromisoformat(row[1])).total_seconds()
            connection.execute(
                "UPDATE phases SET status = ?, ended_at = ?, wall_s = wall_s + ?, cpu_s = cpu_s + ?, "
                "peak_rss_bytes = max(peak_rss_bytes, ?), detail = json_patch(detail, ?) WHERE name = ?",
                (status, ended_at, wall_s, cpu_s, peak_rss_bytes, json.dumps(detail or {}), name),
            )

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
        try:
            with usage:
                yield more
            status = "done"
        except (KeyboardInterrupt, Interrupted, asyncio.CancelledError):
            status = "interrupted"
            raise
        finally:
            self.end_phase(name, status=status, cpu_s=usage.cpu_s, peak_rss_bytes=usage.peak_bytes, detail=more)

    def phase_status(self, name: str) -> str:
        """Status of a phase; ``missing`` when nothing is known of it."""
        rows = self._fetch("SELECT status FROM phases WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else "missing"

    def phases(self) -> list[PhaseRow]:
        """All phases, in the order in which they were planned or first started."""
        records = self._fetch(f"SELECT {_COLUMNS} FROM phases ORDER BY number", ())
        rows = [dict(zip(PhaseRow.model_fields, values, strict=True)) for values in records]
        return [PhaseRow.model_validate({**row, "detail": json.loads(row["detail"])}) for row in rows]


class MeasurementTables(StoreConnection):
    """The metrics and events of a run."""

    def add_metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Store one number per name; a resumed step overwrites its own."""
        time = now()
        # SQLite keeps NaN as NULL; `metrics` turns it back
        rows = [(phase, step, name, float(value), time) for name, value in values.items()]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
        for listener in self._listeners:
            listener(phase, step, values)

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

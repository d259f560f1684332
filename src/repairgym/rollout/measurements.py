"""Metrics and events of a run, in its ``run.db``.

Reads and makes numbers by (phase, name, step) and messages. Invariant: one number per phase, name and step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from repairgym.rollout.connection import Listener, StoreConnection, now
from repairgym.rollout.rows import Event


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
        found = self._fetch("SELECT step, value FROM metrics WHERE phase = ? AND name = ? ORDER BY step", (phase, name))
        return [(step, math.nan if value is None else value) for step, value in found]

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
        found = self._fetch("SELECT time, phase, kind, message FROM events ORDER BY number", ())
        return [Event(time=row[0], phase=row[1], kind=row[2], message=row[3]) for row in found]

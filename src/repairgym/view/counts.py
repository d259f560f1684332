"""Counts of a run's trajectories, updated by reading only new rows.

Reads rows of a store; makes counts per phase, step, verdict and more. Guarantee: the sums cover exactly the rows of the
store; after rows were removed (a resumed step drops its invalid ones), everything is counted again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from repairgym.records import VerdictKind
from repairgym.view.lists import COUNTED, TrajectoryFilter
from repairgym.view.reader import Extent, RunReader


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

    by_verdict: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VerdictKind, 0))
    num_turns: int = 0
    num_tokens: int = 0
    num_action_tokens: int = 0

    @property
    def num(self) -> int:
        """Number of trajectories."""
        return sum(self.by_verdict.values())

    @property
    def pass_rate(self) -> float | None:
        """Share of passed trajectories, strict (invalid and exploited are not passed); None without any."""
        return self.by_verdict[VerdictKind.PASSED] / self.num if self.num else None

    def mean(self, name: str) -> float | None:
        """Return the mean of ``num_turns``, ``num_tokens`` or ``num_action_tokens``."""
        return float(getattr(self, name)) / self.num if self.num else None

    def add(self, other: Count) -> None:
        """Add the sums of ``other``."""
        for verdict, num in other.by_verdict.items():
            self.by_verdict[verdict] += num
        self.num_turns += other.num_turns
        self.num_tokens += other.num_tokens
        self.num_action_tokens += other.num_action_tokens


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
        for key, sums in reader.counted(after, last):
            self._counts.setdefault(CountKey(*key), Count()).add(_to_count(key, sums))

    def _items(self) -> list[tuple[CountKey, Count]]:
        with self._lock:
            return list(self._counts.items())

    def total(self, **wanted: Any) -> Count:
        """Return the sums over the keys whose fields equal ``wanted``."""
        total = Count()
        for key, count in self._items():
            if all(getattr(key, name) == value for name, value in wanted.items()):
                total.add(count)
        return total

    def by(self, name: str, **wanted: Any) -> dict[Any, Count]:
        """Return the sums per value of the field ``name``, over the keys whose fields equal ``wanted``."""
        sums: dict[Any, Count] = {}
        for key, count in self._items():
            if all(getattr(key, field_name) == value for field_name, value in wanted.items()):
                sums.setdefault(getattr(key, name), Count()).add(count)
        return sums

    def values(self, name: str) -> list[Any]:
        """Return the values of a field, sorted."""
        return sorted({getattr(key, name) for key, _ in self._items()})

    def matching(self, wanted: TrajectoryFilter) -> Count | None:
        """Return the sums over the matches of a filter; None when it has a condition that is not counted here."""
        conditions = wanted.narrowing()
        return self.total(**conditions) if set(conditions) <= set(COUNTED) else None


def _to_count(key: tuple[Any, ...], sums: tuple[int, ...]) -> Count:
    count = Count(num_turns=sums[1], num_tokens=sums[2], num_action_tokens=sums[3])
    count.by_verdict[CountKey(*key).verdict] = sums[0]
    return count

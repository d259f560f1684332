"""Stored metrics as curves with a bounded number of points, however long the run.

Reads the table ``metrics``; makes `CurvePoint` records. Guarantees: names and phases are found by leaps through the
index, never by reading all rows; a curve that is cut into stretches of steps keeps the mean and both extremes of each,
so that no spike goes missing; values that are not finite are in no point, and counted.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from repairgym.rollout.store import RunStore


class CurvePoint(NamedTuple):
    """One step of a curve, or the steps ``first`` to ``last`` together."""

    first: int
    last: int
    value: float
    """Mean of the steps."""
    low: float
    high: float
    num: int
    """Finite values of these steps."""
    time: str
    """Time at which one of the steps was stored."""


_PLACE = "phase = ? AND name = ?"
_STRETCH = """SELECT (SELECT min(step) {rows}), (SELECT max(step) {rows}), avg(value), min(value), max(value),
    count(value), (SELECT time {rows} ORDER BY step DESC LIMIT 1) {rows}"""
"""The ends and the time come from the index; every column of all rows would cost a tenth of a second per million."""
_ROWS = "FROM metrics WHERE phase = ?1 AND name = ?2 AND step >= ?3 AND step < ?4 AND value IS NOT NULL"
_FINITE = "abs(value) <= 1.7e308"
_LEAPS = """WITH RECURSIVE leap (key) AS (SELECT min({key}) FROM metrics {where} UNION ALL
    SELECT (SELECT min({key}) FROM metrics {where_next} {key} > leap.key) FROM leap WHERE leap.key IS NOT NULL)
    SELECT key FROM leap WHERE key IS NOT NULL"""


class MetricCurves(RunStore):
    """The metrics of one store."""

    def metric_names(self, phase: str) -> list[str]:
        """Return the names of the metrics of a phase, sorted."""
        query = _LEAPS.format(key="name", where="WHERE phase = ?1", where_next="WHERE phase = ?1 AND")
        return [row[0] for row in self._fetch(query, (phase,))]

    def metric_phases(self) -> list[str]:
        """Return the phases that have metrics, in the order of the run."""
        query = _LEAPS.format(key="phase", where="", where_next="WHERE")
        present = [row[0] for row in self._fetch(query, ())]
        order = {row.name: number for number, row in enumerate(self.phases())}
        return sorted(present, key=lambda name: (order.get(name, len(order)), name))

    def curve(self, phase: str, name: str, max_points: int) -> list[CurvePoint]:
        """Return a metric by step, in at most ``max_points`` points."""
        place = (phase, name)
        ends = f"SELECT (SELECT min(step) FROM metrics WHERE {_PLACE}), (SELECT max(step) FROM metrics WHERE {_PLACE})"
        ((first, last),) = self._fetch(ends, place * 2)
        if first is None:
            return []
        if last - first < max_points:
            rows = self._fetch(f"SELECT step, value, time FROM metrics WHERE {_PLACE} ORDER BY step", place)
            return [
                CurvePoint(step, step, value, value, value, 1, time) for step, value, time in rows if _is_finite(value)
            ]
        edges = [first + (last + 1 - first) * index // max_points for index in range(max_points + 1)]
        return [point for edge in pairwise(edges) if (point := self._stretch(place, edge))]

    def _stretch(self, place: tuple[str, str], edge: tuple[int, int]) -> CurvePoint | None:
        """Return the point of a stretch of steps; None without a finite value in it."""
        values = (*place, *edge)
        (row,) = self._fetch(_STRETCH.format(rows=_ROWS), values)
        if row[5] and not all(map(math.isfinite, row[2:5])):
            (row,) = self._fetch(_STRETCH.format(rows=f"{_ROWS} AND {_FINITE}"), values)
        return CurvePoint(*row) if row[5] else None

    def num_not_finite(self, phase: str, name: str, points: Sequence[CurvePoint]) -> int:
        """Return the number of values of a metric that are not finite; ``points`` are those of its curve."""
        num_finite = sum(point.num for point in points)
        if points and num_finite == points[-1].last - points[0].first + 1:
            # All between the ends is finite; the index counts what lies outside.
            outside = [(f"{_PLACE} AND step < ?", points[0].first), (f"{_PLACE} AND step > ?", points[-1].last)]
            counts = (self._fetch(f"SELECT count(*) FROM metrics WHERE {it}", (phase, name, at)) for it, at in outside)
            return sum(int(rows[0][0]) for rows in counts)
        query = f"SELECT count(*) FROM metrics WHERE {_PLACE}"
        return int(self._fetch(query, (phase, name))[0][0]) - num_finite

    def first_time(self, phase: str) -> str:
        """Return when the first metric of a phase was stored, of those of its first name; empty without any."""
        query = "SELECT time FROM metrics WHERE phase = ? ORDER BY name, step LIMIT 1"
        rows = self._fetch(query, (phase,))
        return str(rows[0][0]) if rows else ""


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average with ``weight`` of the past, without the bias towards zero at its start."""
    means, mean, share = [], 0.0, 0.0
    for value in values:
        mean = weight * mean + (1.0 - weight) * value
        share = weight * share + (1.0 - weight)
        means.append(mean / share)
    return means

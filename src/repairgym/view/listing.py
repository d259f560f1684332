"""Lists of trajectories, a page at a time.

Reads the table ``trajectories`` (and, for a search in conversations, the documents); makes pages of light rows.
Invariant: a page is found by the key of its neighbour, never by an offset, so that a page deep inside costs what the
first one costs, and rows that are added meanwhile shift nothing.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import Any, NamedTuple

from repairgym.errors import InputError
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.view.filters import Order, TrajectoryFilter

COLUMNS = ("number", *TrajectoryRow.model_fields)
SELECT = f"SELECT {', '.join(COLUMNS)} FROM trajectories"
_ORDERS: dict[Order, tuple[tuple[str, ...], str]] = {
    "newest": (("number",), "DESC"),
    "oldest": (("number",), "ASC"),
    "most_turns": (("num_turns", "number"), "DESC"),
    "most_tokens": (("num_tokens", "number"), "DESC"),
}
SEARCH_BUDGET_S = 0.7
"""Time after which a search in conversations shows what it has found so far."""
_CHUNK = 64
_MAX_COUNTED = 10_000
Key = tuple[int, ...]
"""Where a row stands in an order: the value of its column, if it has one, and the row's number."""


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


class TrajectoryLists(RunStore):
    """The lists of one store."""

    def page(
        self,
        wanted: TrajectoryFilter,
        size: int,
        *,
        after: Key | None = None,
        before: Key | None = None,
        text_budget_s: float = SEARCH_BUDGET_S,
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
            return _holds(json.loads(zlib.decompress(blob)), text.casefold())
        except (zlib.error, ValueError, RecursionError):
            return False

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
        found = self._fetch(f"{SELECT} WHERE {condition} ORDER BY {order} LIMIT ?", [*values, size])
        return [to_listed(one) for one in found]

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

    def of_task(self, task_id: str, limit: int) -> list[Listed]:
        """Trajectories of a task in the order in which they were stored, up to ``limit``."""
        query = f"{SELECT} WHERE number IN (SELECT number FROM trajectories WHERE task_id = ?) ORDER BY number LIMIT ?"
        return [to_listed(one) for one in self._fetch(query, (task_id, limit))]


def to_listed(values: tuple[Any, ...]) -> Listed:
    """A row of `SELECT`."""
    content = dict(zip(COLUMNS, values, strict=True))
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

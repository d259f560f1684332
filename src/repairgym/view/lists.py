"""Lists of trajectories, a page at a time, narrowed by the filter in the address of the page.

Reads query strings and the table ``trajectories`` (and the documents, for a text search); makes a `TrajectoryFilter`,
its SQL, its query string, and pages of rows. Guarantees: an unknown key or a wrong value is an error; values reach SQL
as parameters only; a page starts from the key of its neighbor, never from an offset, so deep pages cost no more and new
rows shift nothing.
"""

import json
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from pydantic import Field, ValidationError

from repairgym.errors import InputError
from repairgym.evaluation.summary import EPISODE_PARTS
from repairgym.records import Record, Split, StopReason, VerdictKind
from repairgym.rollout.connection import has_table
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore

Order = Literal["newest", "oldest", "most_turns", "most_tokens"]

TOO_LARGE = 1 << 62
"""Just below the largest number of SQLite."""
COUNTED = ("phase", "step", "verdict", "split", "policy_id", "stop_reason")
"""Filters whose matches `RunCounts` knows without a query."""
_SECONDS = f"(SELECT total(value) FROM json_each(durations_s) WHERE key IN {EPISODE_PARTS})"
_PRICED = "number IN (SELECT number FROM costs WHERE usd {} ?)"
_CONDITIONS = {name: f"{name} = ?" for name in (*COUNTED, "group_id", "task_id")} | {
    "min_step": "step >= ?",
    "max_step": "step <= ?",
    "min_turns": "num_turns >= ?",
    "max_turns": "num_turns <= ?",
    "min_tokens": "num_tokens >= ?",
    "max_tokens": "num_tokens <= ?",
    "min_seconds": f"{_SECONDS} >= ?",
    "max_seconds": f"{_SECONDS} <= ?",
    "min_usd": _PRICED.format(">="),
    "max_usd": _PRICED.format("<="),
}
_SEARCHED = ("id", "task_id", "reason")


class TrajectoryFilter(Record):
    """Conditions on trajectories; None or empty means no condition."""

    phase: str = ""
    step: int | None = Field(None, ge=0, lt=TOO_LARGE)
    min_step: int | None = Field(None, ge=0, lt=TOO_LARGE)
    max_step: int | None = Field(None, ge=0, lt=TOO_LARGE)
    verdict: VerdictKind | None = None
    split: Split | None = None
    policy_id: str = ""
    stop_reason: StopReason | None = None
    group_id: str = ""
    task_id: str = ""
    min_turns: int | None = Field(None, ge=0, lt=TOO_LARGE)
    max_turns: int | None = Field(None, ge=0, lt=TOO_LARGE)
    min_tokens: int | None = Field(None, ge=0, lt=TOO_LARGE)
    max_tokens: int | None = Field(None, ge=0, lt=TOO_LARGE)
    min_seconds: int | None = Field(None, ge=0, lt=TOO_LARGE)
    """Of the parts of an episode that follow each other, without the wait for a place."""
    max_seconds: int | None = Field(None, ge=0, lt=TOO_LARGE)
    min_usd: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Price of the answers, for models that have one; those without match neither bound."""
    max_usd: float | None = Field(None, ge=0, allow_inf_nan=False)
    q: str = ""
    """Part of the id, the task or the reason of the verdict; ASCII case is ignored."""
    text: str = ""
    """Text of an action, observation, patch or finding. Reads whole trajectories."""
    order: Order = "newest"

    def narrowing(self) -> dict[str, Any]:
        """Return the set conditions, without the order."""
        return {name: value for name, value in self if name != "order" and value not in ("", None)}

    def query(self, **changes: Any) -> str:
        """Return the filter as a query string, after ``changes`` (None or empty removes a condition)."""
        fields = {**self.narrowing(), "order": self.order, **changes}
        if fields.get("order") == "newest":
            fields["order"] = ""
        shown = {name: str(value) for name, value in fields.items() if value not in ("", None)}
        return urlencode(shown, errors="replace")

    def sql(self) -> tuple[str, list[Any]]:
        """Return the SQL condition over ``trajectories`` (all but ``text``) and its values."""
        given = {name: value for name, value in self.narrowing().items() if name in _CONDITIONS}
        parts = [_CONDITIONS[name] for name in given]
        values = [value if isinstance(value, int | float) else str(value) for value in given.values()]
        if self.q:
            parts.append("(" + " OR ".join(f"{column} LIKE ? ESCAPE '!'" for column in _SEARCHED) + ")")
            escaped = re.sub("([!%_])", r"!\1", self.q)
            values += [f"%{escaped}%"] * len(_SEARCHED)
        return " AND ".join(parts) or "1", values


def parse_filter(items: Iterable[tuple[str, str]]) -> TrajectoryFilter:
    """Return the filter of a query string; keys without a value are ignored (a form sends all of its fields).

    Raises:
        InputError: an unknown key, a repeated key, or an invalid value.
    """
    given: dict[str, str] = {}
    for name, value in items:
        if not value.strip():
            continue
        if name in given:
            raise InputError(f"the address has {name} twice; expected it once")
        given[name] = value
    try:
        return TrajectoryFilter.model_validate(given)
    except ValidationError as error:
        raise InputError("; ".join(_describe(problem) for problem in error.errors())) from error


def _describe(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "the address"
    if problem["type"] == "extra_forbidden":
        known = ", ".join(TrajectoryFilter.model_fields)
        return f"the address has {name!r}, which filters nothing; filters are {known}"
    return f"the address has {name}={problem['input']!r}: {problem['msg'].lower()}"


COLUMNS = ("number", *TrajectoryRow.model_fields)
SELECT = f"SELECT {', '.join(COLUMNS)} FROM trajectories"
_ORDERS: dict[Order, tuple[tuple[str, ...], str]] = {
    "newest": (("number",), "DESC"),
    "oldest": (("number",), "ASC"),
    "most_turns": (("num_turns", "number"), "DESC"),
    "most_tokens": (("num_tokens", "number"), "DESC"),
}
CHOSEN = "number IN (SELECT value FROM json_each(?))"
SEARCH_BUDGET_S = 0.12
"""Processor time after which a text search returns its matches so far."""
FOLDING = re.compile(
    rb"\\u(?:00df|0130|0149|017f|01f0|1e96|1e97|1e98|1e99|1e9a|1e9e|212a|fb00|fb01|fb02|fb03|fb04|fb05|fb06)"
)
"""Letters that case folding turns into ASCII ones, such as the sign of kelvin, as JSON escapes them."""
_NUMBER_BITS = 32
_MAX_NUMBER = (1 << _NUMBER_BITS) - 1
"""Places in an order of two columns are one integer: the column, then the number of the row."""
_CHUNK = 64
_MAX_COUNTED = 10_000
Key = tuple[int, ...]
"""Position of a row in an order: the value of the order's column, if any, and the row's number."""


class Entry(NamedTuple):
    """One row of a list, with its number in the store."""

    number: int
    row: TrajectoryRow


class EntryPage(NamedTuple):
    """Consecutive rows, and the keys of the neighboring pages."""

    rows: list[Entry]
    before: Key | None
    after: Key | None
    is_cut: bool = False
    """The time for searching text ran out before the page was full."""
    num_searched: int = 0


class Around(NamedTuple):
    """The place of a row in a list."""

    before: int | None
    after: int | None
    """Numbers of the rows on both sides; None at an end."""
    place: tuple[int, int] | None
    """From 1, and the length of the list; None where the list does not hold the row, or is searched by text."""


class TrajectoryLists(RunStore):
    """The lists of one store."""

    chosen: frozenset[int] | None = None
    """Numbers of the trajectories that lists and groups show; None: all."""

    def _condition(self, wanted: TrajectoryFilter) -> tuple[str, list[Any]]:
        condition, values = wanted.sql()
        if not {"min_usd", "max_usd"}.isdisjoint(wanted.narrowing()) and not has_table(self._connection, "costs"):
            return "0", []
        if self.chosen is None:
            return condition, values
        return f"{condition} AND {CHOSEN}", [*values, json.dumps(sorted(self.chosen))]

    def page(
        self,
        wanted: TrajectoryFilter,
        size: int,
        *,
        after: Key | None = None,
        before: Key | None = None,
        text_budget_s: float = SEARCH_BUDGET_S,
    ) -> EntryPage:
        """Return up to ``size`` rows after ``after``, or the last rows before ``before``, or the first rows."""
        is_backward, key = before is not None, before or after
        if wanted.text:
            return self._searched(wanted, size, key, is_backward, text_budget_s)
        rows = self._slice(wanted, size + 1, key, is_backward)
        return _paged(rows[:size], wanted.order, key, is_backward, len(rows) > size)

    def _searched(
        self, wanted: TrajectoryFilter, size: int, key: Key | None, is_backward: bool, budget_s: float
    ) -> EntryPage:
        """Return rows with matching text: read from ``key`` until the page is full or the time is over."""
        deadline = time.thread_time() + budget_s
        columns, _ = _ORDERS[wanted.order]
        numbers: list[int] = []
        num_searched, cursor = 0, key
        while True:
            chunk = self._rows((*columns, "document"), wanted, _CHUNK, cursor, is_backward)
            for *place, blob in chunk:
                num_searched += 1
                cursor = tuple(place)
                if _matches(blob, wanted.text):
                    numbers.append(cursor[-1])
                if len(numbers) == size or time.thread_time() > deadline:
                    page = _paged(self._entries(numbers), wanted.order, key, is_backward, True, end=cursor)
                    return page._replace(is_cut=len(numbers) < size, num_searched=num_searched)
            if len(chunk) < _CHUNK:
                page = _paged(self._entries(numbers), wanted.order, key, is_backward, False)
                return page._replace(num_searched=num_searched)

    def _entries(self, numbers: Sequence[int]) -> list[Entry]:
        """Return the rows of these numbers, in their order."""
        rows = self._fetch(f"{SELECT} WHERE number IN (SELECT value FROM json_each(?))", (json.dumps(numbers),))
        entries = {entry.number: entry for entry in map(to_entry, rows)}
        return [entries[number] for number in numbers]

    def _slice(self, wanted: TrajectoryFilter, size: int, key: Key | None, is_backward: bool) -> list[Entry]:
        return [to_entry(row) for row in self._rows(COLUMNS, wanted, size, key, is_backward)]

    def _rows(
        self, selected: Sequence[str], wanted: TrajectoryFilter, size: int, key: Key | None, is_backward: bool
    ) -> list[tuple[Any, ...]]:
        """Return columns of up to ``size`` rows from ``key`` on; ``document`` is one of another table."""
        condition, values = self._condition(wanted)
        columns, direction = _ORDERS[wanted.order]
        if is_backward:
            direction = "ASC" if direction == "DESC" else "DESC"
        if key is not None:
            if len(key) != len(columns):
                got = f"the address has a position of {len(key)} numbers"
                raise InputError(f"{got}, expected {len(columns)}; start over")
            comparison = "<" if direction == "DESC" else ">"
            condition += f" AND ({', '.join(columns)}) {comparison} ({', '.join('?' * len(key))})"
            values += key
        order = ", ".join(f"{column} {direction}" for column in columns)
        source = "trajectories JOIN documents USING (number)" if "document" in selected else "trajectories"
        query = f"SELECT {', '.join(selected)} FROM {source} WHERE {condition} ORDER BY {order} LIMIT ?"
        return self._fetch(query, [*values, size])

    def count(self, wanted: TrajectoryFilter) -> tuple[int, bool]:
        """Count the matches of all conditions but the text, up to a bound; also return whether there are more."""
        condition, values = self._condition(wanted)
        query = f"SELECT count(*) FROM (SELECT 1 FROM trajectories WHERE {condition} LIMIT ?)"
        ((counted,),) = self._fetch(query, [*values, _MAX_COUNTED + 1])
        return min(counted, _MAX_COUNTED), counted > _MAX_COUNTED

    def around(self, wanted: TrajectoryFilter, entry: Entry) -> Around:
        """Return where ``entry`` stands in the list, without its text condition; the rows are read once."""
        condition, values = self._condition(wanted)
        (*rest, _), direction = _ORDERS[wanted.order]
        code = "number" + "".join(f" + ({column} << {_NUMBER_BITS})" for column in rest)
        key = entry.number + sum(getattr(entry.row, column) << _NUMBER_BITS for column in rest)
        query = (
            f"SELECT count(*), count(*) FILTER (WHERE {code} > ?1), min({code}) FILTER (WHERE {code} > ?1), "
            f"max({code}) FILTER (WHERE {code} < ?1), total({code} = ?1) FROM trajectories WHERE {condition}"
        )
        ((num, num_above, above, below, is_inside),) = self._fetch(query, (key, *values))
        above, below = (code if code is None else code & _MAX_NUMBER for code in (above, below))
        before, after, ahead = above, below, num_above
        if direction == "ASC":
            before, after, ahead = below, above, num - num_above - int(is_inside)
        return Around(before, after, (ahead + 1, num) if is_inside and not wanted.text else None)

    def of_task(self, task_id: str, limit: int) -> list[Entry]:
        """Return up to ``limit`` trajectories of a task, oldest first."""
        query = f"{SELECT} WHERE number IN (SELECT number FROM trajectories WHERE task_id = ?) ORDER BY number LIMIT ?"
        return [to_entry(row) for row in self._fetch(query, (task_id, limit))]

    def of_ids(self, ids: Sequence[str]) -> list[Entry]:
        """Return the trajectories with these ids that lists show, in the order of their numbers."""
        condition = "id IN (SELECT value FROM json_each(?))" + (f" AND {CHOSEN}" if self.chosen is not None else "")
        values = [json.dumps(ids), *([json.dumps(sorted(self.chosen))] if self.chosen is not None else [])]
        return [to_entry(row) for row in self._fetch(f"{SELECT} WHERE {condition} ORDER BY number", values)]


def to_entry(values: tuple[Any, ...]) -> Entry:
    """Parse a row of `SELECT`."""
    content = dict(zip(COLUMNS, values, strict=True))
    content["durations_s"] = json.loads(content["durations_s"])
    number = content.pop("number")
    return Entry(number, TrajectoryRow.model_validate(content))


def _key_of(entry: Entry, order: Order) -> Key:
    columns, _ = _ORDERS[order]
    return tuple(entry.number if name == "number" else getattr(entry.row, name) for name in columns)


def _paged(
    rows: list[Entry], order: Order, start: Key | None, is_backward: bool, has_more: bool, end: Key | None = None
) -> EntryPage:
    """Make a page of rows that were read from ``start`` to ``end``."""
    end = end or (_key_of(rows[-1], order) if rows else start)
    beyond = end if has_more else None
    if not is_backward:
        return EntryPage(rows, before=_key_of(rows[0], order) if start and rows else start, after=beyond)
    return EntryPage(rows[::-1], before=beyond, after=_key_of(rows[0], order) if rows else start)


def _matches(blob: bytes, text: str) -> bool:
    """Return True when a string of a stored document holds ``text``, whatever the case of its letters."""
    try:
        raw = zlib.decompress(blob)
        # Most documents end here, unparsed.
        is_plain = text.isascii() and not FOLDING.search(raw)
        if is_plain and json.dumps(text)[1:-1].lower().encode() not in raw.lower():
            return False
        return _holds(json.loads(raw), text.casefold())
    except (zlib.error, ValueError, RecursionError):
        return False


def _holds(content: Any, text: str) -> bool:
    """Return True when a string inside ``content`` holds ``text``; field names do not count."""
    if isinstance(content, str):
        return text in content.casefold()
    if isinstance(content, dict):
        return any(_holds(value, text) for value in content.values())
    return isinstance(content, list) and any(_holds(value, text) for value in content)

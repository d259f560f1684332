"""What a list of trajectories is narrowed to, as it stands in the address of a page.

Reads a query string; makes a `TrajectoryFilter`, its SQL and its query string again. Invariants: an unknown key or a
value of the wrong type is an error, never ignored; a filter's query string gives the same filter back; values reach
SQL as parameters only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import Field, ValidationError

from repairgym.errors import InputError
from repairgym.records import Record, Split, StopReason, VerdictKind

Order = Literal["newest", "oldest", "most_turns", "most_tokens"]

_TOO_LARGE = 1 << 62
"""SQLite's numbers end not far behind."""
_EQUAL = {"phase", "step", "verdict", "split", "policy_id", "stop_reason", "group_id", "task_id"}
_LEAST = {"min_turns": "num_turns", "min_tokens": "num_tokens"}
_MOST = {"max_turns": "num_turns", "max_tokens": "num_tokens"}
_SEARCHED = ("id", "task_id", "reason")
TALLIED = ("phase", "step", "verdict", "split", "policy_id", "stop_reason")
"""Filters whose matches a `RunCounts` counts without looking at the store."""


class TrajectoryFilter(Record):
    """Conditions on trajectories; what is None or empty does not narrow."""

    phase: str = ""
    step: int | None = Field(None, ge=0, lt=_TOO_LARGE)
    verdict: VerdictKind | None = None
    split: Split | None = None
    policy_id: str = ""
    stop_reason: StopReason | None = None
    group_id: str = ""
    task_id: str = ""
    min_turns: int | None = Field(None, ge=0, lt=_TOO_LARGE)
    max_turns: int | None = Field(None, ge=0, lt=_TOO_LARGE)
    min_tokens: int | None = Field(None, ge=0, lt=_TOO_LARGE)
    max_tokens: int | None = Field(None, ge=0, lt=_TOO_LARGE)
    q: str = ""
    """Part of the id, the task or the reason of the verdict; upper and lower case are one (ASCII)."""
    text: str = ""
    """Said by the agent or answered to it, in its patch, or found by a detector. Reads whole trajectories."""
    order: Order = "newest"

    def narrowing(self) -> dict[str, Any]:
        """The conditions that narrow, without the order."""
        return {name: value for name, value in self if name != "order" and value not in ("", None)}

    def query(self, **changes: Any) -> str:
        """The filter as a query string, after ``changes`` (None or empty takes a condition away)."""
        fields = {**self.narrowing(), "order": self.order, **changes}
        if fields.get("order") == "newest":
            fields["order"] = ""
        shown = {name: str(value) for name, value in fields.items() if value not in ("", None)}
        return urlencode(shown, errors="replace")

    def sql(self) -> tuple[str, list[Any]]:
        """Condition over the table ``trajectories`` (all but ``text``) and its values."""
        parts: list[str] = []
        values: list[Any] = []
        for name, value in self.narrowing().items():
            if name in _EQUAL:
                parts.append(f"{name} = ?")
                values.append(str(value) if name != "step" else value)
            elif column := _LEAST.get(name):
                parts.append(f"{column} >= ?")
                values.append(value)
            elif column := _MOST.get(name):
                parts.append(f"{column} <= ?")
                values.append(value)
        if self.q:
            parts.append("(" + " OR ".join(f"{column} LIKE ? ESCAPE '!'" for column in _SEARCHED) + ")")
            values += [f"%{_escape_like(self.q)}%"] * len(_SEARCHED)
        return " AND ".join(parts) or "1", values


def parse_filter(items: Iterable[tuple[str, str]]) -> TrajectoryFilter:
    """The filter of a query string; keys without a value do not narrow (a form sends all of its fields).

    Raises:
        InputError: an unknown key, a key twice, or a value that cannot be.
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
        raise InputError("; ".join(_describe(one) for one in error.errors())) from error


def _describe(problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "the address"
    if problem["type"] == "extra_forbidden":
        return (
            f"the address has {name!r}, which filters nothing; filters are {', '.join(TrajectoryFilter.model_fields)}"
        )
    return f"the address has {name}={problem['input']!r}: {problem['msg'].lower()}"


def _escape_like(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")

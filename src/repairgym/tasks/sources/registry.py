"""The task sources by name; a new source is one line here."""

from __future__ import annotations

from typing import Any

from repairgym.records import SourceKind
from repairgym.tasks.sources.base import TaskSource
from repairgym.tasks.sources.breakages import BreakageSource
from repairgym.tasks.sources.history import HistorySource
from repairgym.tasks.sources.mutations import MutationSource
from repairgym.tasks.sources.releases import ReleaseSource

SOURCES: dict[SourceKind, TaskSource[Any]] = {
    "mutations": MutationSource(),
    "releases": ReleaseSource(),
    "history": HistorySource(),
    "breakages": BreakageSource(),
}

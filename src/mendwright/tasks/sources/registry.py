"""The task sources by name; a new source is one line here."""

from __future__ import annotations

from mendwright.records import SourceKind
from mendwright.tasks.sources.base import TaskSource
from mendwright.tasks.sources.mutations import MutationSource
from mendwright.tasks.sources.releases import ReleaseSource

SOURCES: dict[SourceKind, TaskSource] = {"mutations": MutationSource(), "releases": ReleaseSource()}

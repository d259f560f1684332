"""What a curation filter is.

A filter is one file of this folder with a `TaskFilter` and one line in `registry.FILTERS`; its bounds are a section of
`config.curation`. Invariant: a filter decides from candidates and configuration alone, in the order of the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from repairgym.config.curation import CurationConfig
from repairgym.tasks.curation.candidate import Candidate


@dataclass(frozen=True)
class Ruling:
    """What a filter says of some candidates; those in neither stay."""

    removed: dict[str, str] = field(default_factory=dict)
    """Id -> reason."""
    unmeasured: tuple[str, ...] = ()
    """Ids of candidates that the filter cannot judge."""


class TaskFilter(Protocol):
    """Leaves tasks out for one reason."""

    source: str
    """Paper and section that the rule comes from."""

    def judge(self, candidates: Sequence[Candidate], config: CurationConfig) -> Ruling:
        """What to leave out of ``candidates``."""
        ...


def judge_each(candidates: Sequence[Candidate], reason: Callable[[Candidate], str | None]) -> Ruling:
    """A ruling from one candidate at a time: ``reason`` is empty to keep, None when it was not measured."""
    reasons = {candidate.id: reason(candidate) for candidate in candidates}
    removed = {task_id: found for task_id, found in reasons.items() if found}
    return Ruling(removed, tuple(task_id for task_id, found in reasons.items() if found is None))

"""Runs filters one after the other and writes down what each left out.

Reads candidates and a configuration; makes the kept candidates and a `CurationFunnel` (``curation.json``). Invariants:
each task is left out by one filter at most, the first that says so, and the counts add up to what is missing at the
end; of several tasks with one id the first stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from repairgym.config.curation import CurationConfig, FilterName
from repairgym.records import Record
from repairgym.tasks.curation.candidate import Candidate
from repairgym.tasks.curation.registry import FILTERS


class FilterOutcome(Record):
    """What one filter did."""

    name: FilterName
    source: str
    """Paper and section of the rule."""
    settings: dict[str, Any]
    num_before: int
    num_unmeasured: int
    """Tasks that it could not judge."""
    removed: dict[str, str]
    """Task id -> reason."""

    @property
    def num_removed(self) -> int:
        """Tasks that it left out."""
        return len(self.removed)


class CurationFunnel(Record):
    """From candidates to kept tasks."""

    num_candidates: int
    num_repeated_ids: int = 0
    """Tasks left out before the filters because an earlier one has their id."""
    filters: tuple[FilterOutcome, ...]
    num_kept: int
    splits: dict[str, int]
    """``<source>/<split>`` -> kept tasks."""

    def counts(self) -> dict[str, int]:
        """The funnel as `funnel.json` and the report show it."""
        repeated = {"repeated_ids": self.num_repeated_ids} if self.num_repeated_ids else {}
        return {
            "candidates": self.num_candidates,
            **repeated,
            **{outcome.name: outcome.num_removed for outcome in self.filters},
            "kept": self.num_kept,
        }


def run_filters(candidates: Sequence[Candidate], config: CurationConfig) -> tuple[list[Candidate], CurationFunnel]:
    """The candidates that every filter of ``config`` leaves, and what each did."""
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.id, candidate)
    left = list(first.values())
    num_repeated_ids = len(candidates) - len(left)
    outcomes = []
    for name in config.filters:
        ruling = FILTERS[name].judge(left, config)
        removed = dict(ruling.removed)
        if not config.is_unmeasured_kept:
            removed |= {task_id: "not measured" for task_id in ruling.unmeasured if task_id not in removed}
        outcomes.append(
            FilterOutcome(
                name=name,
                source=FILTERS[name].source,
                settings=_settings(config, name),
                num_before=len(left),
                num_unmeasured=len(ruling.unmeasured),
                removed=removed,
            )
        )
        left = [candidate for candidate in left if candidate.id not in removed]
    splits = Counter(f"{candidate.source}/{candidate.split or 'none'}" for candidate in left)
    funnel = CurationFunnel(
        num_candidates=len(candidates),
        num_repeated_ids=num_repeated_ids,
        filters=tuple(outcomes),
        num_kept=len(left),
        splits=dict(splits),
    )
    return left, funnel


def _settings(config: CurationConfig, name: FilterName) -> dict[str, Any]:
    section = getattr(config, name, None)
    return section.model_dump(mode="json") if isinstance(section, Record) else {}

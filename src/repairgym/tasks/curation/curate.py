"""Curation: write a filtered copy of a task folder.

Reads a `TaskStore`, evidence and solve rates. Makes another folder: the tasks that pass every filter, with the
configured splits, ``curation.json`` (ids and reasons of dropped tasks per filter), and the old funnel with this
curation added. Guarantees: the source folder never changes; unbuilt tasks pass one at a time in both readings, so that
memory holds candidates and not records.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from repairgym.config.tasks import CurationConfig, FilterName, SplitConfig
from repairgym.errors import InputError
from repairgym.records import Record, Split, Task
from repairgym.tasks.build.verification import TaskEvidence
from repairgym.tasks.curation.candidate import Candidate, describe
from repairgym.tasks.curation.filters import FILTERS
from repairgym.tasks.layers.atomic_write import folder_written_whole
from repairgym.tasks.solve_rates import SolveRate
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

_SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")


def assign_splits(candidates: Sequence[Candidate], config: SplitConfig) -> list[Candidate]:
    """Return ``candidates`` in their order, with splits; InputError if the split is by time and a task has none."""
    if config.by == "keep":
        return list(candidates)
    if config.by == "time":
        groups = _time_order(candidates)
    else:
        is_whole = config.by == "package"
        names = [task.package if is_whole else f"{task.package}:{task.function}" for task in candidates]
        order = _random_order(names, config.seed)
        groups = [order[name] for name in names]
    splits = _split_groups(groups, config.shares)
    return [replace(candidate, split=splits[group]) for candidate, group in zip(candidates, groups, strict=True)]


def _random_order(names: Iterable[str], seed: int) -> dict[str, int]:
    ranked = sorted(set(names), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    return {name: place for place, name in enumerate(ranked)}


def _time_order(candidates: Sequence[Candidate]) -> list[int]:
    times = [candidate.created_at for candidate in candidates if candidate.created_at]
    missing = [candidate.id for candidate in candidates if not candidate.created_at]
    if missing:
        raise InputError(
            f"split.by=time needs the time of every task, and {len(missing)} have none (the first: {missing[0]}); use "
            "split.by=package"
        )
    places = {time: place for place, time in enumerate(sorted(set(times)))}
    return [places[time] for time in times]


def _split_groups(groups: Iterable[int], shares: tuple[float, float, float]) -> dict[int, Split]:
    """Return the split of each group: in order, by the position of its middle among the shares."""
    sizes = Counter(groups)
    bounds = (shares[0], shares[0] + shares[1])
    total, done = sizes.total(), 0
    splits: dict[int, Split] = {}
    for group in sorted(sizes):
        middle = (done + sizes[group] / 2) / total
        splits[group] = _SPLITS[sum(middle >= bound for bound in bounds)]
        done += sizes[group]
    return splits


class FilterOutcome(Record):
    """Outcome of one filter."""

    name: FilterName
    source: str
    """Paper and section of the rule."""
    settings: dict[str, Any]
    num_before: int
    num_unmeasured: int
    """Tasks without the measurement."""
    removed: dict[str, str]
    """Task id -> reason."""

    @property
    def num_removed(self) -> int:
        """Tasks that it dropped."""
        return len(self.removed)


class CurationFunnel(Record):
    """Counts from candidates to kept tasks."""

    num_candidates: int
    num_repeated_ids: int = 0
    """Tasks dropped in advance because an earlier one has their id."""
    filters: tuple[FilterOutcome, ...]
    num_kept: int
    splits: dict[str, int]
    """``<source>/<split>`` -> kept tasks."""

    def counts(self) -> dict[str, int]:
        """Return the funnel for `funnel.json` and the report."""
        repeated = {"repeated_ids": self.num_repeated_ids} if self.num_repeated_ids else {}
        return {
            "candidates": self.num_candidates,
            **repeated,
            **{outcome.name: outcome.num_removed for outcome in self.filters},
            "kept": self.num_kept,
        }


def run_filters(candidates: Sequence[Candidate], config: CurationConfig) -> tuple[list[Candidate], CurationFunnel]:
    """Apply the filters of ``config``; return the remaining candidates and the outcome of each filter."""
    first = {candidate.id: candidate for candidate in reversed(candidates)}
    remaining = [candidate for candidate in candidates if first[candidate.id] is candidate]
    num_repeated_ids = len(candidates) - len(remaining)
    outcomes = []
    for name in config.filters:
        result = FILTERS[name].apply(remaining, config)
        removed = dict(result.removed)
        if not config.is_unmeasured_kept:
            removed |= {task_id: "not measured" for task_id in result.unmeasured if task_id not in removed}
        section = getattr(config, name, None)
        outcomes.append(
            FilterOutcome(
                name=name,
                source=FILTERS[name].source,
                settings=section.model_dump(mode="json") if isinstance(section, Record) else {},
                num_before=len(remaining),
                num_unmeasured=len(result.unmeasured),
                removed=removed,
            )
        )
        remaining = [candidate for candidate in remaining if candidate.id not in removed]
    splits = Counter(f"{candidate.source}/{candidate.split or 'none'}" for candidate in remaining)
    funnel = CurationFunnel(
        num_candidates=len(candidates),
        num_repeated_ids=num_repeated_ids,
        filters=tuple(outcomes),
        num_kept=len(remaining),
        splits=dict(splits),
    )
    return remaining, funnel


CURATION_FILE = "curation.json"
TaskT = TypeVar("TaskT", Task, UnbuiltTask)


def curate(
    store: TaskStore,
    folder: Path,
    config: CurationConfig,
    evidence: Mapping[str, TaskEvidence] | None = None,
    solve_rates: Mapping[str, SolveRate] | None = None,
    sightings: Mapping[str, str] | None = None,
) -> CurationFunnel:
    """Write the tasks of ``store`` that pass the filters to the empty or missing ``folder``.

    ``evidence`` (of `repairgym tasks verify`), ``solve_rates`` (of a policy) and ``sightings`` (of `repairgym tasks
    scan`, empty for none) are by task id; evidence of a task that changed since is ignored. It raises InputError if
    ``folder`` has content or a split by time lacks times.
    """
    evidence, rates = evidence or {}, solve_rates or {}
    certified = store.load_certified()
    known = ((task, evidence.get(task.id)) for task in certified)
    described = [
        describe(task, match if match and match.task_digest == task.digest() else None, rates.get(task.id))
        for task, match in known
    ]
    described = [replace(candidate, sighting=(sightings or {}).get(candidate.id)) for candidate in described]
    unbuilt = (describe(task, None, rates.get(task.id)) for task in store.iter_left_unbuilt())
    kept, funnel = run_filters(assign_splits([*described, *unbuilt], config.split), config)
    splits = {candidate.id: candidate.split for candidate in kept}
    counts = _with_curation(store, funnel)
    manifest = {**store.load_document(MANIFEST_FILE), "curation": config.model_dump(mode="json")}
    with folder_written_whole(folder) as place:
        target = TaskStore(place)
        if certified:
            target.save(_with_splits(certified, splits), counts, manifest)
        else:
            target.save_document(FUNNEL_FILE, counts)
            target.save_document(MANIFEST_FILE, manifest)
        if len(certified) < funnel.num_candidates:
            target.save_unbuilt(_with_splits(store.iter_left_unbuilt(), splits))
        target.save_document(CURATION_FILE, funnel.model_dump(mode="json"))
    return funnel


def _with_splits(tasks: Iterable[TaskT], splits: Mapping[str, Split | None]) -> Iterator[TaskT]:
    """Yield the first task of each id in ``splits``, with its split."""
    seen: set[str] = set()
    for task in tasks:
        if task.id in splits and task.id not in seen:
            seen.add(task.id)
            yield task.model_copy(update={"split": splits[task.id]})


def _with_curation(store: TaskStore, funnel: CurationFunnel) -> dict[str, Any]:
    """Return the funnel of the source folder with this curation added."""
    before = store.load_document(FUNNEL_FILE)
    totals = before.get("total", {})
    names = ["curation", *(f"curation_{number}" for number in range(2, len(totals) + 3))]
    name = next(name for name in names if name not in totals)
    return {**before, "total": {**totals, name: funnel.counts()}, "splits": funnel.splits}

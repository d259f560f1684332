"""A curated copy of a task folder.

Reads a `TaskStore`, evidence and solve rates; makes another folder: the tasks that every filter leaves, with the
splits that were asked for, ``curation.json`` (what each filter left out, with ids and reasons), and the funnel of the
folder that it came from with this one added. Invariants: the folder that is read never changes; unbuilt tasks pass one
at a time in both readings, so that memory holds candidates and not records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from repairgym.config.curation import CurationConfig
from repairgym.records import Split, Task
from repairgym.tasks.build.evidence import TaskEvidence
from repairgym.tasks.curation.candidate import SolveRate, describe
from repairgym.tasks.curation.funnel import CurationFunnel, run_filters
from repairgym.tasks.curation.splitting import assign_splits
from repairgym.tasks.layers.atomic_write import folder_written_whole
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

CURATION_FILE = "curation.json"


def curate(
    store: TaskStore,
    folder: Path,
    config: CurationConfig,
    evidence: Mapping[str, TaskEvidence] | None = None,
    solve_rates: Mapping[str, SolveRate] | None = None,
) -> CurationFunnel:
    """Write the tasks of ``store`` that the filters leave to ``folder``.

    Args:
        store: The tasks.
        folder: A folder that is empty or not there yet.
        config: Filters and their bounds.
        evidence: Task id -> what `repairgym tasks verify` saw; of another state of a task it does not count.
        solve_rates: Task id -> how often a policy solved it.

    Raises:
        InputError: ``folder`` holds something, a task is broken, or splits by time are asked for without times.
        DiskFullError: no room.
    """
    evidence, rates = evidence or {}, solve_rates or {}
    certified = store.load_certified()
    known = ((task, evidence.get(task.id)) for task in certified)
    described = [
        describe(task, found if found and found.task_digest == task.digest() else None, rates.get(task.id))
        for task, found in known
    ]
    unbuilt = (describe(task, None, rates.get(task.id)) for task in store.iter_unbuilt())
    kept, funnel = run_filters(assign_splits([*described, *unbuilt], config.split), config)
    with folder_written_whole(folder) as place:
        _write(
            TaskStore(place), store, certified, {candidate.id: candidate.split for candidate in kept}, funnel, config
        )
    return funnel


def _write(
    target: TaskStore,
    store: TaskStore,
    certified: Sequence[Task],
    splits: Mapping[str, Split | None],
    funnel: CurationFunnel,
    config: CurationConfig,
) -> None:
    """Write the tasks whose ids are in ``splits``, with these splits, and what was done."""
    counts = _with_curation(store, funnel)
    manifest = {**store.load_document(MANIFEST_FILE), "curation": config.model_dump(mode="json")}
    if certified:
        first = {task.id: task for task in reversed(certified)}
        found = ((task, splits.get(task.id)) for task in first.values())
        target.save((task.model_copy(update={"split": split}) for task, split in found if split), counts, manifest)
    else:
        target.save_document(FUNNEL_FILE, counts)
        target.save_document(MANIFEST_FILE, manifest)
    if len(certified) < funnel.num_candidates:
        target.save_unbuilt(_kept_unbuilt(store, splits))
    target.save_document(CURATION_FILE, funnel.model_dump(mode="json"))


def _kept_unbuilt(store: TaskStore, splits: Mapping[str, Split | None]) -> Iterator[UnbuiltTask]:
    for task in store.iter_unbuilt():
        if task.id in splits:
            yield task.model_copy(update={"split": splits[task.id]})


def _with_curation(store: TaskStore, funnel: CurationFunnel) -> dict[str, Any]:
    """The funnel of the folder that was read, with this curation beside its sources."""
    before = store.load_document(FUNNEL_FILE)
    totals = before.get("total", {})
    names = chain(["curation"], (f"curation_{number}" for number in range(2, len(totals) + 3)))
    name = next(name for name in names if name not in totals)
    return {**before, "total": {**totals, name: funnel.counts()}, "splits": funnel.splits}

"""Fills the knowledge base from the solved trajectories of a run, and finds where paper A's episodes start.

Reads run stores and tasks; writes fixes and offers, makes `Start` records. Invariants: what a validation or test task
was solved with is never read into a fix; adding a run twice changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from repairgym.agent.pipelines.paper_a import Start, find_start, reported_error, split_by_error
from repairgym.agent.tools.check import build_and_test
from repairgym.agent.tools.knowledge import AskForHelpTool, KnowledgeBase, described_fixes, make_fix
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.commands import StartsConfig
from repairgym.records import MainError, Task, VerdictKind
from repairgym.rollout.rows import Document, TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.cache import ExecutionCache
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.catalogue import load_catalogue
from repairgym.training.run import Progress, no_progress


def held_out_packages(tasks: Mapping[str, Task], catalogue: Path | None = None) -> frozenset[str]:
    """Packages that a validation or test task of ``tasks`` or of the catalogue comes from."""
    of_tasks = {task.provenance.package for task in tasks.values() if task.split != "train"}
    known = load_catalogue(catalogue)
    of_catalogue = {project.name for project in (*known.package, *known.repository) if project.split != "train"}
    return frozenset(of_tasks | of_catalogue)


def add_run(
    knowledge: KnowledgeBase,
    store: RunStore,
    tasks: Mapping[str, Task],
    starts: Mapping[str, Start] | None = None,
    catalogue: Path | None = None,
) -> Counter[str]:
    """Add the fixes of a run's passed trajectories to ``knowledge``, and how past fixes that were offered in it did.

    Guarded by package, validation and test tasks of ``tasks`` and of ``catalogue`` (None: the shipped one) hold their
    packages out; guarded by time, only those tasks themselves stay out.
    ``starts`` have the errors of tasks whose trajectories note none.

    Returns:
        Counts of trajectories: ``added``, ``known`` already, of a ``held_out`` package, of an ``unknown_task``,
        ``not_passed``; and the number of ``offers`` noted.

    Raises:
        TaskError: the knowledge base holds fixes of a package that is held out now.
        KnowledgeUnavailableError: it stays locked.
    """
    held_out = held_out_packages(tasks, catalogue) if knowledge.guard() == "package" else frozenset()
    knowledge.hold_out(held_out)
    counts: Counter[str] = Counter()
    for row, document in store.documents():
        task = tasks.get(row.task_id)
        if row.verdict is not VerdictKind.INVALID:
            counts["offers"] += _add_offers(knowledge, row, document)
        if task is None:
            counts["unknown_task"] += 1
        elif task.split != "train" or task.provenance.package in held_out:
            counts["held_out"] += 1
        elif row.verdict is not VerdictKind.PASSED:
            counts["not_passed"] += 1
        else:
            is_new = knowledge.add(make_fix(task, _error(task, document, starts or {}), document.final_patch), task)
            counts["added" if is_new else "known"] += 1
    return counts


def _error(task: Task, document: Document, starts: Mapping[str, Start]) -> MainError:
    if document.attempts:
        return document.attempts[0].error
    return starts[task.id].error if task.id in starts else reported_error(task)


def _add_offers(knowledge: KnowledgeBase, row: TrajectoryRow, document: Document) -> int:
    """Note each fix that the episode was recommended or asked for; the last attempt decides what helped."""
    is_passed = row.verdict is VerdictKind.PASSED
    offers: dict[str, bool] = {}
    for attempt in document.attempts:
        if attempt.fix_id:
            offers[attempt.fix_id] = is_passed and attempt.outcome in ("passed", "unknown")
    for turn in document.turns:
        if turn.tool == AskForHelpTool.name:
            offers |= {fix_id: is_passed for fix_id in described_fixes(turn.observation) if fix_id not in offers}
    for fix_id, is_solved in offers.items():
        knowledge.add_offer(fix_id, f"{row.id} {row.created_at}", is_solved=is_solved)
    return len(offers)


async def find_starts(
    tasks: Sequence[Task],
    config: StartsConfig,
    find_layers: Callable[[Task], TaskLayers],
    backend: SandboxBackend,
    knowledge: KnowledgeBase | None,
    progress: Progress = no_progress,
    *,
    is_split: bool = False,
) -> list[tuple[Task, Start]]:
    """Return each of ``tasks`` with its start: the main error of its first build, the past fixes that fit.

    With ``is_split`` each task becomes as many samples as its first build has distinct errors.

    Raises:
        SandboxError: a sandbox could not do its work.
        TaskError: the knowledge base holds fixes of a package that is held out.
    """
    cache, limits = ExecutionCache(), config.sandbox.limits

    async def starts_of(task: Task) -> list[tuple[Task, Start]]:
        layers = find_layers(task)
        workspace = Workspace(layers.tree, task.base_files, lambda files: backend.create(layers.spec(files, limits)))
        outcome = await build_and_test(task, workspace, cache)
        samples = split_by_error(task, outcome) if is_split else [task]
        return [(sample, await find_start(sample, outcome, knowledge, config.num_fixes)) for sample in samples]

    starts: list[tuple[Task, Start]] = []
    num_done = 0
    async with aclosing(ordered_map(starts_of, tasks, config.num_concurrent)) as results:
        async for _, of_task in results:
            starts += of_task
            num_done += 1
            progress("starts", num_done, len(tasks), of_task[0][1].error.error_class)
    return starts

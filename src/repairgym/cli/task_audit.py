"""`repairgym tasks audit` and `repairgym tasks strengthen`: how well tests judge, and tests that judge better."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from repairgym.cli.display import ProgressDisplay, time_left
from repairgym.cli.folder_audit import audit_harbor
from repairgym.cli.options import AsJson, TaskFolder, print_json
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import InputError, Interrupted, TaskError
from repairgym.evaluation.accuracy import VerdictAccuracy, accuracy_of, describe_accuracy
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.audit.audit import AuditBounds, TaskAudit, audit_key, audit_tasks
from repairgym.tasks.audit.results import (
    AUDIT_FILE,
    AuditCounts,
    audit_lines,
    count_by,
    count_by_kind,
    with_accuracy,
)
from repairgym.tasks.audit.strengthen import StrengthenBounds, strengthen_tree
from repairgym.tasks.audit.suite import by_tree
from repairgym.tasks.audit.variants import VariantBounds
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.record_lines import RecordLines
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore, Unit

Packages = Annotated[list[str] | None, typer.Option("--packages", help="Only these packages; may be repeated.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Tasks at once.")]
Seed = Annotated[int, typer.Option("--seed", help="Draws the variants; another seed draws others.")]
ItemT = TypeVar("ItemT")
_PIPE_WIDTH = 160
_COLUMNS = (
    "tasks", "no p2p", "refuted", "false accept", "unknown", "not probed", "untried", "accepted", "false reject",
    "none made",
)  # fmt: skip


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of tasks, a Harbor task folder, or a folder of such folders.")],
    packages: Packages = None,
    jobs: Jobs = 2,
    seconds: Annotated[
        float, typer.Option("--seconds-per-task", min=0.1, help="Run time after which no further variant is tried.")
    ] = AuditBounds().seconds_per_task,
    seed: Seed = 0,
    shown: Annotated[str, typer.Option("--show", help="Print the survivors of this task, with their patches.")] = "",
    is_saved: Annotated[bool, typer.Option("--save", help="Write the counts into the tasks' certificates.")] = False,
    is_json: AsJson = False,
) -> None:
    """Try wrong variants and harmless rewrites of each gold patch: what do the tests accept, what do they reject?

    Results are kept in audit.jsonl of the folder; an interrupted audit resumes.

    Task folders of Harbor are read, and their verifiers run in sandboxes without a network: on the starting state, on
    the solution, on wrong variants of it and on attacks. Exit code 7 when a folder has an error or a warning; of the
    options only --json is for them.

    Example: repairgym tasks audit tasks --packages humanize --save

    Example: repairgym tasks audit folders/my-task
    """
    store = TaskStore(folder)
    if not store.has_tasks:
        audit_harbor(folder, is_json)
        return
    everything = store.load()
    tasks = _of_packages(everything, packages)
    bounds = AuditBounds(variants=VariantBounds(seed=seed), seconds_per_task=seconds)
    file = audit_lines(folder / AUDIT_FILE)
    done = _known(file, tasks, bounds)
    if shown:
        _print_survivors(shown, done)
        return
    left = [task for task in tasks if task.id not in done]
    try:
        run = asyncio.run(_audit(left, everything, bounds, jobs, file, done))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; finished tasks are kept, run the same command again") from error
    if is_saved:
        documents = store.load_document(FUNNEL_FILE), store.load_document(MANIFEST_FILE)
        store.save(with_accuracy(everything, done), *documents)
    _print_results([done[task.id] for task in tasks if task.id in done], run, is_json)


@dataclass
class _Run:
    """Work of an audit in this call."""

    num_audited: int = 0
    elapsed_s: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)
    """Task id -> why it cannot be audited."""


def _of_packages(tasks: Sequence[Task], packages: Sequence[str] | None) -> list[Task]:
    known = {task.provenance.package for task in tasks}
    if unknown := sorted(set(packages or ()) - known):
        raise InputError(f"no tasks of {', '.join(unknown)}; the folder has {', '.join(sorted(known))}")
    return [task for task in tasks if not packages or task.provenance.package in packages]


def _known(file: RecordLines[TaskAudit], tasks: Sequence[Task], bounds: AuditBounds) -> dict[str, TaskAudit]:
    """Return the audits of ``tasks``, as they are, with these bounds."""
    stored = file.load()
    return {task.id: stored[key] for task in tasks if stored and (key := audit_key(task, bounds)) in stored}


async def _audit(
    tasks: Sequence[Task],
    everything: Sequence[Task],
    bounds: AuditBounds,
    jobs: int,
    file: RecordLines[TaskAudit],
    done: dict[str, TaskAudit],
) -> _Run:
    """Audit ``tasks`` and add their audits to ``file`` and ``done``."""
    run, backend, started = _Run(), create_backend(SandboxConfig()), time.monotonic()
    try:
        with ProgressDisplay() as progress:
            audits = audit_tasks(tasks, everything, LayerStore(), backend, bounds, jobs)
            async with aclosing(audits):
                async for number, (task, result) in _numbered(audits):
                    if isinstance(result, TaskAudit):
                        file.add(result)
                        done[task.id] = result
                        run.num_audited += 1
                    else:
                        run.problems[task.id] = result
                        progress(task.id, 0, 0, result)
                    progress("audit", number, len(tasks), time_left(started, number, len(tasks)))
        run.elapsed_s = time.monotonic() - started
    finally:
        await backend.close()
    return run


async def _numbered(items: AsyncGenerator[ItemT, None]) -> AsyncGenerator[tuple[int, ItemT], None]:
    number = 0
    async for item in items:
        number += 1
        yield number, item


def _print_results(audits: Sequence[TaskAudit], run: _Run, is_json: bool) -> None:
    elapsed_s = run.elapsed_s / run.num_audited if run.num_audited else None
    if is_json:
        tables = {
            "total": count_by(audits, lambda audit: "all"),
            "packages": count_by(audits, lambda audit: audit.package),
            "sources": count_by(audits, lambda audit: audit.source),
            "kinds": count_by_kind(audits),
        }
        counts = {name: [row.model_dump(mode="json") for row in rows] for name, rows in tables.items()}
        print_json({**counts, "s_per_task": elapsed_s, "problems": run.problems})
        return
    console = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
    for title, rows in (
        ("package", count_by(audits, lambda audit: audit.package)),
        ("source", count_by(audits, lambda audit: audit.source)),
        ("variant", count_by_kind(audits)),
    ):
        console.print(_table(title, rows))
    for row in count_by(audits, lambda audit: "all tasks"):
        console.print(_sentence(row, accuracy_of(audit.accuracy for audit in audits)), highlight=False)
    for reason, num in Counter(run.problems.values()).items():
        console.print(f"{num} tasks could not be audited: {reason}", highlight=False)
    survivors = [audit.task_id for audit in audits if audit.count("refutable", "rejected")]
    if survivors:
        console.print(f"{len(survivors)} tasks with wrong judgements; --show {survivors[0]} prints them")
    if elapsed_s is not None:
        console.print(f"{elapsed_s:.2f} s per task, its share of the suite included", highlight=False)


def _table(title: str, rows: Sequence[AuditCounts]) -> Table:
    table = Table(title, *_COLUMNS, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.group, *(str(value) for value in list(row.model_dump().values())[1:]))
    return table


def _sentence(row: AuditCounts, rates: VerdictAccuracy | None) -> str:
    return (
        f"{row.num_tasks} tasks, {row.num_without_pass_to_pass} without a regression test: {describe_accuracy(rates)}"
    )


def _print_survivors(task_id: str, done: dict[str, TaskAudit]) -> None:
    if task_id not in done:
        raise InputError(f"{task_id} is not audited with these bounds; run the audit without --show first")
    for outcome in done[task_id].outcomes:
        if outcome.patch:
            typer.echo(f"{outcome.status}: {outcome.kind}, {outcome.detail} {outcome.told_by}\n{outcome.patch}")


# --- stronger tests --------------------------------------------------------------------------------------------------


def strengthen(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the stronger tasks.")],
    packages: Packages = None,
    jobs: Jobs = 2,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="Most gold time of the tests that a task gets.")
    ] = StrengthenBounds().seconds,
    seed: Seed = 0,
) -> None:
    """Give each task regression tests of the modules that its repair touches, and tests that refute its survivors.

    Every new test is certified with three empty and three gold runs; an interrupted command resumes after the last
    finished package.

    Example: repairgym tasks strengthen tasks stronger --packages humanize
    """
    store, target = TaskStore(folder), TaskStore(output)
    if folder.resolve() == output.resolve():
        raise InputError(f"{output} holds the tasks that are read; name another folder")
    bounds = StrengthenBounds(variants=VariantBounds(operators=8, seed=seed), seconds=seconds)
    try:
        units = asyncio.run(_strengthen(by_tree(_of_packages(store.load(), packages)), target, bounds, jobs))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; finished trees are kept, run the same command again") from error
    counts: Counter[str] = Counter()
    for unit in units:
        counts.update(unit.funnel)
    funnel = {**store.load_document(FUNNEL_FILE), "strengthen": dict(counts)}
    target.save([task for unit in units for task in unit.tasks], funnel, store.load_document(MANIFEST_FILE))
    for name, count in sorted(counts.items()):
        typer.echo(f"{count} {name.replace('_', ' ')}")


async def _strengthen(
    groups: Sequence[Sequence[Task]], target: TaskStore, bounds: StrengthenBounds, jobs: int
) -> list[Unit]:
    """Strengthen the tasks of each tree that no finished unit has."""
    units, backend, layers, started = [], create_backend(SandboxConfig()), LayerStore(), time.monotonic()
    num, num_done = sum(map(len, groups)), 0
    try:
        with ProgressDisplay() as progress:
            for group in groups:
                unit = target.load_unit(*_unit_name(group, bounds))
                if unit is None:
                    unit = await _strengthen_unit(group, layers, backend, bounds, jobs)
                    target.save_unit(unit)
                if unit.error:
                    progress(unit.name, 0, 0, unit.error)
                units.append(unit)
                num_done += len(group)
                progress("strengthen", num_done, num, time_left(started, num_done, num))
    finally:
        await backend.close()
    return units


def _unit_name(group: Sequence[Task], bounds: StrengthenBounds) -> tuple[str, str]:
    """Return name and key of the unit of the tasks of one tree."""
    content = "".join([bounds.digest(), *(task.digest() for task in group)])
    place = hashlib.sha256(f"{group[0].base_tree}{group[0].environment.digest}".encode()).hexdigest()[:8]
    return f"strengthen-{group[0].provenance.package}-{place}", hashlib.sha256(content.encode()).hexdigest()


async def _strengthen_unit(
    group: Sequence[Task], layers: LayerStore, backend: SandboxBackend, bounds: StrengthenBounds, jobs: int
) -> Unit:
    name, key = _unit_name(group, bounds)
    try:
        done = await strengthen_tree(group, layers, backend, bounds, jobs)
    except TaskError as error:
        return Unit(name, key, {"without_stable_suite": len(group)}, tuple(group), str(error))
    return Unit(name, key, dict(done.funnel), tuple(done.tasks))

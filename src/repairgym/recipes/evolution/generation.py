"""The next generation of tasks, from the last one and what a policy did on it (EigenData, SSR).

1. Attribute each failed submission to the task or to the trajectory.
2. Reflect: learnability of the tasks that are not at fault moves the weights of the plan's cells.
3. Make tasks, package by package: of failed repairs (the code that a failure left, whose repair is the original), of
   what a model proposed, and of mutants that the plan draws.
4. Record them in a manifest of their own, rebuild each from it, and keep those that come out the same.

Reads certified tasks and stored runs. Makes a folder with tasks, their manifest, `attribution.jsonl` and `plan.json`,
with which the next generation continues. Guarantees: tasks at fault are not mutated on and count for no learnability;
nothing comes from exploited or invalid episodes; an interrupted call resumes behind the last submission and package.
"""

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from repairgym.config.commands import EvolutionConfig
from repairgym.errors import InputError, TaskError
from repairgym.recipes.evolution.attribution import (
    ATTRIBUTION_FILE,
    Attribution,
    Failure,
    attribute_failures,
    attribution_lines,
)
from repairgym.records import Task, VerdictKind
from repairgym.rollout.names import AUDIT, SOLVE
from repairgym.rollout.store import RunStore
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.assembly import DEADLINE_FACTOR
from repairgym.tasks.build.build_tasks import skip_reason
from repairgym.tasks.layers.catalogue import Package, load_catalogue
from repairgym.tasks.layers.environments import lock_of
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.manifest.rebuild import Rebuilder
from repairgym.tasks.mutation.plan import PLAN_FILE, Plan, cells_of, injector_reward, learnability
from repairgym.tasks.mutation.text_edits import TEXT_FAMILIES
from repairgym.tasks.record_lines import RecordLines
from repairgym.tasks.selection import select_tasks
from repairgym.tasks.solve_rates import SolveRate
from repairgym.tasks.sources.base import BuildContext
from repairgym.tasks.sources.evolved import LeftBug, Order, Propose, make_evolved, text_digest
from repairgym.tasks.store import MANIFEST_FILE, TaskStore, Unit
from repairgym.training.evaluate import open_grader

EVOLVED_FILE = "evolved.toml"
"""Task manifest of a generation."""
EVOLVED_FORMAT = 3
"""Part of each unit key; grows when equal orders give other tasks."""
Report = Callable[[str, int, int, str], None]
"""Gets a stage, what is done of it, all of it, and a detail."""


@dataclass
class Evidence:
    """Solve rates and failures of the tasks of one generation, from stored episodes."""

    tasks: Mapping[str, Task]
    num_passed: Counter[str] = field(default_factory=Counter)
    num_valid: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    """`Failure.key` -> failure."""

    def read(self, run: RunStore, phase: str) -> None:
        """Add the episodes of ``run`` on the tasks, of one phase or of all.

        Audits, which grade again, and searches, whose verdicts are by visible tests, are left out.
        """
        for row, document in run.documents(phase=phase or None):
            task = self.tasks.get(row.task_id)
            if task is None or row.verdict is VerdictKind.INVALID or row.phase.startswith((AUDIT, SOLVE)):
                continue
            self.num_valid[task.id] += 1
            self.num_passed[task.id] += row.verdict is VerdictKind.PASSED
            if row.verdict is VerdictKind.FAILED:
                failure = Failure(task, document.final_files, document.verdict)
                self.failures.setdefault(failure.key, failure).trajectory_ids.append(row.id)

    def rates(self) -> dict[str, SolveRate]:
        """Return the solve rate of each task with a valid episode."""
        return {task_id: SolveRate(self.num_passed[task_id], num) for task_id, num in self.num_valid.items()}


async def attribute_all(
    evidence: Evidence, file: RecordLines[Attribution], config: EvolutionConfig, layers: LayerStore, report: Report
) -> list[Attribution]:
    """Return the attribution of every failure; ``file`` has those of an earlier call, and gets the others."""
    known = file.load()
    left = [failure for key, failure in evidence.failures.items() if key not in known]
    if left:
        grading = config.rollout.grading.model_copy(update={"stops_at_failure": False})
        backend, grader = open_grader(config.rollout.sandbox, grading, layers)
        num = len(evidence.failures)
        try:
            async with aclosing(attribute_failures(left, grader, config.num_concurrent)) as attributed:
                async for attribution in attributed:
                    if attribution.fault != "neither":  # what infrastructure broke is tried again
                        file.add(attribution)
                    known[attribution.key] = attribution
                    num_done = num - len(left) + sum(failure.key in known for failure in left)
                    report("attribute", num_done, num, f"{attribution.fault}: {attribution.reason}")
        finally:
            await backend.close()
    return [known[key] for key in evidence.failures]


@dataclass(frozen=True)
class Generation:
    """A generation that is made in one folder."""

    store: TaskStore
    config: EvolutionConfig
    known: frozenset[str]
    """Digests of the broken files of earlier generations."""
    plan: Plan
    packages: Mapping[str, Package]
    layers: LayerStore
    left: Mapping[str, tuple[LeftBug, ...]]
    """Package -> what failed repairs left of its tasks."""
    locks: str = ""

    async def make(self, report: Report, propose: Propose | None = None) -> list[Unit]:
        """Return a finished unit per package; those of an earlier call are reused."""
        units: list[Unit] = []
        quotas = self.plan.quotas(self.packages, self.config.num_tasks, self.config.seed, self.config.plan.floor)
        backend = create_backend(self.config.rollout.sandbox)
        try:
            for name, quota in sorted(quotas.items()):
                unit = await self._unit(self.packages[name], quota, backend, propose)
                units.append(unit)
                num_tasks = sum(len(made.tasks) for made in units)
                report("make", len(units), len(quotas), unit.error or f"{num_tasks} tasks")
        finally:
            await backend.close()
        return units

    async def _unit(self, package: Package, quota: int, backend: Any, propose: Propose | None) -> Unit:
        build = self.config.as_build("", self.locks)
        context = BuildContext(self.layers, backend, build, quota)
        order = Order(
            plan=self.plan,
            bounds=self.config.plan,
            num_tries=self.config.num_tries,
            known=self.known,
            left=self.left.get(package.name, ()),
            num_left=self.config.num_failed_repairs,
            num_proposals=self.config.num_proposals,
        )
        name, key = f"evolved-{package.name}", self._key(package, quota, order)
        if unit := self.store.load_unit(name, key):
            return unit
        try:
            result, tried = await make_evolved(package, context, order, propose)
            unit = Unit(name, key, dict(result.funnel), tuple(result.tasks), logs=result.logs, tried=tuple(tried))
        except TaskError as error:
            unit = Unit(name, key, {skip_reason(error): 1}, (), str(error))
        self.store.save_unit(unit)
        return unit

    def _key(self, package: Package, quota: int, order: Order) -> str:
        """Return a digest of every influence on the tasks of a package."""
        left = [(bug.task.digest(), text_digest("", bug.text), bug.family) for bug in order.left]
        idle = {"sandbox", "layers", "locks", "num_concurrent"}
        build = self.config.as_build("", self.locks).model_dump(mode="json", exclude=idle)
        asked = self.config.generator.model_dump(mode="json") if order.num_proposals else None
        lock = lock_of(package, self.locks)
        parts = [EVOLVED_FORMAT, package.digest(), lock, quota, left, sorted(order.known), build, asked]
        parts += [order.plan.digest(), order.bounds.digest(), order.num_tries, order.num_left, order.num_proposals]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def record(self, tasks: Iterable[Task], funnel: Counter[str]) -> list[Task]:
        """Write the manifest of the tasks and return those that it rebuilds, as it does; the others are counted."""
        path, chosen = self.store.folder / EVOLVED_FILE, list(tasks)
        while True:
            write_manifest_head(path, self.config)
            manifest = TaskManifest(path)
            manifest.add(chosen, dict(self.packages))
            rebuilt = dict(self._rebuilt(manifest))
            if len(rebuilt) == len(chosen):
                return [rebuilt[task.id] for task in chosen]
            funnel["do_not_rebuild"] += len(chosen) - len(rebuilt)
            chosen = [task for task in chosen if task.id in rebuilt]

    def _rebuilt(self, manifest: TaskManifest) -> Iterable[tuple[str, Task]]:
        for name in manifest.names():
            content = manifest.load(name)
            rebuilder = Rebuilder(manifest, content, self.layers)
            for entry in content.entries.values():
                try:
                    yield entry.id, rebuilder.rebuild(entry)
                except TaskError:
                    continue


def write_manifest_head(path: Path, config: EvolutionConfig) -> None:
    """Write the TOML file of an empty manifest; entries of an earlier call go."""
    entries = path.with_suffix("")
    for old in entries.glob("*.jsonl"):
        old.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    deadlines = {"test_timeout_s": config.test_timeout_s, "timeout_s": config.run_timeout_s}
    lines = [f'entries = "{entries.name}"', *(f"{name} = {DEADLINE_FACTOR * s}" for name, s in deadlines.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Evolved:
    """Result of a call."""

    tasks: tuple[Task, ...]
    plan: Plan
    funnel: dict[str, Any]


def evolve(
    source: TaskStore,
    output: TaskStore,
    runs: Sequence[Path],
    config: EvolutionConfig,
    report: Report,
    *,
    phase: str = "",
    injected: Iterable[LeftBug] = (),
    propose: Propose | None = None,
    layers: LayerStore | None = None,
) -> Evolved:
    """Make the next generation of the tasks in ``source`` in ``output``, from the episodes of ``runs``.

    Bugs that a policy ``injected`` are tried before what failed repairs left. ``tried`` in `plan.json` has the
    `text_digest` of each bug that was tried and is no task.

    Raises:
        ConfigError: the selection leaves no task.
        InputError: the folders are one, no run has an episode of the tasks, or no package is in the catalogue.
        SandboxError, IndexUnavailableError: something outside failed; the same call resumes.
    """
    if source.folder.resolve() == output.folder.resolve():
        raise InputError(f"{output.folder} holds the tasks that are read; name another folder")
    everything, layers = source.load(), layers or LayerStore(config=config.rollout.layers)
    evidence = _read_evidence(select_tasks(everything, config.select).tasks, runs, phase)
    output.folder.mkdir(parents=True, exist_ok=True)
    file = attribution_lines(output.folder / ATTRIBUTION_FILE)
    attributions = asyncio.run(attribute_all(evidence, file, config, layers, report))
    funnel: Counter[str] = Counter(failures=len(attributions))
    sound = _sound_tasks(evidence, attributions)
    values = ((sound[task_id], learnability(rate)) for task_id, rate in evidence.rates().items() if task_id in sound)
    plan = read_plan(source).reflected(((task, value) for task, value in values if value is not None), config.plan)
    catalogue, locks, packages = packages_of(source, sound.values(), config, funnel)
    left = _left_bugs([*injected, *_failed_repairs(evidence, attributions, sound, funnel)])
    known = _known(source, everything)
    generation = Generation(output, config, known, plan, packages, layers, left, locks)
    units = asyncio.run(generation.make(report, propose))
    tasks = generation.record((task for unit in units for task in unit.tasks), funnel)
    document = _funnel_of(attributions, units, funnel + Counter(tasks=len(tasks)))
    settings = config.model_dump(mode="json") | {"catalogue": catalogue, "locks": locks}
    origin = {"config": settings, "generation": plan.generation, "runs": [run.name for run in runs]}
    output.save(tasks, document, origin)
    tried = {digest for unit in units for digest in unit.tried}
    lists = {"known": sorted(known), "tried": sorted(tried)}
    output.save_document(PLAN_FILE, _plan_document(plan, tasks, evidence, config) | lists)
    return Evolved(tuple(tasks), plan, document)


def _read_evidence(tasks: Sequence[Task], runs: Sequence[Path], phase: str) -> Evidence:
    evidence = Evidence({task.id: task for task in tasks})
    for run in runs:
        with RunStore.open(run / "run.db", is_read_only=True) as stored:
            evidence.read(stored, phase)
    if not evidence.num_valid:
        raise InputError(f"no episode of {', '.join(map(str, runs))} is on one of the {len(tasks)} chosen tasks")
    return evidence


def _funnel_of(attributions: Sequence[Attribution], units: Sequence[Unit], funnel: Counter[str]) -> dict[str, Any]:
    """Return the counts of attributions and of bugs, in total and per package; ``funnel`` has those of neither."""
    total = sum((Counter(unit.funnel) for unit in units), funnel)
    return {
        "attribution": dict(sorted(Counter(f"{known.fault}: {known.reason}" for known in attributions).items())),
        "logs": {"evolved": {reason: log for unit in reversed(units) for reason, log in unit.logs.items()}},
        "total": {"evolved": dict(sorted(total.items()))},
        "units": {unit.name: {**unit.funnel, **({"error": unit.error} if unit.error else {})} for unit in units},
    }


def read_plan(store: TaskStore) -> Plan:
    """Return the plan that made the tasks of a folder; one without effects where none did."""
    document = store.load_document(PLAN_FILE)
    try:
        return Plan.model_validate(document.get("plan", {}))
    except ValidationError as error:
        text = f"{store.folder / PLAN_FILE} is no plan: {error}; remove it to begin without one"
        raise InputError(text) from error


def _known(source: TaskStore, tasks: Iterable[Task]) -> frozenset[str]:
    """Return digests of the broken files of ``tasks`` and of the generations before them."""
    own = {text_digest(path, task.base_files.get(path)) for task in tasks for path in task.gold_files}
    return frozenset(own | set(source.load_document(PLAN_FILE).get("known", ())))


def _sound_tasks(evidence: Evidence, attributions: Iterable[Attribution]) -> dict[str, Task]:
    faulty = {known.task_id for known in attributions if known.fault == "task"}
    return {task_id: task for task_id, task in evidence.tasks.items() if task_id not in faulty}


def packages_of(
    source: TaskStore, tasks: Iterable[Task], config: EvolutionConfig, funnel: Counter[str]
) -> tuple[str, str, dict[str, Package]]:
    """Return catalogue, locks and the packages of ``tasks``; those that the catalogue lacks are counted.

    Raises:
        InputError: the catalogue has none of them.
    """
    built_by = source.load_document(MANIFEST_FILE).get("config", {})
    catalogue, locks = config.catalogue or built_by.get("catalogue", ""), config.locks or built_by.get("locks", "")
    known = {package.name: package for package in load_catalogue(Path(catalogue) if catalogue else None).select()}
    names = sorted({task.provenance.package for task in tasks})
    funnel["packages_not_in_catalogue"] = sum(name not in known for name in names)
    packages = {name: known[name] for name in names if name in known}
    if not packages:
        text = f"the catalogue {catalogue or 'of the demo'} has none of {', '.join(names)}; name theirs: catalogue=FILE"
        raise InputError(text)
    return catalogue, locks, packages


def _left_bugs(bugs: Iterable[LeftBug]) -> dict[str, tuple[LeftBug, ...]]:
    """Return package -> its bugs, each file once."""
    left: dict[str, dict[str, LeftBug]] = {}
    for bug in bugs:
        if bug.task.location is not None:
            digest = text_digest(bug.task.location.path, bug.text)
            left.setdefault(bug.task.provenance.package, {}).setdefault(digest, bug)
    return {name: tuple(own.values()) for name, own in left.items()}


def _failed_repairs(
    evidence: Evidence, attributions: Iterable[Attribution], sound: Mapping[str, Task], funnel: Counter[str]
) -> Iterator[LeftBug]:
    """Yield what failures left of tasks that are not at fault, in the order of the episodes."""
    for known in attributions:
        failure, task = evidence.failures[known.key], sound.get(known.task_id)
        if task is None or task.location is None or known.fault != "trajectory" or known.reason == "exploited":
            funnel["failures_not_used"] += 1
            continue
        path, changed = task.location.path, {path for path in failure.files if path not in task.test_paths}
        text = failure.files.get(path)
        if changed != {path} or text is None:
            funnel["failures_of_other_files"] += 1
            continue
        yield LeftBug(task, text)


def _plan_document(plan: Plan, tasks: Iterable[Task], evidence: Evidence, config: EvolutionConfig) -> dict[str, Any]:
    """Return the plan, its cells with their weights and new tasks, and what policies earned as injectors of bugs."""
    made = Counter(cell for task in tasks for cell in cells_of(task) if cell.family not in TEXT_FAMILIES)
    rates, rewards = evidence.rates(), defaultdict(list)
    for task_id, rate in rates.items():
        if (family := evidence.tasks[task_id].labels.get("operator", "")) in TEXT_FAMILIES:
            rewards[family].append(injector_reward(rate.rate))
    return {
        "plan": plan.model_dump(mode="json"),
        "cells": {
            cell.name: {"num_tasks": num, "weight": round(plan.weight(cell, config.plan.floor), 4)}
            for cell, num in sorted(made.items())
        },
        "injector_reward": {family: sum(own) / len(own) for family, own in sorted(rewards.items())},
    }

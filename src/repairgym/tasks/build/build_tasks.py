"""Build tasks: every source on every package, over processes, resumable per unit.

Reads a `TasksConfig` and the catalogue. Makes a `TaskStore` folder. Guarantees: a split's cap is spread over its
packages in advance, so that the result does not depend on process speed; a finished unit is never made twice for one
key; a failing package is reported and leaves the others alone.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repairgym import __version__
from repairgym.config.tasks import SplitLimits, TasksConfig
from repairgym.errors import (
    DiskFullError,
    IndexUnavailableError,
    InputError,
    PackageNotFoundError,
    RepairGymError,
    SandboxError,
    SandboxUnavailableError,
    TaskError,
)
from repairgym.process_pool import ProcessPool, WorkerEnded, WorkerFailure, answer_requests, run_worker
from repairgym.records import SourceKind, Split
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.build_steps import with_build_steps
from repairgym.tasks.build.validation import tool_versions
from repairgym.tasks.layers.catalogue import (
    JavaPackage,
    NpmPackage,
    NpmRepository,
    Package,
    Repository,
    catalogue_digest,
    load_catalogue,
)
from repairgym.tasks.layers.environments import lock_of, read_lock
from repairgym.tasks.layers.repositories import GitRepository, snapshot_package
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.base import BuildContext, TaskSource
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS, make_breakages
from repairgym.tasks.sources.history import find_candidates, make_history
from repairgym.tasks.sources.mutations import make_mutations
from repairgym.tasks.sources.releases import make_releases
from repairgym.tasks.store import TaskStore, Unit

SOURCES: dict[SourceKind, TaskSource[Any]] = {
    "mutations": make_mutations,
    "releases": make_releases,
    "history": make_history,
    "breakages": make_breakages,
}
UNIT_FORMATS: Mapping[SourceKind, int] = {"mutations": 8, "releases": 9, "history": 9, "breakages": 6}
"""Part of each unit key; grows when the source makes other tasks from the same input."""
_IRRELEVANT: Mapping[str, bool | set[str]] = {
    **dict.fromkeys(("sources", "packages", "catalogue", "splits", "limits", "num_workers", "num_concurrent"), True),
    **dict.fromkeys(("layers", "locks"), True),
    "sandbox": {"bubblewrap", "container", "is_degraded_evaluation_allowed"},
}
"""Settings without influence on a unit's tasks: no part of its key."""


@dataclass(frozen=True)
class Job:
    """One unit to make."""

    source: SourceKind
    package: Package | Repository
    quota: int
    part: int = 0

    @property
    def name(self) -> str:
        """Name of the unit."""
        part = f"@{self.part}" if self.part else ""  # a name may end with a hyphen and a number
        return f"{self.source}-{self.package.name}{part}"

    def key(self, config: TasksConfig) -> str:
        """Digest of every influence on the unit's tasks; TaskError if a lock is missing."""
        format_, lock = UNIT_FORMATS[self.source], self._lock(config)
        parts = [format_, self.quota, config.seed, self.package.digest(), lock, tool_versions()["python"]]
        parts += [self.part] if self.part else []
        if isinstance(self.package, Repository) and self.package.issues:
            parts.append(_digest_of_file(Path(self.package.issues)))
        bounds = config.model_dump(mode="json", exclude=_IRRELEVANT)
        return hashlib.sha256(repr((parts, bounds)).encode()).hexdigest()

    def _lock(self, config: TasksConfig) -> str:
        """Return the lock that the source uses; empty for one that is resolved while the unit is made."""
        if isinstance(self.package, Repository) and not isinstance(self.package, NpmRepository):
            is_dated = config.history.is_lock_dated
            return "" if is_dated else read_lock(self.package.requirements, config.locks)
        if self.source == "breakages" and not isinstance(self.package, JavaPackage):
            if self.part:
                return ""
            if not isinstance(self.package, NpmPackage):
                return read_lock(BUILD_REQUIREMENTS, config.locks)
        return lock_of(self.package, config.locks)


def _digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file; empty for one that cannot be read, of which the source tells."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


@dataclass(frozen=True)
class Progress:
    """A unit that just finished."""

    unit: Unit
    num_done: int
    num_jobs: int
    num_tasks: int


def plan(config: TasksConfig, layers: LayerStore | None = None) -> list[Job]:
    """Return the units of a build, the largest first; InputError for an unknown package or commit."""
    catalogue = load_catalogue(Path(config.catalogue) if config.catalogue else None)
    packages = [p for p in catalogue.select(config.packages) if p.split in config.splits]
    repositories = [r for r in catalogue.select_repositories(config.packages) if r.split in config.splits]
    store = layers or LayerStore(config=config.layers)
    jobs: list[Job] = []
    if "mutations" in config.sources:
        names = {package.name for package in (*catalogue.package, *catalogue.npm)}
        suited = [package for package in packages if not isinstance(package, JavaPackage)]
        mutated = [*suited, *(snapshot_package(r, store) for r in repositories if r.name not in names)]
        quotas = spread(mutated, config.limits, config.mutations.num_per_package)
        jobs += [Job("mutations", package, quotas[package.name]) for package in mutated if quotas[package.name]]
    if "releases" in config.sources:
        paired = [package for package in packages if package.split in config.releases.splits]
        jobs += [job for package in paired for job in _release_jobs(package, config)]
    if "breakages" in config.sources:
        commits = (snapshot_package(r, store) for r in repositories if isinstance(r, NpmRepository))
        jobs += [job for package in (*packages, *commits) for job in _breakage_jobs(package, config)]
    if "history" in config.sources:
        jobs += [job for repository in repositories for job in _history_jobs(repository, config, store)]
    return sorted(jobs, key=lambda job: (-job.quota, job.name))


def _history_jobs(repository: Repository, config: TasksConfig, store: LayerStore) -> list[Job]:
    """Return one unit per `num_commits_per_unit` candidates: the most that a killed build loses."""
    clone = GitRepository.open(repository.url, store, repository.subdirectory)
    # The commit stays fixed while the branch moves.
    pinned = repository.model_copy(update={"revision": clone.resolve(repository.revision)})
    candidates, _ = find_candidates(pinned, clone, config.history)
    size = config.history.num_commits_per_unit
    return [Job("history", pinned, size, part) for part in range(max(1, -(-len(candidates) // size)))]


def _release_jobs(package: Package, config: TasksConfig) -> Iterator[Job]:
    """Yield one unit per pair: each costs several runs of the suite and may fail alone."""
    for part, pair in enumerate(package.releases[-config.releases.num_pairs :]):
        yield Job("releases", package.only(pair[1], releases=(pair,)), config.releases.num_per_pair, part)


def _breakage_jobs(package: Package, config: TasksConfig) -> Iterator[Job]:
    """Yield one unit for the settings, one per aged release and one per release that gave names up."""
    if config.breakages.num_tries:
        yield Job("breakages", package.only(package.version), config.breakages.num_per_package)
    pairs = dict.fromkeys((removal.release, removal.adapted) for removal in package.removals if removal.adapted)
    for part, pair in enumerate(pairs, 1):
        own = tuple(removal for removal in package.removals if (removal.release, removal.adapted) == pair)
        yield Job("breakages", package.only(pair[1], removals=own), 1, part)
    for part, version in enumerate(package.aged, 1 + len(pairs)):
        own = tuple(removal for removal in package.removals if (removal.release, removal.adapted) == (version, ""))
        yield Job("breakages", package.only(version, aged=(version,), removals=own), 1, part)


def spread(packages: Iterable[Package], limits: SplitLimits, most: int) -> dict[str, int]:
    """Return mutation tasks per package: equal shares of the split's cap, bounded by the yield of each package."""
    quotas: dict[str, int] = {}
    by_split: dict[Split, list[tuple[int, str]]] = {}
    for package in packages:
        by_split.setdefault(package.split, []).append((min(package.num_tasks or most, most), package.name))
    for split, members in by_split.items():
        remaining = limits.of(split)
        for number, (capacity, name) in enumerate(sorted(members)):
            quotas[name] = min(capacity, -(-remaining // (len(members) - number)))
            remaining -= quotas[name]
    return quotas


def build(
    config: TasksConfig,
    folder: Path,
    layers: LayerStore | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    started: Callable[[str], None] = lambda name: None,
) -> TaskStore:
    """Build tasks into ``folder``; finished units are reused. ``started`` gets the name of each unit that begins.

    Raises:
        IndexUnavailableError: nothing could be built because no index answers.
        SandboxUnavailableError: this machine cannot isolate.
        RepairGymError: no unit could be made; the first reason.
    """
    store, jobs = TaskStore(folder), plan(config, layers)
    if not jobs:
        raise TaskError(
            f"the catalogue has nothing for {', '.join(config.sources)}: releases need pairs in `releases`, history a "
            "[[repository]], breakages `aged` or num_tries, mutations a limit of their split; correct entry or settings"
        )
    config = _with_known_backend(config)
    root = (layers or LayerStore()).root
    units: list[Unit] = []
    for unit in _finished_and_made(config, store, jobs, root, started):
        units.append(unit)
        report(Progress(unit, len(units), len(jobs), sum(len(u.tasks) for u in units)))
    store.save((task for unit in units for task in unit.tasks), _funnel(units), _manifest(config, jobs))
    return store


def _with_known_backend(config: TasksConfig) -> TasksConfig:
    """Resolve ``auto`` in ``config``, so that the back end is probed once and not in every process."""
    if config.sandbox.backend != "auto":
        return config
    sandbox = config.sandbox.model_copy(update={"backend": create_backend(config.sandbox).name})
    return config.model_copy(update={"sandbox": sandbox})


def _finished_and_made(
    config: TasksConfig, store: TaskStore, jobs: list[Job], root: Path, started: Callable[[str], None]
) -> Iterator[Unit]:
    left: list[Job] = []
    errors: list[tuple[Job, RepairGymError]] = []
    for job in jobs:
        try:
            unit = store.load_unit(job.name, job.key(config))
        except TaskError as error:
            errors.append((job, TaskError(f"{job.package.name}: {error}")))
            continue
        if unit:
            yield unit
        else:
            left.append(job)
    yield from (_failed_unit(job, "", error) for job, error in errors if len(errors) < len(jobs))
    for job, result in _run_jobs(config, left, root, started):
        if isinstance(result, RepairGymError):
            errors.append((job, result))
            if _stops_build(result):
                raise result
            result = _failed_unit(job, job.key(config), result)
        if len(errors) < len(jobs):
            store.save_unit(result)
            yield result
    if len(errors) == len(jobs):
        raise errors[0][1]


def _failed_unit(job: Job, key: str, error: RepairGymError) -> Unit:
    reason = skip_reason(error)
    return Unit(job.name, key, {reason: 1}, (), str(error), {reason: f"{job.name}: {error}"})


def skip_reason(error: RepairGymError) -> str:
    """Return the funnel's name of a failed unit."""
    kinds: tuple[tuple[type[RepairGymError], str], ...] = (
        (PackageNotFoundError, "skipped_not_on_index"),
        (IndexUnavailableError, "skipped_index_down"),
        (InputError, "skipped_unusable_archive"),
        (TaskError, "skipped_no_usable_tests"),
        (SandboxError, "skipped_sandbox_failure"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "skipped_other")


def _stops_build(error: RepairGymError) -> bool:
    """Return True for failures that every other unit would meet as well."""
    is_index = isinstance(error, IndexUnavailableError) and not isinstance(error, PackageNotFoundError)
    return is_index or isinstance(error, (DiskFullError, SandboxUnavailableError))


def _run_jobs(
    config: TasksConfig, jobs: list[Job], root: Path, started: Callable[[str], None]
) -> Iterator[tuple[Job, Unit | RepairGymError]]:
    num_workers = min(config.num_workers or len(os.sched_getaffinity(0)), len(jobs))
    if num_workers <= 1:
        for job in jobs:
            started(job.name)
            yield job, asyncio.run(_try_unit(job, config, root))
        return

    def sent(index: int) -> None:
        started(jobs[index].name)

    with ProcessPool(_build_worker, (config, root), num_workers) as pool, closing(pool.map(jobs, sent=sent)) as results:
        for index, result in results:
            if isinstance(result, WorkerFailure):
                raise result.as_error()
            if isinstance(result, WorkerEnded):
                raise RepairGymError(
                    "a process of the build was killed, perhaps for lack of memory; run the same command again "
                    "(finished units are kept), with fewer processes: num_workers=1"
                )
            yield jobs[index], result


def _build_worker(connection: Connection, setup: tuple[TasksConfig, Path]) -> None:
    run_worker(connection, lambda: answer_requests(connection, lambda job: _try_unit(job, *setup)))


async def _try_unit(job: Job, config: TasksConfig, root: Path) -> Unit | RepairGymError:
    """Make one unit; a failure that concerns only this unit is returned."""
    try:
        return await _make_unit(job, config, root)
    except RepairGymError as error:
        return error
    except (UnicodeDecodeError, SyntaxError, RecursionError) as error:
        # A file of the package that cannot be read, where no source leaves it out.
        return TaskError(f"{job.package.name}: {type(error).__name__}: {error}")


async def _make_unit(job: Job, config: TasksConfig, root: Path) -> Unit:
    backend = create_backend(config.sandbox)
    store = LayerStore(root, config=config.layers)
    try:
        result = await SOURCES[job.source](job.package, BuildContext(store, backend, config, job.quota, job.part))
        tasks, dropped = await with_build_steps(result.tasks, store, backend, config.sandbox.limits)
    finally:
        await backend.close()
    logs = {reason: f"{job.name}: {log}" for reason, log in result.logs.items()}
    return Unit(job.name, job.key(config), {**result.funnel, **dropped}, tuple(tasks), logs=logs)


def _funnel(units: list[Unit]) -> dict[str, Any]:
    totals: dict[str, Counter[str]] = {}
    logs: dict[str, dict[str, str]] = {}
    for unit in sorted(units, key=lambda unit: unit.name):
        source = unit.name.split("-")[0]
        totals.setdefault(source, Counter()).update(unit.funnel)
        logs[source] = unit.logs | logs.get(source, {})
    return {
        "logs": logs,
        "total": {source: dict(counts) for source, counts in totals.items()},
        "units": {unit.name: {**unit.funnel, **({"error": unit.error} if unit.error else {})} for unit in units},
        "splits": dict(Counter(f"{task.source}/{task.split}" for unit in units for task in unit.tasks)),
    }


def _manifest(config: TasksConfig, jobs: list[Job]) -> dict[str, Any]:
    packages = tuple({job.package.digest(): job.package for job in jobs}.values())
    return {
        "catalogue": catalogue_digest(packages),
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "tool_versions": {**tool_versions(), "repairgym": __version__},
    }

"""Paper A's back-test: the share of stored repairs that still validate when versions are not pinned.

Reads tasks and, where a run is given, its passed submissions. Makes one `BackTest` per repair: its runs in the pinned
environment and in the same one with other versions. Guarantees: both use the same tests, sandboxes and machine on the
same day, so that what differs is the versions; the runner's own packages stay pinned; a repair whose versions do not
change is run once.
"""

import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from repairgym.config.commands import BackTestConfig
from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import MainError, Record, Task, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.build_steps import check_gold_builds
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.validation import gather_evidence, pinned_tree, task_layers
from repairgym.tasks.layers.environments import (
    RUNNER_PACKAGES,
    WHEELHOUSE_HEAD,
    build_environment,
    describe_environment,
    resolve_lock,
)
from repairgym.tasks.layers.requirement_pins import build_requirements, pinned_versions, runtime_requirements
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.logs.main_error import classify, errors_of_tests

Outcome = Literal["valid", "no_repair", "no_failure", "no_versions"]
"""``valid``: fails without the repair and passes with it; ``no_repair``: fails with it, too; ``no_failure``: passes
without a repair; ``no_versions``: no versions fit together."""
OUTCOMES: tuple[Outcome, ...] = ("valid", "no_repair", "no_failure", "no_versions")


class Trial(Record):
    """A repair in one environment."""

    outcome: Outcome
    error: MainError | None = None
    """Of a repair that does not validate."""


class BackTest(Record):
    """A repair with pinned versions and with others."""

    task_id: str
    source: str
    package: str
    patch: str
    changes: dict[str, str]
    """Distribution -> its pinned and its other version."""
    pinned: Trial
    unpinned: Trial


def stored_repairs(tasks: Mapping[str, Task], store: RunStore) -> Iterator[Task]:
    """Yield the tasks with each different patch that passed in a run in the place of their gold patch."""
    seen: set[tuple[str, str]] = set()
    for row, document in store.documents():
        task = tasks.get(row.task_id)
        if task and row.verdict is VerdictKind.PASSED and (task.id, document.final_patch) not in seen:
            seen.add((task.id, document.final_patch))
            yield task.model_copy(update={"gold_files": document.final_files, "gold_patch": document.final_patch})


async def back_test(
    repairs: Sequence[Task], config: BackTestConfig, backend: SandboxBackend, layers: LayerStore
) -> AsyncGenerator[BackTest, None]:
    """Yield the back-test of each of ``repairs``, tasks with their gold patch or another in its place.

    Raises:
        SandboxError: the sandbox could not do its work.
        IndexUnavailableError: no index answers.
    """
    names: dict[str, list[str]] = {}
    locks: dict[tuple[str, tuple[str, ...]], str | None] = {}

    def unpinned(task: Task) -> str | None:
        lock, bounds = task.environment.lock, declared_bounds(task, pinned_tree(task, layers))
        if lock not in names:
            names[lock] = top_requirements(next(build_environment(layers, lock)[1].glob("lib/python*/site-packages")))
        if (lock, bounds) not in locks:
            locks[lock, bounds] = unpinned_lock(lock, names[lock], bounds, config)
        return locks[lock, bounds]

    async def try_repair(task: Task) -> BackTest:
        lock = unpinned(task)
        pinned = await _try(task, config, backend, layers)
        changes = changed_versions(task.environment.lock, lock) if lock else {}
        if lock is None:
            other = Trial(outcome="no_versions")
        elif not changes:
            other = pinned
        else:
            moved = task.model_copy(update={"environment": describe_environment(lock)})
            other = await _try(moved, config, backend, layers)
        return BackTest(
            task_id=task.id,
            source=task.source,
            package=task.provenance.package,
            patch=task.gold_patch,
            changes=changes,
            pinned=pinned,
            unpinned=other,
        )

    async with aclosing(ordered_map(try_repair, repairs, config.num_concurrent)) as results:
        async for _, result in results:
            yield result


def declared_bounds(task: Task, tree: Path) -> tuple[str, ...]:
    """Return the requirements that the repaired project declares: an installation keeps to its bounds."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for path in ("pyproject.toml", "setup.cfg", "setup.py"):
            pinned = (tree / path).read_text("utf-8", "replace") if (tree / path).is_file() else None
            text = task.gold_files.get(path, task.base_files.get(path, pinned))
            if text is not None:
                (place / path).write_text(text, encoding="utf-8")
        return tuple(sorted({*build_requirements(place), *runtime_requirements(place)}))


def top_requirements(folder: Path) -> list[str]:
    """Return the distributions in ``folder`` that no other one there needs; the runner's own are left out."""
    installed = list(metadata.distributions(path=[str(folder)]))
    requirements = [Requirement(text) for distribution in installed for text in distribution.requires or ()]
    used = (requirement for requirement in requirements if _applies(requirement))
    needed = {canonicalize_name(requirement.name) for requirement in used}
    names = {canonicalize_name(distribution.name) for distribution in installed}
    return sorted(names - needed - set(RUNNER_PACKAGES))


def _applies(requirement: Requirement) -> bool:
    return not requirement.marker or requirement.marker.evaluate({"extra": ""})


def unpinned_lock(lock: str, names: Sequence[str], bounds: Sequence[str], config: BackTestConfig) -> str | None:
    """Return ``lock`` with the versions of ``names`` that an installation within ``bounds`` would take; None for none.

    They are the newest, those of the day ``config.exclude_newer``, or the ones that ``config.versions`` names. A bound
    on a package that ``lock`` does not have is none of this environment.
    """
    _, head, wheelhouse = lock.partition(WHEELHOUSE_HEAD)
    present = pinned_versions(lock)
    given = [f"{name}=={version}" for name, version in config.versions.items() if name in present]
    kept = [text for text in bounds if _names(text) in present.keys() - config.versions.keys()]
    requirements = [*(name for name in names if name not in config.versions), *given, *kept]
    try:
        return resolve_lock(tuple(requirements), config.exclude_newer) + head + wheelhouse
    except PackageNotFoundError:
        return None


def _names(requirement: str) -> str:
    """Return the name of a requirement line; empty for one that cannot be read."""
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def changed_versions(before: str, after: str) -> dict[str, str]:
    """Return name -> old and new version of what two locks install differently here."""
    old, new = pinned_versions(before), pinned_versions(after)
    return {
        name: f"{old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }


async def _try(task: Task, config: BackTestConfig, backend: SandboxBackend, layers: LayerStore) -> Trial:
    """Run ``task`` without and with its repair in its environment."""
    try:
        await check_gold_builds(task, task_layers(task, layers), backend)
    except TaskError as error:
        text = str(error).splitlines()[0]
        return Trial(outcome="no_repair", error=MainError(error_class=classify(text), message=text[:300]))
    evidence = await gather_evidence(task, layers, backend, config.num_runs)
    certificate = evidence.certificate(task.fail_to_pass, task.pass_to_pass)
    wanted = task.fail_to_pass + task.pass_to_pass
    if certificate.num_gold_passed < certificate.num_gold_runs:
        failed = next(run for run in evidence.gold if not run.passes(wanted))
        return Trial(outcome="no_repair", error=next(iter(errors_of_tests(failed, wanted))))
    has_failed = all(not run.passes(wanted) for run in evidence.empty)
    return Trial(outcome="valid" if has_failed else "no_failure")


def count_outcomes(results: Iterable[BackTest]) -> dict[str, Counter[str]]:
    """Return counts by source and over all (``all``): repairs, ``changed`` ones, outcomes as ``pinned/valid``."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for name in (result.source, "all"):
            count = counts.setdefault(name, Counter())
            count["repairs"] += 1
            count["changed"] += bool(result.changes)
            count[f"pinned/{result.pinned.outcome}"] += 1
            count[f"unpinned/{result.unpinned.outcome}"] += 1
            count["kept_by_pins"] += result.pinned.outcome == "valid" != result.unpinned.outcome
    return counts

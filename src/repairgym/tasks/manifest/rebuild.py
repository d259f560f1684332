"""Rebuild certified tasks from a task manifest: the same edit of the same sdist gives the same record.

Reads a `TaskManifest`. Makes `Task` records and the sdists' trees. Runs nothing: the certificate is the recorded one,
and `repairgym tasks verify` makes a new one. Guarantees: a rebuilt task has the digest of its entry; a killed call goes
on after the last whole package.
"""

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from repairgym import __version__
from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.errors import InputError, RepairGymError, TaskError
from repairgym.process_pool import ProcessPool, WorkerFailure, answer_requests, run_worker
from repairgym.records import BuildStep, Location, Task
from repairgym.tasks.build.assembly import Bug, Visibility, assemble, read_text, sdist_provenance
from repairgym.tasks.build.build_tasks import skip_reason
from repairgym.tasks.build.test_files import file_of, function_id, held_in
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.java.breaks import find_java_breaks
from repairgym.tasks.javascript.breaks import find_npm_breaks, read_range_recipe, with_range
from repairgym.tasks.javascript.package_check import SETTINGS, checked, is_npm_check
from repairgym.tasks.layers.catalogue import NpmPackage, Package
from repairgym.tasks.layers.environments import describe_environment
from repairgym.tasks.layers.store import LayerStore, tree_digest, tree_with_files
from repairgym.tasks.manifest.manifest import (
    PackageEntries,
    TaskEntry,
    TaskManifest,
    content_digest,
    is_build_check,
    parse_ranges,
    pinned_files,
    recorded_certificate,
    text_key,
)
from repairgym.tasks.mutation.file_functions import functions_in
from repairgym.tasks.mutation.mutants import MutableFunction, Mutant, broken_texts, mutable_functions
from repairgym.tasks.mutation.operators import Mutation
from repairgym.tasks.mutation.real_breaks import find_breaks
from repairgym.tasks.mutation.semantic_operators import SEMANTIC_FAMILIES
from repairgym.tasks.mutation.text_edits import is_text_recipe, read_text_edits
from repairgym.tasks.sources.build_checks import with_check
from repairgym.tasks.sources.changelog import read_entries
from repairgym.tasks.sources.fixes import Fix, aligned, whole_fix
from repairgym.tasks.sources.mutations import RECIPE_SEPARATOR
from repairgym.tasks.sources.pairs import texts_of_both
from repairgym.tasks.sources.version_search import bound_edits, read_bounds
from repairgym.tasks.store import TaskStore, Unit

UNIT_PREFIX = "manifest-"
"""Start of the names of a manifest's units in a task folder."""
_HUNKS = re.compile(r"hunks ([\d,]+) of ")
_ANY_LENGTH = (0, 1 << 30)
Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class _Edit:
    """A bug as text."""

    broken: Texts
    gold: Texts
    location: Location | None = None


@dataclass(frozen=True)
class RebuildProgress:
    """A package whose tasks were just rebuilt."""

    package: str
    num_done: int
    num_packages: int
    num_tasks: int
    error: str = ""


def rebuild_manifest(
    manifest: TaskManifest,
    folder: Path,
    config: RebuildConfig,
    layers: LayerStore | None = None,
    report: Callable[[RebuildProgress], None] = lambda progress: None,
) -> TaskStore:
    """Rebuild the selected tasks of ``manifest`` into ``folder``; its funnel counts those that fail.

    Raises:
        InputError: a selected package has no entries, or an entry is broken.
        RepairGymError: no task could be rebuilt; the first reason.
    """
    layers = layers or LayerStore(config=config.layers)
    known = manifest.names()
    unknown = sorted(set(config.packages) - set(known))
    if unknown:
        raise InputError(f"no tasks of {', '.join(unknown)} in {manifest.path}; it has {', '.join(known)}")
    names = [name for name in known if not config.packages or name in config.packages]
    store = TaskStore(folder)
    rebuilding = _Rebuilding(manifest, config, layers, store)
    parts: dict[str, _Part] = {}
    num_tasks = 0
    for number, part in enumerate(rebuilding.run(names), 1):
        parts[part.unit.name] = part
        num_tasks += len(part.unit.tasks)
        package = part.unit.name.removeprefix(UNIT_PREFIX)
        report(RebuildProgress(package, number, len(names), num_tasks, str(part.error or "")))
    ordered = [parts[name] for name in sorted(parts)]
    errors = [part.error for part in ordered if part.error]
    if errors and not num_tasks:
        raise errors[0]
    funnel: Counter[str] = Counter()
    for part in ordered:
        funnel.update(part.unit.funnel)
    origin = {"task_manifest": manifest.path.name, "config": config.model_dump(mode="json")}
    tasks = [task for part in ordered for task in part.unit.tasks]
    store.save(tasks, {"total": {"rebuild": dict(funnel)}}, origin)
    return store


@dataclass(frozen=True)
class _Part:
    """The rebuilt tasks of one package, and the first error of those that failed."""

    unit: Unit
    error: RepairGymError | None = None


@dataclass(frozen=True)
class _Rebuilding:
    """Rebuilds packages, each as a unit of the folder; travels to worker processes."""

    manifest: TaskManifest
    config: RebuildConfig
    layers: LayerStore
    store: TaskStore

    def run(self, names: list[str]) -> Iterator[_Part]:
        """Yield the part of each package, as they end; finished ones are read from the folder."""
        waiting: list[str] = []
        for name in names:
            if unit := self.store.load_unit(UNIT_PREFIX + name, self._key(name)):
                yield _Part(unit)
            else:
                waiting.append(name)
        num_workers = min(self.config.num_workers or len(os.sched_getaffinity(0)), len(waiting))
        if num_workers <= 1:
            yield from map(self.rebuild, waiting)
            return
        with (
            ProcessPool(_rebuild_worker, self, num_workers) as pool,
            contextlib.closing(pool.map(waiting)) as answers,
        ):
            for index, answer in answers:
                if isinstance(answer, WorkerFailure):
                    raise answer.as_error()
                if not isinstance(answer, _Part):
                    raise RepairGymError(
                        f"the process that rebuilt {waiting[index]} was killed, perhaps for lack of memory; run the "
                        "same command again (finished packages are kept), with fewer processes: num_workers=1"
                    )
                yield answer

    def rebuild(self, name: str) -> _Part:
        """Return the part of the package ``name``; a whole one is kept in the folder."""
        content = self.manifest.load(name)
        is_selected = content.package.split in self.config.splits
        entries = [entry for entry in content.entries.values() if is_selected and entry.source in self.config.sources]
        rebuilder = Rebuilder(self.manifest, content, self.layers)
        tasks: list[Task] = []
        failures: list[RepairGymError] = []
        for entry in entries:
            try:
                tasks.append(rebuilder.rebuild(entry))
            except RepairGymError as error:
                failures.append(error)
        funnel = Counter(skip_reason(error) for error in failures)
        funnel.update(entries=len(entries), rebuilt=len(tasks))
        unit = Unit(UNIT_PREFIX + name, self._key(name), dict(funnel), tuple(tasks))
        if not failures:
            self.store.save_unit(unit)
        return _Part(unit, failures[0] if failures else None)

    def _key(self, name: str) -> str:
        """Return the digest of all that the tasks of ``name`` come from: version, selection, settings and entries."""
        chosen = self.config.model_dump_json(include={"sources", "splits"})
        settings = self.manifest.settings.model_dump_json()
        entries = self.manifest.package_path(name).read_text(encoding="utf-8")
        return hashlib.sha256("\n".join((__version__, chosen, settings, entries)).encode()).hexdigest()


def _rebuild_worker(connection: Connection, rebuilding: _Rebuilding) -> None:
    async def rebuild(name: str) -> _Part:
        return rebuilding.rebuild(name)

    run_worker(connection, lambda: answer_requests(connection, rebuild))


@dataclass(frozen=True)
class Rebuilder:
    """Rebuilds the tasks of one package; reads each of its files once."""

    manifest: TaskManifest
    content: PackageEntries
    layers: LayerStore
    functions: dict[tuple[str, str, bool], list[MutableFunction]] = field(default_factory=dict)
    """(version, path, with semantic sites) -> its functions."""
    pairs: dict[tuple[str, str], Fix] = field(default_factory=dict)
    """(older version, version) -> the whole difference."""

    def rebuild(self, entry: TaskEntry) -> Task:
        """Return the task of ``entry``; TaskError if this version makes another task of it."""
        package, settings = self.content.package, self.manifest.settings
        pinned = pinned_files(entry, self.content.shared)
        bug, issue = self._bug(entry, pinned)
        task = assemble(bug, issue, TasksConfig(), len(bug.pass_to_pass))
        task = with_check(task, settings.max_build_s) if is_wheel_check(task.fail_to_pass) else task
        steps = tuple(BuildStep.model_validate(step) for step in entry.build)
        task = self.manifest.with_deadlines(task).model_copy(update={"build": steps})
        if content_digest(task) != entry.content:
            raise TaskError(
                f"{entry.id} of {package.name} comes out as {content_digest(task)}, its entry says {entry.content}: "
                "this version makes another task of it; use the version that recorded it, or record it again"
            )
        return task

    def _bug(self, entry: TaskEntry, pinned: dict[str, str]) -> tuple[Bug, str]:
        """Return the bug and its issue text."""
        package = self.content.package
        sdist = package.sdist(entry.version)
        tree = tree_with_files(self.layers, sdist, pinned) if pinned else self.layers.tree(sdist)
        tests = self.content.shared.tests
        failing, passing, visible, shown = (
            tuple(tests[number] for number in parse_ranges(text))
            for text in (entry.fail, entry.keep, entry.visible, entry.shown)
        )
        is_build = is_build_check(failing)
        generated = frozenset() if is_build else frozenset(pinned)
        first = tuple(i for i in failing if i not in shown and file_of(i) not in generated and _can_hide(i, tree))
        edit = self._edit(entry, tree)
        seen = {function_id(test_id) for test_id in visible}
        bug = Bug(
            project=_project(package, failing),
            source=entry.source,
            provenance=sdist_provenance(
                package, entry.version, entry.base_version, entry.recipe, self.layers.tree(sdist)
            ),
            tree=tree,
            base_tree=tree.name if pinned else tree_digest(sdist),
            environment=describe_environment(self.manifest.lock(entry)),
            broken={**edit.broken, **dict.fromkeys(generated)},
            gold=edit.gold,
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=Visibility(visible, tuple(i for i in first if function_id(i) not in seen), ""),
            certificate=recorded_certificate(entry, self.content.shared),
            location=edit.location,
            created_at=entry.created_at,
            labels=entry.labels,
            pinned_files=pinned,
        )
        told = _changelog_text(entry, tree) if entry.changelog_entry else ""
        return bug, "\n\n".join(filter(None, (told, entry.issue)))

    def _edit(self, entry: TaskEntry, tree: Path) -> _Edit:
        if entry.source == "mutations":
            return self._mutation(entry, tree)
        if entry.source == "releases" or _HUNKS.match(entry.recipe):
            return self._release(entry, tree)
        if entry.labels.get("operator") == "newer_dependency" and entry.labels.get("language") == "javascript":
            return _ranges(entry, tree)
        return (_bounds if entry.labels.get("operator") == "newer_dependency" else _settings)(entry, tree)

    def _mutation(self, entry: TaskEntry, tree: Path) -> _Edit:
        mutants = [self._mutant(recipe, entry, tree) for recipe in entry.recipe.split(RECIPE_SEPARATOR)]
        first, span = mutants[0].function, mutants[0].function.span
        location = Location(
            path=first.path, name=span.qualified_name, first_line=span.first_line, last_line=span.last_line
        )
        gold = {mutant.function.path: mutant.function.source for mutant in mutants}
        return _Edit(broken_texts(mutants), gold, location)

    def _mutant(self, recipe: str, entry: TaskEntry, tree: Path) -> Mutant:
        path, name, edit = recipe.split(" ", 2)
        # Most entries need no semantic sites, which take longest to find.
        place = entry.version, path, any(f": {family} " in edit for family in SEMANTIC_FAMILIES)
        if place not in self.functions:
            source = read_text(tree / path)
            self.functions[place] = mutable_functions(
                path, source, _ANY_LENGTH, has_free_operators=True, has_semantic_operators=place[2]
            )
        for function in self.functions[place]:
            if function.span.qualified_name == name and (mutant := _mutant(function, edit)):
                return mutant
        # An edit as data needs no operator: its function, or the whole file, may be one that none can break.
        for span in functions_in(path, read_text(tree / path)) if is_text_recipe(edit) else ():
            plain = MutableFunction(path, read_text(tree / path), span, ())
            if span.qualified_name == name and (mutant := _mutant(plain, edit)):
                return mutant
        raise _unknown(entry)

    def _release(self, entry: TaskEntry, tree: Path) -> _Edit:
        package, pair = self.content.package, (entry.base_version, entry.version)
        if pair not in self.pairs:
            older, newer = texts_of_both(package, self.layers.tree(package.sdist(entry.base_version)), tree)
            older = aligned(older, newer) if entry.source == "breakages" else older
            self.pairs[pair] = whole_fix(older, newer)
        whole, match = self.pairs[pair], _HUNKS.match(entry.recipe)
        wanted = {int(number) for number in match[1].split(",")} if match else set()
        fix = Fix(tuple(hunk for hunk in whole.hunks if hunk.number in wanted), whole.older, whole.newer)
        if not wanted or len(fix.hunks) != len(wanted):
            raise _unknown(entry)
        return _Edit(fix.broken_files, fix.gold_files, fix.location())


def _project(package: Package, failing: tuple[str, ...]) -> Package:
    """Return ``package`` with what runs the tests ``failing``; the check of a build needs no plugins."""
    if isinstance(package, NpmPackage) and is_npm_check(failing):
        return checked(package)
    return package.model_copy(update={"plugins": ()}) if is_build_check(failing) else package


def _changelog_text(entry: TaskEntry, tree: Path) -> str:
    """Return the entry of the changelog that ``entry`` names."""
    for text in read_entries(tree, entry.version):
        text = without_run_text(text)  # as in the issue
        if text_key(text) == entry.changelog_entry:
            return text
    raise TaskError(f"{entry.id}: this version reads other changelog entries; use the version that recorded it")


def _can_hide(test_id: str, tree: Path) -> bool:
    """Return whether the file of ``test_id`` holds its function; metaclasses and other files make tests, too."""
    path, _, name = function_id(test_id).partition("::")
    return name in held_in(path, read_text(tree / path))


def _unknown(entry: TaskEntry) -> TaskError:
    return TaskError(f"{entry.id}: this version cannot make {entry.recipe!r}; use the version that recorded it")


def _mutant(function: MutableFunction, recipe: str) -> Mutant | None:
    """Return the mutant of ``function`` with ``recipe``: edits as data, or edits that operators make."""
    if is_text_recipe(recipe):
        with contextlib.suppress(ValueError):
            return Mutant(function, read_text_edits(function.source, recipe))
        return None
    edits: dict[str, Mutation] = {}
    for site in function.sites:
        for new in site.alternatives:
            single = Mutant(function, (Mutation(site, new),))
            edits[single.recipe] = single.mutations[0]
    chosen = _split(recipe, edits)
    return Mutant(function, chosen) if chosen else None


def _split(recipe: str, edits: Mapping[str, Mutation]) -> tuple[Mutation, ...]:
    """Return the edits that ``recipe`` joins; none when it is no such text. Edits can hold the separator themselves."""
    if recipe in edits:
        return (edits[recipe],)
    for match in re.finditer("; ", recipe):
        if (first := edits.get(recipe[: match.start()])) and (rest := _split(recipe[match.end() :], edits)):
            return (first, *rest)
    return ()


def _settings(entry: TaskEntry, tree: Path) -> _Edit:
    path, recipe = entry.recipe.split(" ", 1)
    text = read_text(tree / path)
    finders = {"java": lambda: find_java_breaks(tree, path), "javascript": lambda: find_npm_breaks(path, text)}
    for edit in finders.get(entry.labels.get("language", ""), lambda: find_breaks(path, text))():
        if edit.recipe == recipe:
            return _Edit({path: edit.text}, {path: text})
    raise _unknown(entry)


def _bounds(entry: TaskEntry, tree: Path) -> _Edit:
    gold = bound_edits(tree, read_bounds(entry.recipe))
    if not gold:
        raise _unknown(entry)
    return _Edit({path: read_text(tree / path) if (tree / path).is_file() else None for path in gold}, gold)


def _ranges(entry: TaskEntry, tree: Path) -> _Edit:
    text = read_text(tree / SETTINGS)
    name, broken, gold = read_range_recipe(entry.recipe)
    return _Edit({SETTINGS: with_range(text, name, broken)}, {SETTINGS: with_range(text, name, gold)})

"""Rebuilds certified tasks from recipes: the same edit of the same sdist, and the same record.

Reads a `RecipeBook`; makes `Task` records and the sdists' trees, and runs nothing: the proof is the recorded one, and
`repairgym tasks verify` makes a new one. Invariant: a task that leaves this module has the digest of its recipe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.tasks import RebuildConfig, TasksConfig
from repairgym.errors import InputError, RepairGymError, TaskError
from repairgym.records import Location, Task
from repairgym.tasks.build.assembly import Bug, Visibility, assemble, read_text, sdist_provenance
from repairgym.tasks.build.build_tasks import skip_reason
from repairgym.tasks.build.test_files import function_id
from repairgym.tasks.layers.environments import describe_environment
from repairgym.tasks.layers.store import LayerStore, tree_digest, tree_with_files
from repairgym.tasks.manifest.manifest import (
    Page,
    RecipeBook,
    TaskRecipe,
    build_steps,
    certificate,
    content_digest,
    numbers,
    pinned_files,
)
from repairgym.tasks.mutation.operators import Mutation
from repairgym.tasks.mutation.settings_operators import find_edits
from repairgym.tasks.sources.build_checks import with_check
from repairgym.tasks.sources.fixes import Fix, find_hunks
from repairgym.tasks.sources.mutants import MutableFunction, Mutant, mutable_functions
from repairgym.tasks.sources.pairs import texts_of
from repairgym.tasks.sources.releases import changelog_entry
from repairgym.tasks.sources.version_search import bound_edits, read_bounds
from repairgym.tasks.store import TaskStore

_HUNKS = re.compile(r"hunks ([\d,]+) of ")
_ANY_LENGTH = (0, 1 << 30)
Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class _Edit:
    """A bug as text."""

    broken: Texts
    gold: Texts
    location: Location | None = None
    issue: str = ""


@dataclass(frozen=True)
class RebuildProgress:
    """A package that just ended."""

    package: str
    num_done: int
    num_packages: int
    num_tasks: int
    error: str = ""


def rebuild_book(
    book: RecipeBook,
    folder: Path,
    config: RebuildConfig,
    layers: LayerStore | None = None,
    report: Callable[[RebuildProgress], None] = lambda progress: None,
) -> TaskStore:
    """Rebuild the chosen tasks of ``book`` into ``folder``; what cannot be rebuilt is counted there.

    Raises:
        InputError: a chosen package has no page, or a page is broken.
        RepairGymError: not one task could be rebuilt; the first reason.
    """
    layers = layers or LayerStore(config=config.layers)
    unknown = sorted(set(config.packages) - set(book.names()))
    if unknown:
        raise InputError(f"no page for {', '.join(unknown)} in {book.path}; it has {', '.join(book.names())}")
    names = [name for name in book.names() if not config.packages or name in config.packages]
    tasks: list[Task] = []
    funnel: Counter[str] = Counter()
    errors: list[RepairGymError] = []
    for number, name in enumerate(names, 1):
        page = book.page(name)
        found = [r for r in page.recipes.values() if page.package.split in config.splits and r.source in config.sources]
        rebuilder = Rebuilder(book, page, layers)
        failures: list[RepairGymError] = []
        for recipe in found:
            try:
                tasks.append(rebuilder.rebuild(recipe))
            except RepairGymError as error:
                failures.append(error)
        funnel.update(recipes=len(found), rebuilt=len(found) - len(failures))
        funnel.update(skip_reason(error) for error in failures)
        errors += failures
        told = str(failures[0]) if failures else ""
        report(RebuildProgress(name, number, len(names), len(tasks), told))
    if errors and not tasks:
        raise errors[0]
    manifest = {"book": book.path.name, "config": config.model_dump(mode="json")}
    store = TaskStore(folder)
    store.save(tasks, {"total": {"rebuild": dict(funnel)}}, manifest)
    return store


@dataclass(frozen=True)
class Rebuilder:
    """Rebuilds the tasks of one package, and reads each of its files once."""

    book: RecipeBook
    page: Page
    layers: LayerStore
    functions: dict[tuple[str, str], list[MutableFunction]] = field(default_factory=dict)
    """(version, path) -> its functions."""
    pairs: dict[tuple[str, str], Fix] = field(default_factory=dict)
    """(older version, version) -> everything that differs."""

    def rebuild(self, recipe: TaskRecipe) -> Task:
        """The task of ``recipe``.

        Raises:
            IndexUnavailableError: its sdist is not here and no index answers.
            InputError: an archive or the book is broken.
            TaskError: this version makes another task of it.
        """
        package, settings = self.page.package, self.book.settings
        pinned = pinned_files(recipe, self.page.shared)
        bug, issue = self._bug(recipe, pinned)
        task = assemble(bug, issue, TasksConfig(), len(bug.pass_to_pass))
        task = with_check(task, settings.max_build_s) if pinned else task
        task = self.book.with_deadlines(task).model_copy(update={"build": build_steps(recipe)})
        if content_digest(task) != recipe.content:
            raise TaskError(
                f"{recipe.id} of {package.name} comes out as {content_digest(task)}, its recipe says {recipe.content}: "
                "this version makes another task of it; use the version that recorded it, or record it again"
            )
        return task

    def _bug(self, recipe: TaskRecipe, pinned: dict[str, str]) -> tuple[Bug, str]:
        """The bug and its report."""
        package = self.page.package
        sdist = package.sdist(recipe.version)
        tree = tree_with_files(self.layers, sdist, pinned) if pinned else self.layers.tree(sdist)
        tests = self.page.shared.tests
        failing, passing, visible = (
            tuple(tests[number] for number in numbers(text)) for text in (recipe.fail, recipe.keep, recipe.visible)
        )
        edit = self._edit(recipe, tree, failing)
        shown = {function_id(test_id) for test_id in visible}
        bug = Bug(
            project=package.model_copy(update={"plugins": ()}) if pinned else package,
            source=recipe.source,
            provenance=sdist_provenance(package, recipe.version, recipe.base_version, recipe.recipe, tree),
            tree=tree,
            base_tree=tree.name if pinned else tree_digest(sdist),
            environment=describe_environment(self.book.lock(recipe)),
            broken=edit.broken,
            gold=edit.gold,
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=Visibility(visible, tuple(i for i in failing if function_id(i) not in shown), ""),
            certificate=certificate(recipe, self.page.shared),
            location=edit.location,
            labels=recipe.labels,
            pinned_files=pinned,
        )
        return bug, recipe.issue or edit.issue

    def _edit(self, recipe: TaskRecipe, tree: Path, failing: tuple[str, ...]) -> _Edit:
        if recipe.source == "mutations":
            return self._mutation(recipe, tree)
        if recipe.source == "releases":
            return self._release(recipe, tree, failing)
        return (_bounds if recipe.labels.get("operator") == "newer_dependency" else _settings)(recipe, tree)

    def _mutation(self, recipe: TaskRecipe, tree: Path) -> _Edit:
        path, name, told = recipe.recipe.split(" ", 2)
        place = recipe.version, path
        if place not in self.functions:
            source = read_text(tree / path)
            self.functions[place] = mutable_functions(path, source, _ANY_LENGTH, has_free_operators=True)
        for function in self.functions[place]:
            if function.span.qualified_name == name and (mutant := _mutant(function, told)):
                span = function.span
                location = Location(path=path, name=name, first_line=span.first_line, last_line=span.last_line)
                return _Edit({path: mutant.text}, {path: function.source}, location)
        raise _unknown(recipe)

    def _release(self, recipe: TaskRecipe, tree: Path, failing: tuple[str, ...]) -> _Edit:
        package, pair = self.page.package, (recipe.base_version, recipe.version)
        if pair not in self.pairs:
            older = texts_of(package, self.layers.tree(package.sdist(recipe.base_version)))
            newer = texts_of(package, tree)
            self.pairs[pair] = Fix(tuple(find_hunks(older, newer)), older, newer)
        whole, match = self.pairs[pair], _HUNKS.match(recipe.recipe)
        wanted = {int(number) for number in match[1].split(",")} if match else set()
        fix = Fix(tuple(hunk for hunk in whole.hunks if hunk.number in wanted), whole.older, whole.newer)
        if not wanted or len(fix.hunks) != len(wanted):
            raise _unknown(recipe)
        issue = "" if recipe.issue else changelog_entry(fix, tree, recipe.version, failing)
        return _Edit(fix.broken_files, fix.gold_files, fix.location(), issue)


def _unknown(recipe: TaskRecipe) -> TaskError:
    return TaskError(f"{recipe.id}: this version cannot make {recipe.recipe!r}; use the version that recorded it")


def _mutant(function: MutableFunction, told: str) -> Mutant | None:
    """The mutant of ``function`` whose recipe is ``told``: one edit, or two."""
    edits: dict[str, Mutation] = {}
    for site in function.sites:
        for new in site.alternatives:
            single = Mutant(function, (Mutation(site, new),))
            edits[single.recipe] = single.mutations[0]
    if told in edits:
        return Mutant(function, (edits[told],))
    for match in re.finditer("; ", told):
        first, second = told[: match.start()], told[match.end() :]
        if first in edits and second in edits:
            return Mutant(function, (edits[first], edits[second]))
    return None


def _settings(recipe: TaskRecipe, tree: Path) -> _Edit:
    path, told = recipe.recipe.split(" ", 1)
    text = read_text(tree / path)
    for edit in find_edits(path, text):
        if edit.recipe == told:
            return _Edit({path: edit.text}, {path: text})
    raise _unknown(recipe)


def _bounds(recipe: TaskRecipe, tree: Path) -> _Edit:
    gold = bound_edits(tree, read_bounds(recipe.recipe))
    if not gold:
        raise _unknown(recipe)
    return _Edit({path: read_text(tree / path) if (tree / path).is_file() else None for path in gold}, gold)

"""A catalogue of certified tasks without other people's code: what rebuilds each of them, and its digest.

Reads and writes::

    real.toml            where the rest is, and the deadlines of the tasks
    real/<package>.jsonl the package with its pinned sdists; then names that its tasks share; then one task per line
    locks/               the locks of the tasks' environments

Invariants: a recipe that is in the book stays as it is when others are added, and its test ids keep their numbers;
what a recipe rebuilds has the digest that stands in it, on any machine, because the digest covers everything of a task
but its durations and where its interpreter runs.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from repairgym.errors import InputError
from repairgym.records import BuildStep, Certificate, Record, SourceKind, Task
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.sources.build_checks import BUILD_TEST, DEPENDENCY_TEST, check_text

DIGEST_CHARS = 32
_MADE_BY_US = {BUILD_TEST, DEPENDENCY_TEST}
"""Pinned files that come with this package."""


class BookSettings(Record):
    """The TOML file of a book; paths are relative to it."""

    recipes: str
    """Folder of the packages' files."""
    locks: str = "locks"
    test_timeout_s: float = Field(3.0, gt=0)
    timeout_s: float = Field(6.0, gt=0)
    """Deadlines of the tasks, whatever the machine that certified them allowed itself."""
    max_build_s: float = Field(100.0, gt=0)
    """Deadline of a task that is a build (paper A, section A3: builds under 100 s)."""


class TaskRecipe(Record):
    """What rebuilds one task."""

    id: str
    source: SourceKind
    version: str
    base_version: str = ""
    recipe: str
    lock: str
    """File in the folder of locks."""
    fail: str
    """Numbers of `Shared.tests`, as ``0-3,7``; so are the next two."""
    keep: str = ""
    visible: str = ""
    issue: str = ""
    """The report where we wrote it; empty: an entry of the changelog, which is in the sdist."""
    labels: dict[str, str]
    build: tuple[dict[str, Any], ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    """Pinned path -> key of `Shared.files`; the shipped checks have the empty key."""
    runs: tuple[int, int, int, int]
    """Empty runs, failed ones, gold runs, passed ones."""
    durations_s: tuple[float, float]
    unstable: tuple[str, ...] = ()
    tools: int = 0
    """Number in `Shared.tools`."""
    content: str
    """`content_digest` of the task."""


class Shared(Record):
    """What the tasks of one package share."""

    tests: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    """Digest -> text of a file that a build is compared with: names and digests of a release, no code."""
    tools: tuple[dict[str, str], ...] = ()


@dataclass
class Page:
    """The tasks of one package."""

    package: Package
    shared: Shared = field(default_factory=Shared)
    recipes: dict[str, TaskRecipe] = field(default_factory=dict)


def content_digest(task: Task) -> str:
    """Digest of everything that a recipe must bring back."""
    content = task.model_dump(mode="json", exclude={"certificate", "environment"})
    content["lock"] = task.environment.lock
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 7]`` as ``0-2,7``; the order is kept."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def numbers(text: str) -> Iterator[int]:
    """The numbers that `ranges` wrote."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class RecipeBook:
    """A book on disk."""

    def __init__(self, path: Path) -> None:
        """Read the settings in ``path``.

        Raises:
            InputError: the file cannot be read or has another form.
        """
        self.path = path
        try:
            self.settings = BookSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise InputError(f"{path} is no book of recipes: {error}") from error

    @property
    def locks(self) -> Path:
        """Folder of the locks."""
        return self.path.parent / self.settings.locks

    def page_path(self, name: str) -> Path:
        """File of one package."""
        return self.path.parent / self.settings.recipes / f"{name}.jsonl"

    def names(self) -> list[str]:
        """Packages that have a page."""
        return sorted(path.stem for path in (self.path.parent / self.settings.recipes).glob("*.jsonl"))

    def page(self, name: str) -> Page:
        """The page of one package.

        Raises:
            InputError: there is none, or a line is broken.
        """
        path = self.page_path(name)
        try:
            head, shared, *lines = path.read_text(encoding="utf-8").splitlines()
            recipes = [TaskRecipe.model_validate_json(line) for line in lines if line]
            page = Page(Package.model_validate_json(head), Shared.model_validate_json(shared))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is no page of recipes: {error}; take it from its repository again") from error
        page.recipes = {recipe.id: recipe for recipe in recipes}
        return page

    def lock(self, recipe: TaskRecipe) -> str:
        """Text of the lock of ``recipe``.

        Raises:
            InputError: it is missing.
        """
        path = self.locks / recipe.lock
        if not path.is_file():
            raise InputError(f"{recipe.id}: no lock {recipe.lock} in {self.locks}; take it from its repository again")
        return path.read_text(encoding="utf-8")

    def record(self, tasks: Iterable[Task], packages: dict[str, Package]) -> Counter[str]:
        """Add the recipes of ``tasks`` whose packages ``packages`` names; what became of them, by name.

        Raises:
            InputError: a page is broken.
        """
        counts: Counter[str] = Counter()
        pages: dict[str, Page] = {}
        for task in tasks:
            name = task.provenance.package
            if task.source == "history" or name not in packages:
                counts["needs_its_clone" if task.source == "history" else "package_not_in_catalogue"] += 1
                continue
            if name not in pages:
                has_page = self.page_path(name).is_file()
                pages[name] = self.page(name) if has_page else Page(packages[name].model_copy(update={"sdists": {}}))
            counts[self._add(pages[name], task, packages[name])] += 1
        for name, page in pages.items():
            self._write(name, page)
        return counts

    def _add(self, page: Page, task: Task, package: Package) -> str:
        if task.id in page.recipes:
            return "already_there"
        task = self.with_deadlines(task)
        origin = task.provenance
        needed = {package.version, origin.version, *filter(None, (origin.base_version,))}
        sdists = {**page.package.sdists, **{one: package.sdists[one] for one in needed}}
        plain = {"sdists": dict(sorted(sdists.items())), "releases": (), "aged": (), "num_tasks": 0}
        page.package = page.package.model_copy(update=plain)
        tests = (*task.fail_to_pass, *task.pass_to_pass)
        known = dict.fromkeys((*page.shared.tests, *tests))
        files = {text_key(text): text for path, text in task.pinned_files.items() if path not in _MADE_BY_US}
        tools = tuple(dict.fromkeys((*map(_frozen, page.shared.tools), _frozen(task.certificate.tool_versions))))
        page.shared = Shared(
            tests=tuple(known), files={**page.shared.files, **files}, tools=tuple(dict(pairs) for pairs in tools)
        )
        page.recipes[task.id] = _recipe(task, page.shared, self._save_lock(task))
        return "recorded"

    def with_deadlines(self, task: Task) -> Task:
        """``task`` with the deadlines of this book."""
        bounds = self.settings
        is_build = task.source == "breakages"
        test_timeout_s, timeout_s = (
            (bounds.max_build_s, bounds.max_build_s) if is_build else (bounds.test_timeout_s, bounds.timeout_s)
        )
        return task.model_copy(update={"test_timeout_s": test_timeout_s, "timeout_s": timeout_s})

    def _save_lock(self, task: Task) -> str:
        text = task.environment.lock
        same = [path for path in self.locks.glob("*.txt") if path.read_text(encoding="utf-8") == text]
        path = same[0] if same else self.locks / f"{text_key(text)}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path.name

    def _write(self, name: str, page: Page) -> None:
        path = self.page_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        records: list[Record] = [page.package, page.shared, *page.recipes.values()]
        lines = [record.model_dump_json(exclude_defaults=True) + "\n" for record in records]
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(lines), encoding="utf-8")
        temporary.replace(path)


def text_key(text: str) -> str:
    """Short name of a text by its content."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _frozen(versions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))


def _recipe(task: Task, shared: Shared, lock: str) -> TaskRecipe:
    number = {test_id: place for place, test_id in enumerate(shared.tests)}
    proof = task.certificate
    return TaskRecipe(
        id=task.id,
        source=task.source,
        version=task.provenance.version,
        base_version=task.provenance.base_version,
        recipe=task.provenance.recipe,
        lock=lock,
        fail=ranges(number[i] for i in task.fail_to_pass),
        keep=ranges(number[i] for i in task.pass_to_pass),
        visible=ranges(number[i] for i in task.visible_tests),
        issue="" if task.labels.get("issue_source") == "changelog" else task.issue,
        labels={name: value for name, value in task.labels.items() if name != "package"},
        build=tuple(step.model_dump(mode="json", exclude_defaults=True) for step in task.build),
        files={path: "" if path in _MADE_BY_US else text_key(text) for path, text in task.pinned_files.items()},
        runs=(proof.num_empty_runs, proof.num_empty_failed, proof.num_gold_runs, proof.num_gold_passed),
        durations_s=(proof.empty_duration_s, proof.gold_duration_s),
        unstable=proof.unstable_tests,
        tools=shared.tools.index(dict(_frozen(proof.tool_versions))),
        content=content_digest(task),
    )


def pinned_files(recipe: TaskRecipe, shared: Shared) -> dict[str, str]:
    """Path -> text of the files that the pinned tree holds beside those of its sdist."""
    return {path: shared.files[key] if key else check_text(path) for path, key in recipe.files.items()}


def build_steps(recipe: TaskRecipe) -> tuple[BuildStep, ...]:
    """The steps of the build."""
    return tuple(BuildStep.model_validate(step) for step in recipe.build)


def certificate(recipe: TaskRecipe, shared: Shared) -> Certificate:
    """The proof that was made when the task was recorded."""
    num_empty, num_failed, num_gold, num_passed = recipe.runs
    return Certificate(
        num_empty_runs=num_empty,
        num_empty_failed=num_failed,
        num_gold_runs=num_gold,
        num_gold_passed=num_passed,
        unstable_tests=recipe.unstable,
        empty_duration_s=recipe.durations_s[0],
        gold_duration_s=recipe.durations_s[1],
        tool_versions=shared.tools[recipe.tools],
    )

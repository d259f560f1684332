"""Task manifest: how each task of a certified set is rebuilt, with its digest; it holds nobody else's code.

Reads and writes::

    real.toml            folders of the rest, and the deadlines of the tasks
    real/<package>.jsonl the package with its pinned sdists; names that its tasks share; then one task per line
    locks/               the locks of the tasks' environments

Guarantees: adding entries changes no existing entry and no number of a test id. A rebuilt task has the digest of its
entry on any machine: the digest covers all of a task but its durations and the place of its interpreter. A missing or
broken file is an `InputError`.
"""

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from repairgym.config.loading import to_toml
from repairgym.errors import InputError
from repairgym.records import Accuracy, Certificate, Record, SourceKind, Task
from repairgym.tasks.build.test_files import function_id, held_in
from repairgym.tasks.build.wheel_check import (
    BUILD_TEST,
    DEPENDENCY_TEST,
    RELEASE_TEST,
    check_text,
    is_wheel_check,
)
from repairgym.tasks.java.project import JAVA_TEST, is_java_check, with_java_check
from repairgym.tasks.javascript.package_check import (
    NPM_TEST,
    is_npm_check,
    with_npm_check,
    with_reader_of_ranges,
    without_reader_of_ranges,
)
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.layers.catalogue import JavaPackage, NpmPackage, Package, file_stem, name_of_stem, shipped_path
from repairgym.tasks.layers.npm_locks import is_npm_lock

DIGEST_CHARS = 32
_SHIPPED_CHECKS = {BUILD_TEST, DEPENDENCY_TEST, RELEASE_TEST, JAVA_TEST, NPM_TEST}
"""Pinned files that come with this package."""


class ManifestSettings(Record):
    """The TOML file of a manifest; paths are relative to it."""

    entries: str
    """Folder of the packages' files."""
    locks: str = "locks"
    test_timeout_s: float = Field(3.0, gt=0)
    timeout_s: float = Field(6.0, gt=0)
    """Deadlines of the tasks, on whatever machine they were certified."""
    max_build_s: float = Field(100.0, gt=0)
    """Deadline of a task that is a build (paper A, section A3: builds under 100 s)."""


class TaskEntry(Record):
    """Everything that rebuilds one task."""

    id: str
    source: SourceKind
    version: str
    base_version: str = ""
    recipe: str
    """The edit, as `Provenance.recipe` has it."""
    lock: str
    """File in the folder of locks."""
    fail: str
    """Numbers of `SharedParts.tests`, as ``0-3,7``; so are the next two."""
    keep: str = ""
    visible: str = ""
    shown: str = ""
    """Numbers of further failing tests that the agent's tree holds: those that `repairgym tasks strengthen` added."""
    changelog_entry: str = ""
    """Key of the entry of the sdist's changelog with which the issue text begins; empty without one."""
    issue: str = ""
    """The issue text, without that entry."""
    created_at: str = ""
    labels: dict[str, str]
    build: tuple[dict[str, Any], ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    """Pinned path -> key of `SharedParts.files`; the shipped checks have the empty key."""
    runs: tuple[int, int, int, int]
    """Empty runs, failed ones, gold runs, passed ones."""
    durations_s: tuple[float, float]
    unstable: tuple[str, ...] = ()
    tools: int = 0
    """Number in `SharedParts.tools`."""
    accuracy: Accuracy | None = None
    """Counts of the task's audit; None: not audited."""
    content: str
    """`content_digest` of the task."""


class SharedParts(Record):
    """Parts that the tasks of one package share."""

    tests: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    """Digest -> text of a file that a build is compared with (names and digests of a release), or of generated tests
    (calls and plain values): no code of the package."""
    tools: tuple[dict[str, str], ...] = ()


@dataclass
class PackageEntries:
    """The tasks of one package."""

    package: Package
    shared: SharedParts = field(default_factory=SharedParts)
    entries: dict[str, TaskEntry] = field(default_factory=dict)


def is_build_check(test_ids: tuple[str, ...]) -> bool:
    """Return True when tests of a build are among ``test_ids``: of a wheel, of Java or of npm."""
    return is_wheel_check(test_ids) or is_java_check(test_ids) or is_npm_check(test_ids)


def content_digest(task: Task) -> str:
    """Digest of everything that an entry must bring back."""
    content = task.model_dump(mode="json", exclude={"certificate", "environment"})
    content["lock"] = task.environment.lock
    if not task.runner.parser:  # entries are older than this field
        del content["runner"]["parser"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def format_ranges(numbers: Iterable[int]) -> str:
    """Return ``[0, 1, 2, 7]`` as ``0-2,7``; the order stays."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_ranges(text: str) -> Iterator[int]:
    """Yield the numbers that `format_ranges` wrote."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class TaskManifest:
    """A manifest on disk."""

    def __init__(self, path: Path) -> None:
        """Read the settings in ``path`` (see `shipped_path`)."""
        self.path = path = shipped_path(path)
        try:
            self.settings = ManifestSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise InputError(f"{path} is no task manifest: {error}") from error

    @classmethod
    def create(cls, path: Path, tasks: Collection[Task]) -> Self:
        """Write the settings of a new manifest, with the longest deadlines of ``tasks``, and open it.

        Raises:
            InputError: ``path`` does not end with ``.toml``, or there is no task.
        """
        if path.suffix != ".toml" or not tasks:
            raise InputError(f"got {path} for {len(tasks)} tasks; expected a new file that ends with .toml, and tasks")
        limits: dict[str, float] = {}
        for task in tasks:
            is_build = is_build_check(task.fail_to_pass)
            bounds = {"test_timeout_s": task.test_timeout_s, "timeout_s": task.timeout_s}
            for name, bound in {"max_build_s": task.timeout_s}.items() if is_build else bounds.items():
                limits[name] = max(limits.get(name, 0.0), bound)
        settings = ManifestSettings(entries=path.stem, **limits)
        with written_whole(path) as stream:
            stream.write(to_toml(settings).encode())
        return cls(path)

    @property
    def locks(self) -> Path:
        """Folder of the locks."""
        return self.path.parent / self.settings.locks

    def package_path(self, name: str) -> Path:
        """File of one package."""
        return self.path.parent / self.settings.entries / f"{file_stem(name)}.jsonl"

    def names(self) -> list[str]:
        """Packages of the manifest, sorted."""
        paths = (self.path.parent / self.settings.entries).glob("*.jsonl")
        return sorted(name_of_stem(path.stem) for path in paths)

    def load(self, name: str) -> PackageEntries:
        """Read the entries of one package."""
        path = self.package_path(name)
        try:
            # Not `splitlines`: a text may hold a line separator, which JSON leaves as it is.
            head, shared, *lines = path.read_text(encoding="utf-8").split("\n")
            entries = [TaskEntry.model_validate_json(line) for line in lines if line]
            fields = json.loads(head)
            kind = NpmPackage if "runner" in fields else JavaPackage if "group" in fields else Package
            content = PackageEntries(kind.model_validate_json(head), SharedParts.model_validate_json(shared))
        except (OSError, ValueError) as error:
            text = f"{path} is no part of a task manifest: {error}; restore it from its repository"
            raise InputError(text) from error
        content.entries = {entry.id: entry for entry in entries}
        return content

    def lock(self, entry: TaskEntry) -> str:
        """Text of the lock of ``entry``."""
        path = self.locks / entry.lock
        if not path.is_file():
            raise InputError(f"{entry.id}: no lock {entry.lock} in {self.locks}; restore it from its repository")
        text = path.read_text(encoding="utf-8")
        return with_reader_of_ranges(text) if NPM_TEST in entry.files else text

    def add(self, tasks: Iterable[Task], packages: dict[str, Package], is_replacing: bool = False) -> Counter[str]:
        """Add entries for ``tasks`` of ``packages``; count the tasks by outcome.

        With ``is_replacing`` a task gets a new entry in the place of its old one.

        Raises:
            InputError: a task is of another catalogue entry than the manifest has, and would not rebuild.
        """
        counts: Counter[str] = Counter()
        contents: dict[str, PackageEntries] = {}
        for task in tasks:
            name = task.provenance.package
            if missing := _what_is_missing(task, packages):
                counts[missing] += 1
                continue
            if name not in contents:
                is_new = not self.package_path(name).is_file()
                empty = packages[name].model_copy(update={"sdists": {}})
                contents[name] = PackageEntries(empty) if is_new else self.load(name)
            is_known = task.id in contents[name].entries
            if is_known and not is_replacing:
                counts["already_there"] += 1
                continue
            self._check_head(contents[name], task, packages[name])
            self._add(contents[name], task, packages[name])
            counts["replaced" if is_known else "recorded"] += 1
        for name, content in contents.items():
            self._write(name, content)
        return counts

    def _check_head(self, content: PackageEntries, task: Task, package: Package) -> None:
        """Check that ``task`` is one of the package as the manifest has it; a catalogue entry may change."""
        known, is_build = content.package, is_build_check(task.fail_to_pass)
        own: dict[str, object] = {"split": known.split, "source_paths": known.source_paths}
        own |= {} if is_build else {"plugins": known.plugins, "runner": known.test_runner}
        other = [name for name, value in own.items() if getattr(task, name) != value]
        # Hunks are numbered over all sources, and a task does not tell which these were; a mutation names its file.
        if task.source != "mutations" and task.id not in content.entries:
            other += [name for name in ("sources", "excluded") if getattr(known, name) != getattr(package, name)]
        if other:
            raise InputError(
                f"{task.id} was made with other {', '.join(other)} than what {self.package_path(package.name)} has, "
                "and could not be rebuilt from it; record it into another manifest"
            )

    def _add(self, content: PackageEntries, task: Task, package: Package) -> None:
        task = self.with_deadlines(task)
        origin = task.provenance
        needed = {package.version, origin.version, *filter(None, (origin.base_version,))}
        sdists = {**content.package.sdists, **{version: package.sdists[version] for version in needed}}
        plain = {"sdists": dict(sorted(sdists.items())), "releases": (), "aged": (), "removals": (), "num_tasks": 0}
        content.package = content.package.model_copy(update=plain)
        tests = (*task.fail_to_pass, *task.pass_to_pass)
        known = dict.fromkeys((*content.shared.tests, *tests))
        files = {text_key(text): text for path, text in task.pinned_files.items() if path not in _SHIPPED_CHECKS}
        own, tools = dict(sorted(task.certificate.tool_versions.items())), content.shared.tools
        tools = tools if own in tools else (*tools, own)
        content.shared = SharedParts(tests=tuple(known), files={**content.shared.files, **files}, tools=tools)
        content.entries[task.id] = _entry(task, content.shared, self._save_lock(task))

    def with_deadlines(self, task: Task) -> Task:
        """Return ``task`` with the deadlines of this manifest."""
        bounds = self.settings
        if is_java_check(task.fail_to_pass):
            return with_java_check(task, bounds.max_build_s)
        if is_npm_check(task.fail_to_pass):
            return with_npm_check(task, bounds.max_build_s)
        if is_wheel_check(task.fail_to_pass):
            return task.model_copy(update={"test_timeout_s": bounds.max_build_s, "timeout_s": bounds.max_build_s})
        return task.model_copy(update={"test_timeout_s": bounds.test_timeout_s, "timeout_s": bounds.timeout_s})

    def _save_lock(self, task: Task) -> str:
        text = task.environment.lock
        # What each check of a package of npm needs is no part of its lock here: so it is the package's own.
        text = without_reader_of_ranges(text) if is_npm_check(task.fail_to_pass) else text
        suffix = "json" if is_npm_lock(text) else "txt"
        same = [path for path in self.locks.glob(f"*.{suffix}") if path.read_text(encoding="utf-8") == text]
        path = same[0] if same else self.locks / f"{text_key(text)}.{suffix}"
        with written_whole(path) as stream:
            stream.write(text.encode())
        return path.name

    def _write(self, name: str, content: PackageEntries) -> None:
        records: list[Record] = [content.package, content.shared, *content.entries.values()]
        with written_whole(self.package_path(name)) as stream:
            stream.writelines(record.model_dump_json(exclude_defaults=True).encode() + b"\n" for record in records)


def _what_is_missing(task: Task, packages: Collection[str]) -> str:
    """Return why ``task`` cannot have an entry; empty where it can."""
    if task.source == "history":
        return "needs_its_clone"
    return "" if task.provenance.package in packages else "package_not_in_catalogue"


def text_key(text: str) -> str:
    """Short name of a text by its content."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def generated_files(task: Task) -> set[str]:
    """Return the paths of the pinned test files that the agent's tree does not hold."""
    return {path for path in task.pinned_files if path in task.base_files and task.base_files[path] is None}


def _shown_tests(task: Task) -> list[str]:
    """Return the failing tests that are in no list of visible tests, but in the agent's tree."""
    visible, generated = {function_id(i) for i in task.visible_tests}, generated_files(task)
    files = {path: text for path, text in task.base_files.items() if path in task.test_paths and text is not None}
    names = {path: held_in(path, text) for path, text in files.items()}
    shown = []
    for test_id in task.fail_to_pass:
        path, _, name = function_id(test_id).partition("::")
        if function_id(test_id) not in visible and path not in generated and name in names.get(path, {name}):
            shown.append(test_id)
    return shown


def _entry(task: Task, shared: SharedParts, lock: str) -> TaskEntry:
    number = {test_id: place for place, test_id in enumerate(shared.tests)}
    certificate = task.certificate
    is_entry = task.labels.get("issue_source") == "changelog"
    entry, _, rest = task.issue.partition("\n\n") if is_entry else ("", "", task.issue)
    return TaskEntry(
        id=task.id,
        source=task.source,
        version=task.provenance.version,
        base_version=task.provenance.base_version,
        recipe=task.provenance.recipe,
        lock=lock,
        fail=format_ranges(number[i] for i in task.fail_to_pass),
        keep=format_ranges(number[i] for i in task.pass_to_pass),
        visible=format_ranges(number[i] for i in task.visible_tests),
        shown=format_ranges(number[i] for i in _shown_tests(task)),
        changelog_entry=text_key(entry) if entry else "",
        issue=rest,
        created_at=task.created_at,
        labels={name: value for name, value in task.labels.items() if name != "package"},
        build=tuple(step.model_dump(mode="json", exclude_defaults=True) for step in task.build),
        files={path: "" if path in _SHIPPED_CHECKS else text_key(text) for path, text in task.pinned_files.items()},
        runs=(
            certificate.num_empty_runs,
            certificate.num_empty_failed,
            certificate.num_gold_runs,
            certificate.num_gold_passed,
        ),
        durations_s=(certificate.empty_duration_s, certificate.gold_duration_s),
        unstable=certificate.unstable_tests,
        tools=shared.tools.index(certificate.tool_versions),
        accuracy=certificate.accuracy,
        content=content_digest(task),
    )


def pinned_files(entry: TaskEntry, shared: SharedParts) -> dict[str, str]:
    """Path -> text of the files that the pinned tree holds in addition to those of its sdist."""
    return {path: shared.files[key] if key else check_text(path) for path, key in entry.files.items()}


def recorded_certificate(entry: TaskEntry, shared: SharedParts) -> Certificate:
    """Return the certificate that the task had when it was recorded."""
    num_empty, num_failed, num_gold, num_passed = entry.runs
    return Certificate(
        num_empty_runs=num_empty,
        num_empty_failed=num_failed,
        num_gold_runs=num_gold,
        num_gold_passed=num_passed,
        unstable_tests=entry.unstable,
        empty_duration_s=entry.durations_s[0],
        gold_duration_s=entry.durations_s[1],
        tool_versions=shared.tools[entry.tools],
        accuracy=entry.accuracy,
    )

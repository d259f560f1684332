"""Assemble a task from a certified bug: its issue text, visible and hidden tests, and files that grading restores.

Reads a pinned tree, the broken files, the certified test lists and one failure message. Makes a `Task`. Guarantees:
hidden test functions and built copies of the sources are absent from the agent's tree; grading restores every test file
of the task and the conftest files that act on it; the gold patch leads from the agent's tree to the pinned sources; a
generated issue text holds neither test source nor the fix, because it is made from names and the message only.
"""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.tasks import TasksConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import TaskError
from repairgym.records import Certificate, Environment, Location, Provenance, SourceKind, Task, TestRun, TestRunner
from repairgym.tasks.build.test_files import conftest_paths, cut_from, file_of, function_id, functions_of
from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.javascript.built_copies import built_copies
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.layers.catalogue import Package, Project, matching_files
from repairgym.tasks.layers.metadata import license_of

MAX_MESSAGE_CHARS = 120
_WORDINGS = (
    "{name} in {path} is wrong: {message}",
    "{name} ({path}) gives a wrong result: {message}",
    "bug in {name}, {path}: {message}",
    "{path}: {name} misbehaves: {message}",
)
_BUILD_WORDINGS = (
    "building {name} does not work any more: {message}",
    "the wheel of {name} cannot be used, {message}",
    "pip wheel . in {name}: {message}",
)


def mutation_issue(qualified_name: str, path: str, message: str, generator: random.Random) -> str:
    """Report a bug in ``qualified_name`` with the first line of the failure, in one of a few wordings."""
    wording = generator.choice(_WORDINGS)
    return wording.format(name=qualified_name, path=path, message=first_line(message))


def build_issue(name: str, message: str, generator: random.Random) -> str:
    """Report a failing build or a wrong wheel of ``name``."""
    line = first_line(message).removeprefix("AssertionError: ")
    return generator.choice(_BUILD_WORDINGS).format(name=name, message=line)


def first_line(message: str) -> str:
    """Return the first line of a failure, shortened and without the text of one run."""
    lines = without_run_text(message.strip()).splitlines()
    return lines[0][:MAX_MESSAGE_CHARS] if lines else "see the failing test"


NUM_VISIBLE_PASSING = 3
DEADLINE_FACTOR = 2.0
"""Ratio of a task's deadlines to those of its certificate: an endless loop costs only seconds, and a machine twice as
slow still passes."""
NODE_FACTOR = 4.0
"""Ratio of deadlines with node to those of the settings: a file is a process, and its waits for a processor count."""


def patience_of(runner: TestRunner) -> float:
    """Return the ratio of the deadlines of tests of ``runner`` to those of the settings."""
    return NODE_FACTOR if runner.is_node else 1.0


@dataclass(frozen=True)
class Visibility:
    """The tests that the agent sees."""

    visible: tuple[str, ...]
    hidden: tuple[str, ...]
    """Failing tests whose functions are cut out."""
    reported: str
    """The failing test that the issue quotes; empty when every failing test is hidden."""


def choose_visible(failing: Sequence[str], passing: Sequence[str], run: TestRun) -> Visibility:
    """Show one failing test function and some passing tests; hide the other failing functions, or the only one."""
    functions = functions_of(failing)
    with_message = [i for i in failing if run.results[i].message]
    reported = (with_message or list(failing))[0] if len(functions) > 1 else ""
    shown = function_id(reported) if reported else ""
    neighbours = [i for i in passing if function_id(i) not in functions][:NUM_VISIBLE_PASSING]
    visible = [i for i in (*failing, *passing) if function_id(i) == shown] + neighbours
    return Visibility(tuple(visible), tuple(i for i in failing if function_id(i) != shown), reported)


@dataclass(frozen=True)
class Bug:
    """A certified bug in a package."""

    project: Project
    source: SourceKind
    provenance: Provenance
    tree: Path
    """Folder of the pinned tree, perhaps with byte-code."""
    base_tree: str
    """Digest of the pinned tree."""
    environment: Environment
    broken: Mapping[str, str | None]
    """Relative path -> text of each source file with the bug (None: absent)."""
    gold: Mapping[str, str | None]
    """The same paths, repaired."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    visibility: Visibility
    certificate: Certificate
    location: Location | None = None
    labels: dict[str, str] = field(default_factory=dict)
    pinned_files: Mapping[str, str] = field(default_factory=dict)
    created_at: str = ""


def assemble(bug: Bug, issue: str, config: TasksConfig, num_passing_kept: int) -> Task:
    """Return the task of ``bug``; TaskError if a hidden test cannot be cut out of its file."""
    seen = set(bug.visibility.visible)
    ordered = sorted(bug.pass_to_pass, key=lambda test_id: test_id not in seen)
    # A test that the agent sees is always one of the task.
    passing = set(ordered[: max(num_passing_kept, len(seen.intersection(ordered)))])
    pass_to_pass = tuple(test_id for test_id in bug.pass_to_pass if test_id in passing)
    test_files = {file_of(test_id) for test_id in bug.fail_to_pass + pass_to_pass}
    conftests = {path for path in conftest_paths(test_files) if (bug.tree / path).is_file()}
    return Task(
        id=_task_id(bug),
        source=bug.source,
        provenance=bug.provenance,
        issue=issue,
        base_tree=bug.base_tree,
        pinned_files=dict(bug.pinned_files),
        base_files={**bug.broken, **files_without(bug.tree, bug.visibility.hidden), **_without_copies(bug)},
        environment=bug.environment,
        source_paths=bug.project.source_paths,
        plugins=bug.project.plugins,
        runner=bug.project.test_runner,
        visible_tests=bug.visibility.visible,
        fail_to_pass=bug.fail_to_pass,
        pass_to_pass=pass_to_pass,
        test_timeout_s=DEADLINE_FACTOR * patience_of(bug.project.test_runner) * config.test_timeout_s,
        timeout_s=DEADLINE_FACTOR * patience_of(bug.project.test_runner) * config.run_timeout_s,
        test_paths=tuple(sorted(test_files | conftests)),
        gold_files=dict(bug.gold),
        gold_patch=unified_diff(bug.broken, bug.gold),
        location=bug.location,
        created_at=bug.created_at,
        labels={"error_class": "test", "package": bug.project.name, **bug.labels},
        split=bug.project.split,
        certificate=bug.certificate,
    )


def _without_copies(bug: Bug) -> dict[str, None]:
    """Return the built copies of JavaScript sources, which hold the repair, as files that are gone.

    Where settings alone are repaired, the copies show nothing, and users of the package get them.
    """
    if not bug.project.test_runner.is_node or not any(map(is_javascript, bug.gold)):
        return {}
    return dict.fromkeys(built_copies(bug.tree, matching_files(bug.tree, bug.project.sources)))


def files_without(tree: Path, test_ids: Sequence[str]) -> dict[str, str]:
    """Return the test files of ``tree`` without the functions of ``test_ids``; TaskError if one cannot be cut out."""
    names: dict[str, list[str]] = defaultdict(list)
    for test_id in functions_of(test_ids):
        path, _, name = test_id.partition("::")
        names[path].append(name)
    texts = {path: readable_text(tree / path) for path in names}
    if unreadable := [path for path, text in texts.items() if text is None]:
        raise TaskError(f"test files that are no UTF-8: {', '.join(unreadable)}")
    return {path: cut_from(path, texts[path] or "", cut) for path, cut in names.items()}


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file with its line ends."""
    return path.read_bytes().decode("utf-8")


def readable_text(path: Path) -> str | None:
    """Return `read_text` of a file; None if it is no UTF-8, as old sources that name their encoding."""
    try:
        return read_text(path)
    except UnicodeDecodeError:
        return None


def sdist_provenance(package: Package, version: str, base_version: str, recipe: str, tree: Path) -> Provenance:
    """Return the origin of a bug in ``version`` of ``package``, unpacked in ``tree``."""
    return Provenance(
        package=package.name,
        version=version,
        base_version=base_version,
        sdist_sha256=package.sdists[version],
        base_sdist_sha256=package.sdists.get(base_version, ""),
        recipe=recipe,
        licence=license_of(tree),
    )


_ID_FIELDS = ("package", "version", "base_version", "sdist_sha256", "base_sdist_sha256", "recipe")
_LATER_ID_FIELDS = ("repository", "commit", "base_commit", "subdirectory")
"""Part of an id only when set, which keeps the ids of older tasks."""


def _task_id(bug: Bug) -> str:
    provenance = bug.provenance
    known = provenance.model_dump(include=set(_ID_FIELDS))
    later = {name: text for name in _LATER_ID_FIELDS if (text := getattr(provenance, name))}
    content = json.dumps({**known, **later}, sort_keys=True, separators=(",", ":"))
    kind = "breakage" if bug.source == "breakages" else bug.source.removesuffix("s")
    name = bug.project.name.removeprefix("@").replace("/", "-")  # as npm names archives
    return f"{name}-{provenance.version}-{kind}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"

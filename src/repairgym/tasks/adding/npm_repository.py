"""Add a git repository of JavaScript or TypeScript to a catalogue: from a path to an entry and a lock.

Reads a clone with a ``package.json``. Makes an `Added` record as `adding` does. Guarantees: no code of the project runs
outside of a sandbox; the environment is that of the project's own ``package-lock.json`` where npm can install it as it
is, else one that is resolved from the ranges; three runs of the suite decide which test files stay.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from repairgym.config.tasks import HistoryConfig
from repairgym.errors import RepairGymError, TaskError
from repairgym.records import Split, TestOutcome, TestRequest, TestRun, TestRunner
from repairgym.sandbox.base import SandboxBackend, SandboxSpec
from repairgym.tasks.adding.adding import MIN_TESTS, Added
from repairgym.tasks.adding.entry import render_entry
from repairgym.tasks.adding.npm import IMPORT, may_be_test, package_of, source_patterns, stable_files, test_patterns
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.build.validation import run_times
from repairgym.tasks.javascript.syntax import is_javascript
from repairgym.tasks.layers.catalogue import NodeRunner, NpmRepository
from repairgym.tasks.layers.environments import build_environment
from repairgym.tasks.layers.npm_locks import locked_names, pinned_npm_lock, resolve_npm_lock
from repairgym.tasks.layers.repositories import GitRepository, commit_tree
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.history import find_candidates

_PYTHON_SETTINGS = ("pyproject.toml", "setup.py", "setup.cfg")
_FRAMEWORKS: Mapping[NodeRunner, str] = {
    "vitest": "2.1.9", "jest": "29.7.0", "mocha": "10.8.2", "tape": "5.9.0", "node_test": "",
}  # fmt: skip
"""Framework -> version where the project names none."""
_TYPESCRIPT_LOADER = {"tsx": "4.19.2"}
_TYPESCRIPT = (".ts", ".tsx", ".mts", ".cts")
_TEST_CALL = re.compile(r"(?:^|[^.\w])(?:it|test|describe|suite|context|tape)(?:\.\w+)*\s*[(`]", re.MULTILINE)
_NODE_TEST = re.compile(r"""['"]node:test['"]""")
_NEEDED_BY_SETTINGS = re.compile(
    r"^(typescript|ts-jest|tslib|@swc/(jest|core)|babel-jest|@babel/.*|esbuild(-jest)?|jest-environment-.*|jsdom|happy-dom)$"
)
"""Packages that configurations of test frameworks name, and no test imports."""
_NUM_RUNS = 3
_RUN_S, _TEST_S = 600.0, 20.0


class _Project(NamedTuple):
    """A commit with what its files tell."""

    name: str
    tree: Path
    settings: Mapping[str, Any]
    runner: NodeRunner
    tests: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def declared(self) -> dict[str, str]:
        """Every package that it asks for, with its range."""
        kinds = ("devDependencies", "optionalDependencies", "peerDependencies", "dependencies")
        return {name: wanted for kind in kinds for name, wanted in self.settings.get(kind, {}).items()}

    @property
    def tools(self) -> dict[str, str]:
        """The framework, and what it needs to read the tests."""
        wanted = self.declared.get(self.runner, _FRAMEWORKS[self.runner])
        own: dict[str, str] = {self.runner: wanted} if wanted else {}
        is_typed = any(path.endswith(_TYPESCRIPT) for path in (*self.tests, *self.sources))
        return {**own, **(_TYPESCRIPT_LOADER if is_typed and self.runner not in ("vitest", "jest") else {})}


def is_npm_repository(clone: GitRepository, commit: str) -> bool:
    """Return True for a commit with a ``package.json`` and without settings of a Python project."""
    has_python = any(clone.plain_text(commit, name) for name in _PYTHON_SETTINGS)
    return not has_python and bool(clone.plain_text(commit, "package.json"))


@dataclass(frozen=True)
class NpmRepositoryAdder:
    """Adds git repositories with a ``package.json``."""

    store: LayerStore
    backend: SandboxBackend
    split: Split
    command: str
    """The command as the user gave it, for the entry."""
    say: Say
    node_version: str = ""
    """Node of the environment; empty: the machine's."""

    async def repository(self, url: str, name: str, subdirectory: str) -> Added:
        """Return the newest commit of ``url`` as an entry for `history` and `mutations`.

        Raises:
            InputError: ``url`` is a path without a git repository.
            TaskError: it has no tests, none of them passes, or its environment would hold the project itself.
        """
        clone = GitRepository.open(url, self.store, subdirectory)
        commit = clone.resolve("HEAD")
        settings = _settings(clone.plain_text(commit, "package.json"))
        name = name or _name(settings, url)
        tree = commit_tree(self.store, clone, commit, name, clone.version(commit))
        project = read_project(name, tree, settings)
        lock, problems = self._lock(project)
        runs = await self._try(project, lock)
        kept = stable_files(runs, project.tests)
        if not kept:
            told = runs[0].output_tail[-400:]
            raise TaskError(f"{name}: no file passes most of its tests in each of {_NUM_RUNS} runs: {told}")
        repository = NpmRepository(
            name=name,
            split=self.split,
            sources=project.sources,
            tests=test_patterns(kept),
            excluded=tuple(path for path in project.tests if path not in kept),
            url=str(Path(url).resolve()) if Path(url).exists() else url,
            revision=commit,
            subdirectory=subdirectory,
            runner=project.runner,
        )
        self.say("counts the commits that can be bug fixes")
        candidates, others = find_candidates(repository, clone, HistoryConfig())
        dropped = {reason: count for reason, count in others.funnel.items() if reason != "commits"}
        added = self._added(repository, lock, runs[0], (len(project.tests), len(kept)), problems)
        return added.model_copy(update={"num_candidates": len(candidates), "dropped": dropped})

    def _lock(self, project: _Project) -> tuple[str, tuple[str, ...]]:
        """Return the lock of the environment, and why it is not the project's own."""
        tried = []
        text = (
            (project.tree / "package-lock.json").read_text("utf-8") if _has(project.tree, "package-lock.json") else ""
        )
        if text:
            self.say("installs the project's own package-lock.json")
            try:
                lock = pinned_npm_lock(text, project.declared, self.node_version)
                if missing := sorted(set(project.tools) - locked_names(lock)):
                    raise TaskError(f"it lacks {', '.join(missing)}")
                build_environment(self.store, lock)
                return self._without_itself(project, lock), ()
            except RepairGymError as error:
                tried = [f"package-lock.json is not used as it is: {error}"]
        self.say("resolves a lock from the ranges of package.json")
        lock = resolve_npm_lock({**_needed(project), **project.tools}, self.node_version)
        return self._without_itself(project, lock), tuple(tried)

    def _without_itself(self, project: _Project, lock: str) -> str:
        if (own := str(project.settings.get("name", ""))) in locked_names(lock):
            raise TaskError(f"{own} is a package of its own environment, where its repaired code could be read")
        return lock

    async def _try(self, project: _Project, lock: str) -> list[TestRun]:
        self.say(f"runs {len(project.tests)} test files {_NUM_RUNS} times in {project.runner}")
        spec = SandboxSpec(environment=build_environment(self.store, lock)[1], tree=project.tree)
        runner = TestRunner(type=project.runner)
        request = TestRequest(test_ids=project.tests, timeout_s=_RUN_S, test_timeout_s=_TEST_S, runner=runner)
        return await run_times(self.backend, spec, request, _NUM_RUNS)

    def _added(
        self, repository: NpmRepository, lock: str, run: TestRun, counts: tuple[int, int], problems: tuple[str, ...]
    ) -> Added:
        outcomes = Counter(result.outcome for test_id, result in run.results.items() if "::" in test_id)
        num_passed = outcomes[TestOutcome.PASSED]
        num_failed = outcomes[TestOutcome.FAILED] + outcomes[TestOutcome.ERROR]
        comments = {
            "split": "as --split says; all tasks of a repository are in one split",
            "runner": "the framework that package.json or the test files name",
            "tests": f"{num_passed} tests pass, {num_failed} fail",
            "revision": "the newest commit",
        }
        return Added(
            name=repository.name,
            kind="npm_repository",
            version=repository.revision,
            is_suite_running=num_passed >= max(MIN_TESTS, num_failed),
            num_passed=num_passed,
            num_failed=num_failed,
            num_files=counts[0],
            num_files_kept=counts[1],
            requirements=tuple(sorted(json.loads(lock)["packages"][""].get("dependencies", {}))),
            plugins=(),
            problems=problems,
            entry=render_entry(repository, comments, problems, self.command),
            lock=lock,
            lock_name=f"npm/{repository.name}.json",
        )


def read_project(name: str, tree: Path, settings: Mapping[str, Any]) -> _Project:
    """Return the framework, tests and sources of ``tree``; TaskError without tests."""
    files = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*")) if path.is_file()]
    code = [path for path in files if is_javascript(path) and "node_modules" not in PurePosixPath(path).parts]
    candidates = [path for path in code if may_be_test(path)]
    texts = {path: (tree / path).read_text(encoding="utf-8", errors="replace") for path in candidates}
    runner = _runner(settings, texts)
    uses = _NODE_TEST if runner == "node_test" else _TEST_CALL
    tests = tuple(path for path in candidates if uses.search(texts[path]))
    sources = source_patterns(path for path in code if path not in candidates)
    if not tests or not sources:
        what = "test" if not tests else "source"
        raise TaskError(
            f"{name}: no {what} file; tests lie in test, tests, __tests__ or spec, or are called *.test.* or *.spec.*"
        )
    return _Project(name, tree, settings, runner, tests, sources)


def _runner(settings: Mapping[str, Any], texts: Mapping[str, str]) -> NodeRunner:
    """Return the framework that the test script names, else the test files, else the dependencies."""
    declared = {**settings.get("dependencies", {}), **settings.get("devDependencies", {})}
    script = str(settings.get("scripts", {}).get("test", ""))
    known: tuple[NodeRunner, ...] = ("vitest", "jest", "mocha", "tape")
    named = [runner for runner in known if re.search(rf"\b{runner}\b", script)]
    if not named and any(map(_NODE_TEST.search, texts.values())):
        return "node_test"
    listed = [runner for runner in known if runner in declared]
    return next(iter((*named, *listed)), "node_test")


def _needed(project: _Project) -> dict[str, str]:
    """Return the declared packages that code or tests import, that configurations name, and that run at its side."""
    texts = (
        path.read_text(encoding="utf-8", errors="replace")
        for path in project.tree.rglob("*")
        if is_javascript(path.name) and path.is_file()
    )
    imported = {package_of(module) for text in texts for module in IMPORT.findall(text)}
    development = project.settings.get("devDependencies", {})
    used = {name: wanted for name, wanted in development.items() if name in imported or _NEEDED_BY_SETTINGS.match(name)}
    always = {**project.settings.get("peerDependencies", {}), **project.settings.get("dependencies", {})}
    return {**used, **always}


def _settings(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise TaskError(f"package.json cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _name(settings: Mapping[str, Any], url: str) -> str:
    """Return the name in ``package.json`` without its scope's sign, else the last part of ``url``."""
    name = str(settings.get("name", "")).lstrip("@").replace("/", "-")
    return name or url.rstrip("/").rpartition("/")[2].removesuffix(".git")


def _has(tree: Path, name: str) -> bool:
    return (tree / name).is_file()

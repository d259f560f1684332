"""Task source `history`: bug-fix commits of a git repository.

Reads a clone. Makes one task per commit (a merge or a squash counts as one) whose tests fail on the sources of its
first parent. The environment is locked at the date of the commit: later uploads are ignored, except for pytest, which
the grader brings (`RUNNER_PACKAGES`). An index without upload times cannot be locked that way (each commit counts as
``not_lockable``); ``history.is_lock_dated = false`` uses the locks of ``locks`` instead, and the tasks get the label
``lock`` = ``undated``. Guarantees: the agent's tree is the commit's with the sources of its parent and without
``.git``, so that neither the fix nor later history can be read; each dropped commit is counted.
"""

from __future__ import annotations

import configparser
import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Provenance, Task, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Visibility
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.layers.catalogue import Repository
from repairgym.tasks.layers.environments import resolve_lock
from repairgym.tasks.layers.licenses import license_of
from repairgym.tasks.layers.repositories import GitRepository, UnsupportedTreeError, commit_tree
from repairgym.tasks.sources.base import BuildContext, SourceResult
from repairgym.tasks.sources.commits import Candidate, commit_issue, find_candidates, load_issues
from repairgym.tasks.sources.fixes import Fix, changes_code, find_hunks, tests_issue
from repairgym.tasks.sources.pairs import BROKEN, IssueText, IssueWriter, Origin, Pair, texts_of


class HistorySource:
    """Makes `history` tasks of one part of a repository's candidates."""

    async def make(self, package: Repository, context: BuildContext) -> SourceResult:
        """See `TaskSource.make`."""
        miner = CommitMiner.open(package, context)
        candidates, funnel = find_candidates(package, miner.clone, context.config.history)
        result = SourceResult()
        if context.part == 0:
            result.funnel.update(funnel)
        size = context.config.history.num_commits_per_unit
        for candidate in candidates[context.part * size : (context.part + 1) * size]:
            result.funnel["candidates"] += 1
            result.add(await miner.make_task(candidate))
        return result


@dataclass(frozen=True)
class _PinnedCommit:
    """A commit with pinned tree and environment, before any test ran."""

    origin: Origin
    spec: SandboxSpec
    fix: Fix
    test_files: tuple[str, ...]
    changed_tests: tuple[str, ...]


@dataclass(frozen=True)
class CommitMiner:
    """Makes tasks from the commits of one repository."""

    repository: Repository
    context: BuildContext
    clone: GitRepository
    issues: dict[str, str]

    @classmethod
    def open(cls, repository: Repository, context: BuildContext) -> CommitMiner:
        """Open the clone and read the issues."""
        clone = GitRepository.open(repository.url, context.store, repository.subdirectory)
        return cls(repository, context, clone, load_issues(repository.issues))

    async def make_task(self, candidate: Candidate) -> Task | str:
        """Return the task of a commit, or the reason of its drop."""
        try:
            pinned = self._pin(candidate)
            fix = pinned.fix
            if not any(changes_code(fix.newer, fix.older, hunk) for hunk in fix.hunks):
                return "only_comments"
            if fix.num_lines > self.context.config.history.max_lines:
                return "too_many_lines"
            if not await self._is_noticed(pinned):
                return "no_fixed_tests"
            pair = await Pair.set_up(pinned.origin, self.context, pinned.spec, pinned.test_files, fix.older)
        except UnsupportedTreeError as error:
            return error.reason
        except PackageNotFoundError:
            return "not_lockable"
        except TaskError:
            return "no_usable_tests"
        stable, _, fixed = await pair.sort_tests()
        if not fixed:
            return "no_fixed_tests"
        return await pair.make_task(fix, stable, fixed, self._issue_writer(candidate))

    def _pin(self, candidate: Candidate) -> _PinnedCommit:
        """Pin tree and environment of a commit."""
        commit = candidate.commit
        version = self.clone.version(commit.id)
        tree = commit_tree(self.context.store, self.clone, commit.id, self.repository.name, version)
        newer = texts_of(self.repository, tree)
        older = {**newer, **{path: self.clone.text(commit.parents[0], path) for path in candidate.sources}}
        test_files = self._test_files(candidate, tree)
        environment, spec = self.context.pinned_tree(self._lock(tree, commit.date), tree)
        origin = Origin(
            project=self.repository,
            source="history",
            provenance=self._provenance(candidate, version, tree),
            base_tree=tree.name,
            environment=environment,
            config=self.context.config.history,
            created_at=commit.date,
            labels={"lock": "dated" if self.context.config.history.is_lock_dated else "undated"},
        )
        changed = tuple(path for path in test_files if path in candidate.tests)
        return _PinnedCommit(origin, spec, Fix(tuple(find_hunks(older, newer)), older, newer), test_files, changed)

    def _lock(self, tree: Path, date: str) -> str:
        if self.context.config.history.is_lock_dated:
            return commit_lock(self.repository, tree, date)
        return self.context.lock(self.repository.requirements)

    async def _is_noticed(self, pinned: _PinnedCommit) -> bool:
        """Return True if a changed test file fails on the older sources: one run that excludes most commits."""
        spec = pinned.spec.model_copy(update={"files": pinned.fix.broken_files})
        request = self.context.request(self.repository, pinned.changed_tests, self.context.config.suite_timeout_s)
        run = await run_fresh(self.context.backend, spec, request)
        return not run.results or any(result.outcome in BROKEN for result in run.results.values())

    def _provenance(self, candidate: Candidate, version: str, tree: Path) -> Provenance:
        return Provenance(
            package=self.repository.name,
            version=version,
            repository=self.repository.url,
            commit=candidate.commit.id,
            base_commit=candidate.commit.parents[0],
            subdirectory=self.clone.subdirectory,
            licence=license_of(tree),
        )

    def _test_files(self, candidate: Candidate, tree: Path) -> tuple[str, ...]:
        """Return the changed test files, then others up to the bound."""
        present = self.repository.test_files(tree)
        ranked = sorted(present, key=lambda path: path not in candidate.tests)
        num_changed = sum(path in candidate.tests for path in present)
        return tuple(sorted(ranked[: max(num_changed, self.context.config.history.num_test_files)]))

    def _issue_writer(self, candidate: Candidate) -> IssueWriter:
        def write_issue(fix: Fix, failing: Sequence[str], visibility: Visibility, run: TestRun) -> IssueText:
            text, source = commit_issue(self.repository, self.clone, candidate, fix, self.issues)
            if text:
                return IssueText(text, source)
            return IssueText(tests_issue(failing, visibility, run, random.Random(candidate.commit.id)), "tests")

        return write_issue


def commit_lock(repository: Repository, tree: Path, date: str) -> str:
    """Lock the configured test requirements and those of the tree, without uploads after ``date``."""
    requirements = tuple(sorted({*repository.requirements, *declared_requirements(tree)}))
    return resolve_lock(requirements, exclude_newer=date)


def declared_requirements(tree: Path) -> tuple[str, ...]:
    """Return the runtime requirements in ``pyproject.toml`` or ``setup.cfg`` of ``tree``; no project code runs."""
    try:
        project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        requirements = project.get("dependencies", [])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        requirements = []
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string((tree / "setup.cfg").read_text(encoding="utf-8"))
        requirements = [*requirements, *parser.get("options", "install_requires", fallback="").splitlines()]
    except (OSError, configparser.Error, UnicodeDecodeError):
        pass
    return tuple(line.strip() for line in requirements if line.strip() and "file:" not in line and "%" not in line)

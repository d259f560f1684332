"""Task source `history`: bug-fix commits of a git repository.

Reads a clone. Makes one task per commit (a merge or a squash counts as one) that touches code and tests within the
bounds of `HistoryConfig` and whose tests fail on the sources of its first parent. The environment is locked at the date
of the commit: later uploads are ignored, except for pytest, which the grader brings (`RUNNER_PACKAGES`). An index
without upload times cannot be locked that way (each commit counts as ``not_lockable``); ``history.is_lock_dated =
false`` uses the locks of ``locks`` instead, and the tasks get the label ``lock`` = ``undated``; so do those of
JavaScript. With ``history.base = newest`` every fix is taken back from the newest commit, in one environment for all
(`newest`; label ``base``). Guarantees: the agent's tree is the repaired commit's without the fix and without ``.git``,
so that neither the fix nor later history can be read; an issue text holds no line of code that the fix added; each
dropped commit is counted.
"""

import configparser
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from repairgym.config.tasks import HistoryConfig
from repairgym.errors import PackageNotFoundError, TaskError
from repairgym.records import Provenance, Task
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.validation import run_fresh
from repairgym.tasks.issues.commit_texts import LINKED, CommitTexts, Issue, commit_text, load_issues
from repairgym.tasks.issues.describing import Report, describe
from repairgym.tasks.issues.proving import prove_task
from repairgym.tasks.layers.catalogue import NpmRepository, Repository
from repairgym.tasks.layers.environments import lock_of, resolve_lock
from repairgym.tasks.layers.metadata import license_of, read_settings
from repairgym.tasks.layers.repositories import Commit, GitRepository, UnsupportedTreeError, commit_tree
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult, of_kinds
from repairgym.tasks.sources.fixes import Fix, changes_code, whole_fix
from repairgym.tasks.sources.newest import NewestState
from repairgym.tasks.sources.pairs import BROKEN, Origin, Pair, texts_of

_FIX = re.compile(
    r"\b(fix(e[sd]|ing)?|bug\w*|issues?|errors?|crash\w*|regress\w*|broken?|incorrect\w*|wrong\w*|closes?|resolves?)\b",
    re.IGNORECASE,
)
NOT_TRIED = frozenset({
    "root_commit", "no_code", "no_tests", "too_many_files", "not_a_fix", "merge_of_the_main_line", "beyond_num_commits"
})  # fmt: skip
"""Reasons that a commit itself gives, before anything runs."""
_MAIN_LINE = re.compile(r"Merge (remote-tracking )?branch '(\S+/)?(main|master|trunk|dev|develop)'")
"""Beginning of the message of a merge that brings what others did: many changes, which no text is about."""


@dataclass(frozen=True)
class Candidate:
    """A commit with its source and test files."""

    commit: Commit
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    others: tuple[str, ...]


def find_candidates(
    repository: Repository, clone: GitRepository, config: HistoryConfig
) -> tuple[list[Candidate], SourceResult]:
    """Return candidates, newest first, at most ``config.num_commits``, and counts and logs of drop reasons."""
    candidates: list[Candidate] = []
    dropped = SourceResult()
    for commit in clone.commits(repository.revision):
        dropped.funnel["commits"] += 1
        candidate = _as_candidate(repository, commit)
        reason = _drop_reason(candidate, clone, config)
        if not reason and len(candidates) < config.num_commits:
            candidates.append(candidate)
        else:
            dropped.add(Drop(reason or "beyond_num_commits", f"{_headline(commit)}\nchanges {', '.join(commit.paths)}"))
    return candidates, dropped


def _headline(commit: Commit) -> str:
    return f"{commit.id[:12]} {commit.message.partition(chr(10))[0]}"


def _as_candidate(repository: Repository, commit: Commit) -> Candidate:
    def match(patterns: Iterable[str]) -> tuple[str, ...]:
        return tuple(path for path in commit.paths if any(_matches(path, pattern) for pattern in patterns))

    excluded = set(match(repository.excluded))
    tests = tuple(path for path in match(repository.tests) if path not in excluded)
    sources = tuple(path for path in match(repository.sources) if path not in excluded and path not in tests)
    others = tuple(path for path in commit.paths if path not in tests and path not in sources)
    return Candidate(commit, sources, tests, others)


def _matches(path: str, pattern: str) -> bool:
    """Match like ``Path.glob`` on names of missing files: ``**/`` stands for any number of folders."""
    if "**/" in pattern:
        head, _, tail = pattern.partition("**/")
        if not path.startswith(head):
            return False
        parts = PurePosixPath(path[len(head) :]).parts
        return any(_matches("/".join(parts[start:]), tail) for start in range(len(parts)))
    names, wanted = path.split("/"), pattern.split("/")
    return len(names) == len(wanted) and all(map(fnmatchcase, names, wanted))


def _drop_reason(candidate: Candidate, clone: GitRepository, config: HistoryConfig) -> str:
    commit = candidate.commit
    if not commit.parents:
        return "root_commit"
    if _MAIN_LINE.match(commit.message):
        return "merge_of_the_main_line"
    if not candidate.sources:
        return "no_code"
    if not candidate.tests:
        return "no_tests"
    if len(candidate.sources) > config.max_files:
        return "too_many_files"
    if config.is_any_message:
        return ""
    # Only the merged commits describe the changes of a merge.
    message = commit.message + clone.merged_messages(commit)
    return "" if _FIX.search(message) or LINKED.search(message) else "not_a_fix"


# --- tasks ---------------------------------------------------------------------------------------------------------


async def make_history(package: Repository, context: BuildContext) -> SourceResult:
    """Make `history` tasks of one part of a repository's candidates (see `TaskSource`)."""
    clone = GitRepository.open(package.url, context.store, package.subdirectory)
    miner = CommitMiner(package, context, clone, load_issues(package.issues))
    candidates, dropped = find_candidates(package, clone, context.config.history)
    result = dropped if context.part == 0 else SourceResult()
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
    issues: dict[str, Issue]
    newest: list[NewestState] = field(default_factory=list)
    """The newest commit, once a candidate needed it (`HistoryConfig.base`)."""

    async def make_task(self, candidate: Candidate) -> Task | Drop:
        """Return the task of a commit, or the reason of its drop; the log begins with the commit."""
        outcome = await self._try_commit(candidate)
        if isinstance(outcome, Task):
            return outcome
        return Drop(outcome.reason, f"{_headline(candidate.commit)}\n{outcome.log}".strip())

    async def _try_commit(self, candidate: Candidate) -> Task | Drop:
        try:
            pair = await self._pair(candidate)
        except UnsupportedTreeError as error:
            return Drop(error.reason, str(error))
        except PackageNotFoundError as error:
            return Drop("not_lockable", str(error))
        except TaskError as error:
            return Drop("no_usable_tests", str(error))
        if isinstance(pair, Drop):
            return pair
        stable, _, fixed = await pair.sort_tests()
        if not fixed:
            return Drop("no_fixed_tests", "no test that passes with the commit fails without it in every run")

        outcome = await pair.make_task(whole_fix(pair.older, pair.newer), stable, fixed)
        if not isinstance(outcome, Task):
            return outcome
        change = CommitTexts(candidate.commit, candidate.others, self.repository.changelog)
        text, source = commit_text(change, self.clone, outcome, pair.spec.tree, self.issues)
        proofs = await prove_task(outcome, pair.spec.tree, pair.context.store, pair.context.backend)
        described = describe(outcome, pair.spec.tree, Report(text, source, pair.failures[outcome.id], proofs))
        return of_kinds(described, self.context.config.history.kinds)

    async def _pair(self, candidate: Candidate) -> Pair | Drop:
        """Return the pair of a commit, ready to run, or the reason of its drop."""
        if self.context.config.history.base == "newest":
            if not self.newest:
                self.newest.append(await self._newest_state())
            pair = self.newest[0].without(candidate.commit, candidate.sources)
            return pair if isinstance(pair, Drop) else self._out_of_bounds(whole_fix(pair.older, pair.newer)) or pair
        pinned = self._pin(candidate)
        fix = pinned.fix
        if dropped := self._out_of_bounds(fix):
            return dropped
        if not pinned.changed_tests:
            return Drop("no_tests", "it deletes tests only")
        if unnoticed := await self._unnoticed_log(pinned):
            return Drop("no_fixed_tests", unnoticed)
        return await Pair.set_up(pinned.origin, self.context, pinned.spec, pinned.test_files, fix.older, fix.newer)

    def _out_of_bounds(self, fix: Fix) -> Drop | None:
        """Return the reason of a drop that the difference alone gives."""
        if not any(changes_code(fix.newer, fix.older, hunk) for hunk in fix.hunks):
            return Drop("only_comments")
        if fix.num_lines > self.context.config.history.max_lines:
            return Drop("too_many_lines", f"{fix.num_lines} lines; history.max_lines bounds them")
        return None

    async def _newest_state(self) -> NewestState:
        """Return the newest commit with its whole suite traced."""
        commit = next(self.clone.commits(self.repository.revision))
        origin, spec = self._origin(commit, base="")
        tests, texts = self.repository.test_files(spec.tree), texts_of(self.repository, spec.tree)
        return NewestState(self.clone, await Pair.set_up(origin, self.context, spec, tests, texts, texts))

    def _pin(self, candidate: Candidate) -> _PinnedCommit:
        """Pin tree and environment of a commit."""
        parent = candidate.commit.parents[0]
        origin, spec = self._origin(candidate.commit, parent)
        newer = texts_of(self.repository, spec.tree)
        if unreadable := set(candidate.sources).intersection(self.repository.source_files(spec.tree)) - newer.keys():
            raise UnsupportedTreeError("no_utf8", min(unreadable))
        older = {**newer, **{path: self.clone.text(parent, path) for path in candidate.sources}}
        test_files = self._test_files(candidate, spec.tree)
        changed = tuple(path for path in test_files if path in candidate.tests)
        return _PinnedCommit(origin, spec, whole_fix(older, newer), test_files, changed)

    def _origin(self, commit: Commit, base: str) -> tuple[Origin, SandboxSpec]:
        """Return the origin of bugs whose repaired state is ``commit``, and a sandbox of it."""
        version = self.clone.version(commit.id)
        tree = commit_tree(self.context.store, self.clone, commit.id, self.repository.name, version)
        config = self.context.config.history
        # The registry of npm tells no dates: one lock serves all commits.
        is_dated = config.is_lock_dated and not isinstance(self.repository, NpmRepository)
        lock = (
            commit_lock(self.repository, tree, commit.date)
            if is_dated
            else lock_of(self.repository, self.context.config.locks)
        )
        environment, spec = self.context.pinned_tree(lock, tree)
        provenance = Provenance(
            package=self.repository.name,
            version=version,
            repository=self.repository.url,
            commit=commit.id,
            base_commit=base,
            subdirectory=self.clone.subdirectory,
            licence=license_of(tree),
        )
        labels = {"lock": "dated" if is_dated else "undated"}
        origin = Origin(
            project=self.repository,
            source="history",
            provenance=provenance,
            base_tree=tree.name,
            environment=environment,
            config=config,
            created_at=commit.date,
            labels=labels if config.base == "commit" else {**labels, "base": config.base},
        )
        return origin, spec

    async def _unnoticed_log(self, pinned: _PinnedCommit) -> str:
        """Return the log of the changed test files on the older sources if none fails; empty otherwise.

        One run that excludes most commits.
        """
        spec = pinned.spec.model_copy(update={"files": pinned.fix.broken_files})
        request = self.context.request(self.repository, pinned.changed_tests, self.context.config.suite_timeout_s)
        run = await run_fresh(self.context.backend, spec, request)
        is_noticed = not run.results or any(result.outcome in BROKEN for result in run.results.values())
        return (
            ""
            if is_noticed
            else f"passes without the commit, too: {', '.join(pinned.changed_tests)}\n{run.output_tail}"
        )

    def _test_files(self, candidate: Candidate, tree: Path) -> tuple[str, ...]:
        """Return the changed test files, then others up to the bound."""
        present = self.repository.test_files(tree)
        ranked = sorted(present, key=lambda path: path not in candidate.tests)
        num_changed = sum(path in candidate.tests for path in present)
        return tuple(sorted(ranked[: max(num_changed, self.context.config.history.num_test_files)]))


def commit_lock(repository: Repository, tree: Path, date: str) -> str:
    """Lock the configured test requirements and those of the tree, without uploads after ``date``."""
    requirements = tuple(sorted({*repository.requirements, *declared_requirements(tree)}))
    return resolve_lock(requirements, exclude_newer=date)


def declared_requirements(tree: Path) -> tuple[str, ...]:
    """Return the runtime requirements in ``pyproject.toml`` or ``setup.cfg`` of ``tree``; no project code runs."""
    requirements = read_settings(tree).get("project", {}).get("dependencies", [])
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string((tree / "setup.cfg").read_text(encoding="utf-8"))
        requirements = [*requirements, *parser.get("options", "install_requires", fallback="").splitlines()]
    except (OSError, configparser.Error, UnicodeDecodeError):
        pass
    return tuple(line.strip() for line in requirements if line.strip() and "file:" not in line and "%" not in line)

"""Add a package or a repository to a catalogue: from a name to an entry that `repairgym tasks build` can use.

Reads a package index or a git repository. Makes an `Added` record with the text of a catalogue entry and a lock, and
writes both when asked to. Guarantees: no code of the project runs outside of a sandbox; whatever was fetched or run is
kept in the layer store, so that an interrupted command continues there; a guess has its reason in the entry.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from repairgym.config.tasks import HistoryConfig
from repairgym.errors import TaskError
from repairgym.records import Record, Split
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.adding.entry import add_entry, render_entry
from repairgym.tasks.adding.layout import Layout, find_layout
from repairgym.tasks.adding.release_pairs import choose_release, find_pairs
from repairgym.tasks.adding.suite import Resolver, Suite, SuiteMaker
from repairgym.tasks.adding.trial import Say
from repairgym.tasks.layers.catalogue import Package, Repository
from repairgym.tasks.layers.environments import lock_name, resolve_lock
from repairgym.tasks.layers.package_index import PackageIndex, Sdist
from repairgym.tasks.layers.repositories import GitRepository, commit_tree
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.sources.history import find_candidates

MIN_TESTS = 20
"""A suite with fewer passing tests, or where fewer than half pass, is said to run in part."""


class Added(Record):
    """A project that can be in a catalogue."""

    name: str
    kind: str
    """``package``, ``npm``, ``repository`` or ``npm_repository``."""
    version: str
    """Release, or commit."""
    is_suite_running: bool
    """At least `MIN_TESTS` tests pass, and no fewer than half of all."""
    num_passed: int
    num_failed: int
    num_files: int
    num_files_kept: int
    num_pairs: int = 0
    num_candidates: int = 0
    """Commits of a repository that can be bug fixes."""
    dropped: dict[str, int] = {}
    """Reason -> commits that cannot."""
    requirements: tuple[str, ...]
    plugins: tuple[str, ...]
    problems: tuple[str, ...]
    """Things that could not be done, a sentence each."""
    entry: str
    """Text of the catalogue entry."""
    lock: str
    lock_name: str

    def write(self, catalogue: Path, locks: Path) -> None:
        """Write the lock, then the entry; InputError if the catalogue does not take it."""
        (locks / self.lock_name).parent.mkdir(parents=True, exist_ok=True)
        (locks / self.lock_name).write_text(self.lock, encoding="utf-8")
        add_entry(catalogue, self.entry)


class ReleaseIndex(Protocol):
    """A server that lists the sdists of a package."""

    def sdists(self, name: str) -> tuple[Sdist, ...]:
        """Return its pinned sdists, newest first; PackageNotFoundError for none."""
        ...


@dataclass(frozen=True)
class Adder:
    """Adds projects of both kinds."""

    store: LayerStore
    backend: SandboxBackend
    split: Split
    command: str
    """The command as the user gave it, for the entry."""
    say: Say
    index: ReleaseIndex | None = None
    """Index that lists releases; None: the user's."""
    resolve: Resolver = resolve_lock

    async def package(self, name: str, num_pairs: int) -> Added:
        """Return the newest usable release of ``name`` with at most ``num_pairs`` pairs of releases.

        Raises:
            PackageNotFoundError: the index has no sdist of it.
            TaskError: no sdist holds tests, or none of them passes.
        """
        self.say("asks the index for releases and hashes")
        sdists = (self.index or PackageIndex()).sdists(name)
        chosen = choose_release(sdists, self.store, self.say)
        pairs = find_pairs(chosen, sdists, self.store, num_pairs, self.say)
        maker = SuiteMaker(chosen.tree, name, chosen.layout, self.store, self.backend, self.say, self.resolve)
        suite = await maker.make(sorted(pairs.changed_tests))
        versions = {chosen.sdist.version, *(version for pair in pairs.pairs for version in pair)}
        package = Package(
            **self._fields(name, chosen.layout, suite),
            version=chosen.sdist.version,
            releases=tuple(pairs.pairs),
            sdists={sdist.version: sdist.sha256 for sdist in reversed(sdists) if sdist.version in versions},
        )
        comments = self._comments(suite, chosen.layout.reasons)
        is_newest = package.version == sdists[0].version
        comments["version"] = "the newest release" + ("" if is_newest else " with tests")
        comments["releases"] = f"of {pairs.num_compared} adjacent pairs, those whose sources and tests both changed"
        problems = (*chosen.problems, *pairs.problems, *suite.problems)
        return self._added(package, suite, comments, problems, num_pairs=len(pairs.pairs))

    async def repository(self, url: str, name: str, subdirectory: str) -> Added:
        """Return the newest commit of ``url`` as an entry for `history` and `mutations`.

        Raises:
            InputError: ``url`` is a path without a git repository.
            IndexUnavailableError: it cannot be cloned.
            TaskError: it has no tests, or none of them passes.
        """
        self.say(f"opens {url}")
        clone = GitRepository.open(url, self.store, subdirectory)
        commit = clone.resolve("HEAD")
        name = name or project_name(clone, commit, url)
        tree = commit_tree(self.store, clone, commit, name, clone.version(commit))
        layout = find_layout(tree, name)
        if not layout.tests:
            raise TaskError(f"{name}: no file of {commit[:12]} looks like a test; name its folder with --subdirectory")
        suite = await SuiteMaker(tree, name, layout, self.store, self.backend, self.say, self.resolve).make()
        # A build may start in another folder.
        url = str(Path(url).resolve()) if Path(url).exists() else url
        fields = self._fields(name, layout, suite)
        repository = Repository(**fields, url=url, revision=commit, subdirectory=subdirectory)
        self.say("counts the commits that can be bug fixes")
        candidates, others = find_candidates(repository, clone, HistoryConfig())
        comments = self._comments(suite, layout.reasons)
        comments["revision"] = f"the newest commit; {len(candidates)} commits may be fixes"
        dropped = {reason: count for reason, count in others.funnel.items() if reason != "commits"}
        counts = {"num_candidates": len(candidates), "dropped": dropped}
        return self._added(repository, suite, comments, tuple(suite.problems), **counts)

    def _fields(self, name: str, layout: Layout, suite: Suite) -> dict[str, Any]:
        return {
            "name": name,
            "split": self.split,
            "root": layout.root,
            "sources": layout.sources,
            "tests": layout.tests,
            "excluded": tuple(trial.path for trial in suite.trials if trial.excluded),
            "requirements": suite.requirements,
            "plugins": suite.plugins,
        }

    def _comments(self, suite: Suite, reasons: dict[str, str]) -> dict[str, str]:
        """Return field -> comment."""
        left_out = sum(bool(trial.excluded) for trial in suite.trials)
        comments = {**reasons, "split": "as --split says; all tasks of a package are in one split"}
        comments["tests"] += f"; {suite.num_passed} tests pass, {suite.num_failed} fail"
        if left_out:
            comments["excluded"] = f"{left_out} of {len(suite.trials)} files, for the reasons above"
        if suite.requirements:
            comments["requirements"] = "; ".join(f"{name}: {why}" for name, why in sorted(suite.reasons.items()))
        if suite.plugins:
            comments["plugins"] = "what these requirements register with pytest"
        return comments

    def _added(
        self,
        project: Package | Repository,
        suite: Suite,
        comments: dict[str, str],
        problems: tuple[str, ...],
        **counts: Any,
    ) -> Added:
        """Return the record of ``project``, with its entry as text."""
        return Added(
            name=project.name,
            kind="package" if isinstance(project, Package) else "repository",
            version=project.version if isinstance(project, Package) else project.revision,
            is_suite_running=suite.num_passed >= max(MIN_TESTS, suite.num_failed),
            num_passed=suite.num_passed,
            num_failed=suite.num_failed,
            num_files=len(suite.trials),
            num_files_kept=len(suite.kept),
            requirements=suite.requirements,
            plugins=suite.plugins,
            problems=problems,
            entry=render_entry(project, comments, problems, self.command),
            lock=suite.lock,
            lock_name=lock_name(suite.requirements),
            **counts,
        )


def project_name(clone: GitRepository, commit: str, url: str) -> str:
    """Return the name in the project's settings, else the last part of ``url``."""
    text = clone.plain_text(commit, "pyproject.toml")
    declared = re.search(
        r'^\[(?:project|tool\.poetry)\][^\[]*?^name\s*=\s*["\']([\w.-]+)["\']', text, re.MULTILINE | re.DOTALL
    )
    text = clone.plain_text(commit, "setup.cfg")
    declared = declared or re.search(r"^\[metadata\][^\[]*?^name\s*=\s*([\w.-]+)\s*$", text, re.MULTILINE | re.DOTALL)
    declared = declared or re.search(r"\bname\s*=\s*[\"']([\w.-]+)[\"']", clone.plain_text(commit, "setup.py"))
    return declared.group(1) if declared else url.rstrip("/").rpartition("/")[2].removesuffix(".git")


def looks_like_repository(source: str) -> bool:
    """Return True for a path or URL, False for the name of a package."""
    return "://" in source or "/" in source or source.startswith((".", "~", "git@"))

"""The record of one grading, which grows stage by stage; each stage holds the one before it and is computed once.

    Submission -> Permitted -> Pinned -> Executed -> Judged

Reads a task, the agent's changed files and the pinned tree. Guarantees: records are frozen; a path that leads out of
the tree, or that is no text, counts as absent.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from repairgym.config.pipeline import GradingConfig
from repairgym.diffs.make import unified_diff
from repairgym.grading.permitted import is_protected, permitted_part
from repairgym.records import Finding, StepResult, Task, TestRun, Turn, Verdict

Files = dict[str, str | None]
"""Relative path -> text; None: deleted."""


@dataclass(frozen=True)
class Submission:
    """The changes that an agent delivered."""

    task: Task
    files: Files
    turns: tuple[Turn, ...] = ()
    """The episode's turns, for the detectors that read trajectories."""


@dataclass(frozen=True)
class Permitted:
    """The part of a submission that grading applies."""

    submission: Submission
    files: Files
    """Changed files without the protected ones."""
    findings: tuple[Finding, ...]
    """A note for each protected file that was left out."""

    @cached_property
    def sources(self) -> Files:
        """Files to write over the pinned tree: the broken code with the permitted changes."""
        task = self.submission.task
        broken = {path: text for path, text in task.base_files.items() if not is_protected(task, path)}
        return {**broken, **self.files}


@dataclass(frozen=True)
class Pinned:
    """The pinned texts that grading a submission needs."""

    permitted: Permitted
    tree: Path
    tests: Mapping[str, str]
    """Test files as pinned."""
    base: Mapping[str, str | None]
    """Each changed file, and the broken code, as the agent got it."""
    graded_tests: Mapping[str, str]
    """Test files that run: the pinned ones, or the agent's where the configuration does not restore them."""

    @property
    def task(self) -> Task:
        """The task of the submission."""
        return self.permitted.submission.task

    @cached_property
    def tests_digest(self) -> str:
        """SHA-256 (hex) of the test files that run."""
        return files_digest(self.graded_tests)

    @property
    def patch(self) -> str:
        """The permitted part as a unified diff."""
        files = self.permitted.files
        return unified_diff({path: self.base.get(path) for path in files}, files)


@dataclass(frozen=True)
class Execution:
    """Results of the build and the tests; equal sources share one through a cache."""

    build: tuple[StepResult, ...]
    run: TestRun | None
    """None when a command of the build failed."""


@dataclass(frozen=True)
class Executed:
    """A submission with its findings and the results of its run."""

    pinned: Pinned
    findings: tuple[Finding, ...]
    """Of the detectors and of `permitted_part`."""
    execution: Execution | None = None
    """None when no sandbox could run it."""


@dataclass(frozen=True)
class Judged:
    """A submission with its verdict."""

    executed: Executed
    verdict: Verdict


def permit(submission: Submission, config: GradingConfig) -> Permitted:
    """Return the permitted part of ``submission``; all of it where ``config`` does not restore protected files."""
    if not config.is_protected_restored:
        return Permitted(submission, submission.files, ())
    return Permitted(submission, *permitted_part(submission.task, submission.files))


def pin(permitted: Permitted, tree: Path, config: GradingConfig) -> Pinned:
    """Read the texts of ``tree`` that grading needs."""
    task, files = permitted.submission.task, permitted.submission.files
    tests = {path: text for path in task.test_paths if (text := read_pinned(tree, path)) is not None}
    others = {path: read_pinned(tree, path) for path in files if path not in task.base_files}
    graded = tests
    if not config.is_protected_restored:
        graded = {path: text for path in tests if (text := files.get(path, tests[path])) is not None}
    return Pinned(permitted, tree, tests, {**task.base_files, **others}, graded)


def read_pinned(tree: Path, path: str) -> str | None:
    """Return the text of a file of a pinned tree; None when it is absent, binary or outside."""
    with contextlib.suppress(ValueError, OSError):  # a path that is none, a text that is none
        target = (tree / path).resolve()
        if target.is_relative_to(tree.resolve()) and target.is_file():
            return target.read_bytes().decode()
    return None


@lru_cache(maxsize=4096)
def read_pinned_once(tree: Path, path: str) -> str | None:
    """Return `read_pinned`, from memory where it can: a pinned tree does not change."""
    return read_pinned(tree, path)


def files_digest(files: Mapping[str, str | None]) -> str:
    """Return the SHA-256 (hex) of a set of files."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()

"""What a grading reads from the pinned tree, once.

Reads a pinned tree; makes :class:`Pinned`. Invariant: a path that leads out of the tree, or that is no text, is absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from repairgym.records import Task


@dataclass(frozen=True)
class Pinned:
    """Texts of one task's pinned tree."""

    tree: Path
    tests: Mapping[str, str]
    """Test files that decide: path -> text."""
    base: Mapping[str, str | None]
    """What the agent found at each path that it changed, and the broken code."""

    @cached_property
    def tests_digest(self) -> str:
        """SHA-256 (hex) of the test files."""
        return files_digest(self.tests)


def read_pinned_texts(task: Task, tree: Path, changed: Iterable[str]) -> Pinned:
    """What grading a submission that changed the paths ``changed`` needs."""
    tests = {path: text for path in task.test_paths if (text := read_pinned(tree, path)) is not None}
    others = {path: read_pinned(tree, path) for path in changed if path not in task.base_files}
    return Pinned(tree, tests, {**task.base_files, **others})


def with_own_tests(pinned: Pinned, files: Mapping[str, str | None]) -> Pinned:
    """The same with the agent's versions of the test files, for a grading that does not restore them."""
    tests = {path: files.get(path, text) for path, text in pinned.tests.items()}
    return replace(pinned, tests={path: text for path, text in tests.items() if text is not None})


def read_pinned(tree: Path, path: str) -> str | None:
    """Text of a file of a pinned tree; None when it is absent, binary or outside."""
    target = (tree / path).resolve()
    if not target.is_relative_to(tree.resolve()) or not target.is_file():
        return None
    with contextlib.suppress(UnicodeDecodeError, OSError), target.open(encoding="utf-8", newline="") as file:
        return file.read()
    return None


def files_digest(files: Mapping[str, str | None]) -> str:
    """SHA-256 (hex) of a set of files."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()

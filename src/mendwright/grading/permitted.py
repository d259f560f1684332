"""Which part of a submission is graded: everything but the files that decide the verdict.

Reads the agent's changed files; makes the permitted part and a finding per file that is left out. Invariant: a
protected file of the graded tree always comes from the pinned tree (design decision 4).
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import PurePosixPath

from mendwright.records import Finding, Task

PROTECTED_NAMES = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "noxfile.py",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "Makefile",
    "*.lock",
    "requirements*.txt",
    ".coveragerc",
    "ruff.toml",
    "mypy.ini",
)
PROTECTED_FOLDERS = frozenset({".github", ".git", ".dist", "test", "tests", "testing"})


def is_protected(task: Task, path: str) -> bool:
    """True when grading restores ``path`` from the pinned tree."""
    pure = PurePosixPath(path)
    return (
        path in task.test_paths
        or bool(PROTECTED_FOLDERS & set(pure.parts[:-1]))
        or pure.name.startswith("test_")
        or pure.name.endswith("_test.py")
        or any(fnmatch(pure.name, pattern) for pattern in PROTECTED_NAMES)
    )


def permitted_part(task: Task, files: dict[str, str | None]) -> tuple[dict[str, str | None], tuple[Finding, ...]]:
    """The files that grading applies, and a finding for each one that it does not."""
    kept = {path: text for path, text in files.items() if not is_protected(task, path)}
    findings = tuple(
        Finding(detector="protected_file", severity="suspicious", path=path, detail="change not applied: restored")
        for path in files
        if path not in kept
    )
    return kept, findings


def agent_base_sources(task: Task) -> dict[str, str | None]:
    """`base_files` without protected files: the broken code on which a submission is applied."""
    return {path: text for path, text in task.base_files.items() if not is_protected(task, path)}

"""The record of a task as other systems exchange it: no layers of this machine, no certificate.

Reads nothing; makes `UnbuiltTask` records (``unbuilt.jsonl`` of a task folder). Invariants: what an imported record
said is all in it (known things in named fields, the rest in `extra`), and `missing` says in words what keeps it from
being a certified `records.Task`.
"""

from __future__ import annotations

from typing import Any, Literal

from repairgym.records import SCHEMA_VERSION, Record, Split

FormatName = Literal[
    "swe_bench",
    "swe_rebench",
    "swe_rebench_v2",
    "swe_smith",
    "swe_gym",
    "r2e_gym",
    "multi_swe",
    "swe_bench_5",
    "harbor",
]


class UnbuiltTask(Record):
    """A task without an environment here; empty texts mean that the record did not say."""

    schema_version: int = SCHEMA_VERSION
    id: str
    format: FormatName
    """The exchange format that it was read from, or is meant for."""
    repository: str = ""
    """``owner/name`` where the owner is known."""
    base_commit: str = ""
    """Commit whose tree, with `bug_patch` applied, is the agent's base."""
    version: str = ""
    issue: str = ""
    hints: str = ""
    gold_patch: str = ""
    """From the agent's base to the repaired code, tests left out."""
    bug_patch: str = ""
    """From `base_commit` to the agent's base, where the bug was put in (SWE-smith)."""
    test_patch: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    created_at: str = ""
    """RFC 3339 where the record had a time."""
    language: str = ""
    license: str = ""
    image: str = ""
    """Container image in which the record's makers ran the tests."""
    python: str = ""
    lock: str = ""
    """Versions of the environment, as `pip freeze` writes them; without hashes."""
    build: tuple[str, ...] = ()
    """Shell commands that install the repository."""
    test_command: str = ""
    split: Split | None = None
    quality_scores: dict[str, float] = {}
    """Scores that a language model gave the record, by name."""
    labels: dict[str, str] = {}
    base_tree: str = ""
    """Git tree of `base_commit`, where a clone was given."""
    base_files: dict[str, str | None] = {}
    """Relative path -> text in the agent's base of every file that a patch touches (None: absent)."""
    gold_files: dict[str, str | None] = {}
    pin_error: str = ""
    """Why `base_files` could not be taken from the clone."""
    extra: dict[str, Any] = {}
    """Fields of the record that nothing above can reproduce."""
    absent: tuple[str, ...] = ()
    """Fields of the format that the record did not have."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing before this can be a certified task, one sentence part each."""
        parts = []
        if not self.issue.strip():
            parts.append("an issue text")
        if not self.gold_patch:
            parts.append("a gold patch (the record has none)")
        if not self.fail_to_pass:
            parts.append("the tests that fail before the repair (the record names none)")
        if not self.base_files:
            where = f"commit {self.base_commit} of {self.repository}" if self.base_commit else "no commit is named"
            parts.append(f"the base files ({self.pin_error or f'{where}; give a clone with --repos'})")
        parts.append(f"an environment layer with hashes ({self._environment()})")
        parts.append("a certificate: nothing was run here")
        return tuple(parts)

    def _environment(self) -> str:
        if self.lock:
            return "the record has versions without hashes"
        return f"the record names the image {self.image}" if self.image else "the record names none"

"""Imported tasks: the records of other systems, without layers of this machine and without a certificate.

Reads nothing. Makes `UnbuiltTask` records (``unbuilt.jsonl`` of a task folder). Guarantees: the record keeps every
imported field (known ones by name, the rest in `extra`); `missing` names what separates it from a certified
`records.Task`.
"""

from typing import Any, Literal

from repairgym.records import SCHEMA_VERSION, Record, Split

RowFormat = Literal["swe_bench", "swe_rebench", "swe_rebench_v2", "swe_smith", "swe_gym", "r2e_gym", "multi_swe"]
FormatName = Literal[RowFormat, "swe_bench_5", "harbor"]


class UnbuiltTask(Record):
    """A task without an environment; an empty text means that the record has none."""

    schema_version: int = SCHEMA_VERSION
    id: str
    format: FormatName
    """Exchange format of its origin or its target."""
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
    """From `base_commit` to the agent's base, for inserted bugs (SWE-smith)."""
    test_patch: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    created_at: str = ""
    """RFC 3339 where the record had a time."""
    language: str = ""
    license: str = ""
    image: str = ""
    """Container image for the tests, from the record."""
    python: str = ""
    lock: str = ""
    """Versions of the environment, as `pip freeze` writes them; without hashes."""
    build: tuple[str, ...] = ()
    """Shell commands that install the repository."""
    test_command: str = ""
    split: Split | None = None
    quality_scores: dict[str, float] = {}
    """Scores of the record from a language model, by name."""
    labels: dict[str, str] = {}
    base_tree: str = ""
    """Git tree of `base_commit`, where a clone was given."""
    base_files: dict[str, str | None] = {}
    """Relative path -> text in the agent's base of every file that a patch touches (None: absent)."""
    gold_files: dict[str, str | None] = {}
    pin_error: str = ""
    """Reason for missing `base_files`."""
    extra: dict[str, Any] = {}
    """Fields of the record that the fields above cannot reproduce."""
    absent: tuple[str, ...] = ()
    """Fields of the format that the record lacks."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Missing parts of a certified task, one phrase each."""
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

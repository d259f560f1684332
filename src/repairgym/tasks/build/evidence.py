"""What the runs of a verification showed of one task, as `repairgym tasks verify --evidence` writes it.

Reads the runs behind a certificate; makes `TaskEvidence` records, one line each in a file. Invariants: the digest says
of which state of the task; a file that a killed command left is read up to its last whole line, and goes on from
there.
"""

from __future__ import annotations

from pathlib import Path

from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.records import Certificate, Record, Task, TestOutcome
from repairgym.tasks.build.validation import Evidence


class TaskEvidence(Record):
    """One task's runs, in short."""

    task_id: str
    task_digest: str
    num_empty_runs: int
    num_empty_failed: int
    num_gold_runs: int
    num_gold_passed: int
    unstable_tests: tuple[str, ...]
    empty_duration_s: float
    """Mean over the empty runs: what a first build with its tests takes."""
    gold_duration_s: float
    failures: dict[str, str]
    """Failing test -> first line of its failure in the first empty run."""


def summarise_evidence(task: Task, evidence: Evidence, certificate: Certificate) -> TaskEvidence:
    """The short form of ``evidence``, from which ``certificate`` of ``task`` was made."""
    first = evidence.empty[0]
    is_failure = (TestOutcome.FAILED, TestOutcome.ERROR)
    return TaskEvidence(
        task_id=task.id,
        task_digest=task.digest(),
        **certificate.model_dump(exclude={"tool_versions"}),
        failures={i: first.results[i].message for i in task.fail_to_pass if first.outcome(i) in is_failure},
    )


class EvidenceFile:
    """Evidence in a file of JSON lines; of several lines of one task the last counts."""

    def __init__(self, path: Path) -> None:
        """Use ``path``, which need not exist yet."""
        self._path = path

    def load(self) -> dict[str, TaskEvidence]:
        """Evidence by task id; empty when there is no file.

        Raises:
            InputError: the file cannot be read, or a whole line is broken.
        """
        found = {}
        for number, line in enumerate(self._whole_lines(), 1):
            try:
                evidence = TaskEvidence.model_validate_json(line)
            except ValueError as error:
                raise InputError(
                    f"{self._path} line {number} is no evidence: {error}; verify the tasks again"
                ) from error
            found[evidence.task_id] = evidence
        return found

    def _whole_lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        try:
            return self._path.read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise InputError(f"cannot read the evidence {self._path}: {error.strerror}") from error

    def add(self, evidence: TaskEvidence) -> None:
        """Append one line.

        Raises:
            DiskFullError: no room; the lines before are intact.
        """
        with disk_full_as_repairgym_error(self._path):
            num_whole = sum(len(line) + 1 for line in self._whole_lines())
            with self._path.open("ab") as stream:
                # What a killed command left of a line.
                stream.truncate(num_whole)
                stream.write(evidence.model_dump_json().encode() + b"\n")

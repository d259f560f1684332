"""Results of audits: the file that an interrupted audit resumes from, and counts by package, source and kind.

Reads and writes ``audit.jsonl``, one `TaskAudit` per line. Guarantees: a result is used only for the task and bounds
that it was made with.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from repairgym.records import Record, Task
from repairgym.tasks.audit.audit import TaskAudit
from repairgym.tasks.record_lines import RecordLines

AUDIT_FILE = "audit.jsonl"


def audit_lines(path: Path) -> RecordLines[TaskAudit]:
    """Return the audits in a file, by their keys."""
    return RecordLines(path, TaskAudit, lambda audit: audit.key, "remove it and audit the tasks again")


class AuditCounts(Record):
    """Counts of the variants of a group of tasks."""

    group: str
    num_tasks: int
    num_without_pass_to_pass: int
    num_refuted: int
    num_refutable: int
    """Surviving variants that the suite or a probe refutes: false accepts."""
    num_unknown: int
    num_untried: int
    num_accepted: int
    num_rejected: int
    """Rewrites that the task's tests refute: false rejects."""


def count_by(audits: Iterable[TaskAudit], group_of: Callable[[TaskAudit], str]) -> list[AuditCounts]:
    """Return the counts of each group, by name."""
    groups: dict[str, list[TaskAudit]] = defaultdict(list)
    for audit in audits:
        groups[group_of(audit)].append(audit)
    return [_counts(name, members) for name, members in sorted(groups.items())]


def count_by_kind(audits: Iterable[TaskAudit]) -> list[AuditCounts]:
    """Return the counts of each kind of variant."""
    kinds: dict[str, list[TaskAudit]] = defaultdict(list)
    for audit in audits:
        for kind in sorted({outcome.kind for outcome in audit.outcomes}):
            own = tuple(outcome for outcome in audit.outcomes if outcome.kind == kind)
            kinds[kind].append(audit.model_copy(update={"outcomes": own}))
    return [_counts(name, members) for name, members in sorted(kinds.items())]


def _counts(name: str, audits: Iterable[TaskAudit]) -> AuditCounts:
    members = list(audits)
    totals = Counter(outcome.status for audit in members for outcome in audit.outcomes)
    return AuditCounts(
        group=name,
        num_tasks=len(members),
        num_without_pass_to_pass=sum(not audit.num_pass_to_pass for audit in members),
        num_refuted=totals["refuted"],
        num_refutable=totals["refutable"],
        num_unknown=totals["unknown"],
        num_untried=totals["untried"],
        num_accepted=totals["accepted"],
        num_rejected=totals["rejected"],
    )


def with_accuracy(tasks: Iterable[Task], audits: Mapping[str, TaskAudit]) -> list[Task]:
    """Return ``tasks``, those with an audit (by task id) with its counts in their certificates."""
    better = []
    for task in tasks:
        if audit := audits.get(task.id):
            certificate = task.certificate.model_copy(update={"accuracy": audit.accuracy})
            task = task.model_copy(update={"certificate": certificate})
        better.append(task)
    return better

"""Results of audits: the file that an interrupted audit resumes from, and counts by package, source and kind.

Reads and writes ``audit.jsonl``, one `TaskAudit` per line. Guarantees: a result is used only for the task and bounds
that it was made with.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from repairgym.records import Record, Task
from repairgym.tasks.audit.audit import TaskAudit
from repairgym.tasks.audit.variants import GROUPS
from repairgym.tasks.record_lines import RecordLines

AUDIT_FILE = "audit.jsonl"
_WRONG = GROUPS.keys() - {"rewrite"}


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
    num_unprobed: int
    """Of the unknown ones, those without a probe: other languages than Python, builds, code that no test calls."""
    num_untried: int
    num_accepted: int
    num_rejected: int
    """Rewrites that the task's tests refute: false rejects."""
    num_lacking: int
    """Tasks without a variant of the kind; in counts of all kinds, without any wrong variant or without any rewrite."""


def count_by(audits: Iterable[TaskAudit], group_of: Callable[[TaskAudit], str]) -> list[AuditCounts]:
    """Return the counts of each group, by name."""
    groups: dict[str, list[TaskAudit]] = defaultdict(list)
    for audit in audits:
        groups[group_of(audit)].append(audit)
    return [_counts(name, members) for name, members in sorted(groups.items())]


def count_by_kind(audits: Iterable[TaskAudit]) -> list[AuditCounts]:
    """Return the counts of each kind of variant; of a group of kinds that a task lacks, the first tells so."""
    kinds: dict[str, list[TaskAudit]] = defaultdict(list)
    lacking: Counter[str] = Counter()
    for audit in audits:
        lacking.update(GROUPS[group][0] for group in audit.lacking)
        for kind in sorted({outcome.kind for outcome in audit.outcomes}):
            own = tuple(outcome for outcome in audit.outcomes if outcome.kind == kind)
            kinds[kind].append(audit.model_copy(update={"outcomes": own}))
    rows = {name: _counts(name, kinds[name]) for name in sorted({*kinds, *lacking})}
    return [row.model_copy(update={"num_lacking": lacking[name]}) for name, row in rows.items()]


def _counts(name: str, audits: Iterable[TaskAudit]) -> AuditCounts:
    members = list(audits)
    outcomes = [outcome for audit in members for outcome in audit.outcomes]
    totals = Counter(outcome.status for outcome in outcomes)
    return AuditCounts(
        group=name,
        num_tasks=len(members),
        num_without_pass_to_pass=sum(not audit.num_pass_to_pass for audit in members),
        num_refuted=totals["refuted"],
        num_refutable=totals["refutable"],
        num_unknown=totals["unknown"],
        num_unprobed=sum(outcome.status == "unknown" and not outcome.is_probed for outcome in outcomes),
        num_untried=totals["untried"],
        num_accepted=totals["accepted"],
        num_rejected=totals["rejected"],
        num_lacking=sum("rewrite" in audit.lacking or set(audit.lacking) >= _WRONG for audit in members),
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

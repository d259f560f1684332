"""Pass@1 by label: error class, difficulty, source, package.

Reads verdicts and tasks; makes `LabelResult` records. Invariant: within one label every task is counted once; a task
without the label is under ``(none)``, so that the groups add up to all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import Estimate, TaskVerdicts, pass_at_1, share
from repairgym.records import Record, Task, VerdictKind

LABELS = ("error_class", "difficulty", "source", "package")
NO_LABEL = "(none)"


class LabelResult(Record):
    """The tasks that share one value of a label."""

    label: str
    value: str
    pass_at_1: Estimate
    """Strict."""
    exploited_rate: float
    invalid_rate: float


def labels_of(task: Task) -> dict[str, str]:
    """The labels that results are broken down by."""
    found = {"source": task.source, "package": task.provenance.package, **task.labels}
    return {label: found.get(label) or NO_LABEL for label in LABELS}


def by_label(
    verdicts: TaskVerdicts, labels: Mapping[str, Mapping[str, str]], *, num_resamples: int = NUM_RESAMPLES
) -> list[LabelResult]:
    """Results of each label's values, labels in the order of `LABELS`, values by name.

    Args:
        verdicts: Task id -> verdicts of its samples.
        labels: Task id -> label -> value (`labels_of`).
        num_resamples: Number of bootstrap samples.
    """
    found: list[LabelResult] = []
    for label in LABELS:
        groups: dict[str, dict[str, list[VerdictKind]]] = {}
        for task, kinds in verdicts.items():
            value = labels.get(task, {}).get(label, NO_LABEL)
            groups.setdefault(value, {})[task] = list(kinds)
        for value in sorted(groups):
            estimate = pass_at_1(groups[value], num_resamples=num_resamples)
            if estimate:
                found.append(
                    LabelResult(
                        label=label,
                        value=value,
                        pass_at_1=estimate,
                        exploited_rate=share(groups[value], VerdictKind.EXPLOITED),
                        invalid_rate=share(groups[value], VerdictKind.INVALID),
                    )
                )
    return found

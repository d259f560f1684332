"""Pass@1 and Pass@k with their uncertainty, and the rates of exact match, exploits and invalid verdicts.

Reads the verdicts of each task's samples in the order of their seeds; makes estimates, also by label (error class,
difficulty, source, package). Guarantees: *strict* counts an invalid or exploited sample as not passed; *without
invalids* leaves invalid samples out; a number without samples is None, never 0 or 1; the groups of a label add up to
all tasks.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from repairgym.evaluation.bootstrap import NUM_RESAMPLES, bootstrap_spread
from repairgym.records import Record, Task, VerdictKind
from repairgym.rollout.rows import TrajectoryRow

TaskVerdicts = Mapping[str, Sequence[VerdictKind]]
"""Task id -> verdicts of its samples, by seed."""


class Estimate(Record):
    """A mean of per-task success rates."""

    value: float
    standard_error: float
    """Of the mean over resampled tasks (bootstrap): covers tasks and samples."""
    ci_low: float
    ci_high: float
    """95 % interval, bootstrap over tasks."""
    standard_error_runs: float | None
    """Standard error over runs on these same tasks (paper B, Table 1: mean of 10 runs ± SEM); run r is the r-th sample
    of each task. Covers sampling only. None with fewer than two runs."""
    num_tasks: int
    num_samples: int


class PassAtK(Record):
    """Unbiased Pass@k and pass^k."""

    k: int
    value: float | None
    """Pass@k: at least one of k samples passes. None when no task has k samples."""
    all_value: float | None = None
    """pass^k: all of k samples pass (tau-bench, arXiv 2406.12045, section 3)."""
    num_tasks: int
    """Tasks with at least k samples; the mean is over these."""


def rows_by_task(rows: Iterable[TrajectoryRow]) -> dict[str, list[TrajectoryRow]]:
    """Group samples by task, ordered by seed, then id."""
    by_task: dict[str, list[TrajectoryRow]] = {}
    for row in sorted(rows, key=lambda row: (row.task_id, row.seed, row.id)):
        by_task.setdefault(row.task_id, []).append(row)
    return by_task


def verdicts_by_task(rows: Iterable[TrajectoryRow]) -> dict[str, list[VerdictKind]]:
    """Return the verdicts of `rows_by_task`."""
    return {task: [row.verdict for row in samples] for task, samples in rows_by_task(rows).items()}


def without_invalids(verdicts: TaskVerdicts) -> TaskVerdicts:
    """Return the verdicts without invalid samples, and without tasks that have no other sample."""
    valid = {task: [kind for kind in kinds if kind != VerdictKind.INVALID] for task, kinds in verdicts.items()}
    return {task: kinds for task, kinds in valid.items() if kinds}


def success_rates(verdicts: TaskVerdicts) -> dict[str, float]:
    """Return the share of each task's samples that passed."""
    return {task: num_passed(kinds) / len(kinds) for task, kinds in verdicts.items() if kinds}


def num_passed(kinds: Sequence[VerdictKind]) -> int:
    """Count the passed samples."""
    return sum(kind is VerdictKind.PASSED for kind in kinds)


def sample_noise(kinds: Sequence[VerdictKind]) -> tuple[float, float] | None:
    """Return the unbiased variance of a task's sample and that of the mean of all; None with one sample."""
    num = len(kinds)
    if num < 2:
        return None
    rate = num_passed(kinds) / num
    variance = rate * (1.0 - rate) * num / (num - 1)
    return variance, variance / num


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float | None:
    """Return Pass@k of one task: ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, section 2.1).

    None (unscored) when there are fewer than k samples.

    Raises:
        ValueError: k is not positive, or more samples are correct than there are.
    """
    if k < 1 or not 0 <= num_correct <= num_samples:
        raise ValueError(f"got n={num_samples}, c={num_correct}, k={k}; expected k >= 1 and 0 <= c <= n")
    if num_samples < k:
        return None
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_hat_k(num_samples: int, num_correct: int, k: int) -> float | None:
    """Return pass^k of one task: ``C(c, k) / C(n, k)``; None (unscored) when there are fewer than k samples."""
    any_wrong = pass_at_k(num_samples, num_samples - num_correct, k)
    return None if any_wrong is None else 1.0 - any_wrong


def mean_pass_at_k(verdicts: TaskVerdicts, k: int) -> PassAtK:
    """Return the means of :func:`pass_at_k` and :func:`pass_hat_k` over the tasks with k samples."""
    counts = [(len(kinds), num_passed(kinds)) for kinds in verdicts.values() if len(kinds) >= k]
    any_of, all_of = ([score(*count, k) or 0.0 for count in counts] for score in (pass_at_k, pass_hat_k))
    return PassAtK(
        k=k,
        value=statistics.fmean(any_of) if counts else None,
        all_value=statistics.fmean(all_of) if counts else None,
        num_tasks=len(counts),
    )


def pass_at_1(verdicts: TaskVerdicts, *, num_resamples: int = NUM_RESAMPLES) -> Estimate | None:
    """Return the mean success rate over tasks; strict unless the caller removed invalids. None without tasks."""
    rates = success_rates(verdicts)
    if not rates:
        return None
    values = [rates[task] for task in sorted(rates)]
    return Estimate(
        value=statistics.fmean(values),
        **bootstrap_spread(values, bounds=(0.0, 1.0), num_resamples=num_resamples).model_dump(),
        standard_error_runs=standard_error_over_runs(verdicts),
        num_tasks=len(values),
        num_samples=sum(len(kinds) for kinds in verdicts.values()),
    )


def standard_error_over_runs(verdicts: TaskVerdicts) -> float | None:
    """Return the standard deviation of the run means over the root of their number (paper B, Table 1).

    There are as many runs as every task has samples; None when fewer than two.
    """
    num_runs = min((len(kinds) for kinds in verdicts.values()), default=0)
    if num_runs < 2:
        return None
    means = [
        statistics.fmean(kinds[run] is VerdictKind.PASSED for kinds in verdicts.values()) for run in range(num_runs)
    ]
    return statistics.stdev(means) / math.sqrt(num_runs)


def share(verdicts: TaskVerdicts, kind: VerdictKind) -> float:
    """Return the share of all samples with this verdict; 0 without samples."""
    kinds = [verdict for samples in verdicts.values() for verdict in samples]
    return sum(verdict is kind for verdict in kinds) / len(kinds) if kinds else 0.0


def exact_match_rate(rows: Iterable[TrajectoryRow]) -> float | None:
    """Return the share of samples that restore the original source, mean over tasks; invalids count as not.

    None when the grader compared no sample with the source.
    """
    restored = [[row.is_restored for row in samples] for samples in rows_by_task(rows).values()]
    if all(value is None for values in restored for value in values):
        return None
    return statistics.fmean(values.count(True) / len(values) for values in restored)


LABELS = ("error_class", "difficulty", "source", "package")
NO_LABEL = "(none)"


class LabelResult(Record):
    """Result of the tasks with one value of a label."""

    label: str
    value: str
    pass_at_1: Estimate
    """Strict."""
    exploited_rate: float
    invalid_rate: float


def labels_of(task: Task) -> dict[str, str]:
    """Return the labels of a task for the breakdown."""
    values = {"source": task.source, "package": task.provenance.package, **task.labels}
    return {label: values.get(label) or NO_LABEL for label in LABELS}


def by_label(
    verdicts: TaskVerdicts, labels: Mapping[str, Mapping[str, str]], *, num_resamples: int = NUM_RESAMPLES
) -> list[LabelResult]:
    """Return the results of each label value, labels in the order of `LABELS`, values by name.

    ``labels`` is task id -> label -> value (`labels_of`).
    """
    results: list[LabelResult] = []
    for label in LABELS:
        groups: dict[str, dict[str, Sequence[VerdictKind]]] = {}
        for task, kinds in verdicts.items():
            groups.setdefault(labels.get(task, {}).get(label, NO_LABEL), {})[task] = kinds
        for value, members in sorted(groups.items()):
            if estimate := pass_at_1(members, num_resamples=num_resamples):
                exploited, invalid = (share(members, kind) for kind in (VerdictKind.EXPLOITED, VerdictKind.INVALID))
                results.append(
                    LabelResult(
                        label=label, value=value, pass_at_1=estimate, exploited_rate=exploited, invalid_rate=invalid
                    )
                )
    return results

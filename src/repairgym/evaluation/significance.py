"""Paired comparison of two policies on the same tasks.

Reads two policies' verdicts; makes a comparison over their common tasks. Guarantees: tasks, not samples, are the unit;
the sentence claims a difference only when the 95 % interval excludes zero. The interval covers the choice of tasks and
the noise of sampling, not the variation between training runs.
"""

import math
import statistics
from collections.abc import Mapping

from repairgym.evaluation.bootstrap import NUM_RESAMPLES, Spread, bootstrap_spread
from repairgym.evaluation.pass_at_k import TaskVerdicts, num_passed, success_rates, without_invalids
from repairgym.evaluation.stages import label_of_test_set, stage_label
from repairgym.records import Record


class Comparison(Record):
    """Difference of mean per-task success rates, treatment minus reference, strict (invalid = not passed)."""

    treatment: str
    reference: str
    test_set: str
    num_tasks: int
    num_treatment_samples: int
    num_reference_samples: int
    treatment_value: float
    reference_value: float
    difference: float
    standard_error: float
    ci_low: float
    ci_high: float
    """95 % interval, paired bootstrap over tasks."""
    difference_without_invalids: float | None
    num_clusters: int | None = None
    cluster_ci_low: float | None = None
    cluster_ci_high: float | None = None
    """95 % interval over resampled clusters (packages): transfer of the gain to other packages."""
    mcnemar_p: float | None = None
    """Exact two-sided p of McNemar's test; None unless each task has one sample on both sides."""
    sentence: str

    @property
    def is_clear(self) -> bool:
        """True when the 95 % interval excludes zero."""
        return self.ci_low > 0.0 or self.ci_high < 0.0


def compare(
    treatment: TaskVerdicts,
    reference: TaskVerdicts,
    *,
    names: tuple[str, str],
    test_set: str,
    clusters: Mapping[str, str] | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> Comparison | None:
    """Compare on the common tasks; None without any.

    ``names`` are those of treatment and reference; ``clusters`` is task id -> cluster (package), used when each common
    task has one and there are two or more.
    """
    tasks = sorted(task for task in treatment.keys() & reference.keys() if treatment[task] and reference[task])
    if not tasks:
        return None
    left, right = {task: treatment[task] for task in tasks}, {task: reference[task] for task in tasks}
    differences = paired_differences(left, right)
    values = list(differences.values())
    difference = statistics.fmean(values)
    spread = bootstrap_spread(values, bounds=(-1.0, 1.0), num_resamples=num_resamples)
    return Comparison(
        treatment=names[0],
        reference=names[1],
        test_set=test_set,
        num_tasks=len(tasks),
        num_treatment_samples=sum(map(len, left.values())),
        num_reference_samples=sum(map(len, right.values())),
        treatment_value=statistics.fmean(success_rates(left).values()),
        reference_value=statistics.fmean(success_rates(right).values()),
        difference=difference,
        **spread.model_dump(),
        difference_without_invalids=_valid_difference(left, right),
        mcnemar_p=_mcnemar(left, right),
        sentence=_sentence(names, difference, spread, f"{len(tasks)} {label_of_test_set(test_set)}"),
        **_clustered(differences, clusters or {}, num_resamples),
    )


def paired_differences(left: TaskVerdicts, right: TaskVerdicts) -> dict[str, float]:
    """Return, by task id, the success rate of ``left`` minus that of ``right`` for each common task."""
    rates = success_rates(left), success_rates(right)
    return {task: rates[0][task] - rates[1][task] for task in sorted(rates[0].keys() & rates[1].keys())}


def _sentence(names: tuple[str, str], difference: float, spread: Spread, place: str) -> str:
    """Return a sentence that claims a difference only when the interval excludes zero."""
    treatment, reference = stage_label(names[0]), stage_label(names[1])
    interval = f"95 % interval {signed_points(spread.ci_low)} to {signed_points(spread.ci_high)}"
    tail = f"on {place} ({signed_points(difference)} points, {interval})."
    if spread.ci_low > 0.0:
        return f"{treatment} solves more than {reference} {tail}"
    if spread.ci_high < 0.0:
        return f"{treatment} solves less than {reference} {tail}"
    return f"No clear difference between {treatment} and {reference} {tail}"


def signed_points(value: float) -> str:
    """Format 0.135 as ``+13.5``, with a true minus sign."""
    return f"{100 * value:+.1f}".replace("-", "−")


def mcnemar_exact(num_only_left: int, num_only_right: int) -> float:
    """Return the two-sided exact p of McNemar's test: discordant pairs are a fair coin (McNemar 1947).

    The arguments count the tasks that only the first and only the second policy solved.
    """
    num_discordant = num_only_left + num_only_right
    fewer = min(num_only_left, num_only_right)
    tail = float(sum(math.comb(num_discordant, i) for i in range(fewer + 1)) / 2**num_discordant)
    return min(1.0, 2.0 * tail)


def _mcnemar(left: TaskVerdicts, right: TaskVerdicts) -> float | None:
    if any(len(kinds) != 1 for side in (left, right) for kinds in side.values()):
        return None
    pairs = [(num_passed(left[task]), num_passed(right[task])) for task in left]
    return mcnemar_exact(pairs.count((1, 0)), pairs.count((0, 1)))


def _valid_difference(left: TaskVerdicts, right: TaskVerdicts) -> float | None:
    differences = paired_differences(without_invalids(left), without_invalids(right))
    return statistics.fmean(differences.values()) if differences else None


def _clustered(differences: Mapping[str, float], clusters: Mapping[str, str], num_resamples: int) -> dict[str, float]:
    labels = [clusters[task] for task in differences if task in clusters]
    if len(labels) < len(differences) or len(set(labels)) < 2:
        return {}
    values = list(differences.values())
    spread = bootstrap_spread(values, bounds=(-1.0, 1.0), clusters=labels, num_resamples=num_resamples)
    return {"num_clusters": len(set(labels)), "cluster_ci_low": spread.ci_low, "cluster_ci_high": spread.ci_high}

"""Power of a comparison of two policies: the variance of a pilot, and the power of studies of other sizes.

Reads verdicts of a pilot: one policy, or two on the same tasks. Makes the variance between tasks and of samples, the
smallest difference that a planned study detects, and the tasks that a difference needs. Guarantees: tasks are the
unit, as in `significance`; variances are unbiased (moments) and never below zero; a pilot with one sample per task is
planned with one sample per task only, because its two kinds of variance cannot be distinguished.
"""

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

from scipy.special import stdtrit

from repairgym.errors import InputError
from repairgym.evaluation.pass_at_k import TaskVerdicts, sample_noise, success_rates
from repairgym.records import Record

_LEVEL = 0.95
_MAX_TASKS = 1_000_000
DEFAULT_CORRELATION = 0.8
"""Of the rates of two policies over tasks, where one has not been evaluated."""


class Variance(Record):
    """Variance of a policy's success on a task, or of a difference of two, in its two parts."""

    num_tasks: int
    between_tasks: float
    """Of the rates, or of their differences, that tasks would show with endless samples each."""
    of_a_sample: float | None
    """Mean over tasks of one sample around its task's rate; of both policies together for a difference. None: some task
    has one sample only, and `between_tasks` holds both parts."""

    @property
    def share_between_tasks(self) -> float | None:
        """Share of the variance of a single sample that lies between tasks: what more samples cannot reduce."""
        if self.of_a_sample is None:
            return None
        total = self.between_tasks + self.of_a_sample
        return self.between_tasks / total if total else 0.0


class PlannedStudy(Record):
    """A paired comparison on ``num_tasks`` tasks with ``num_samples`` samples of each policy per task."""

    num_tasks: int
    num_samples: int
    standard_error: float
    detectable_difference: float
    """Smallest true difference that is seen with the power asked for, in rates; two-sided 95 % interval."""
    power: float | None = None
    """Probability to see the difference asked for."""

    @property
    def num_episodes(self) -> int:
        """Episodes of both policies."""
        return 2 * self.num_tasks * self.num_samples


def variance_of(verdicts: TaskVerdicts) -> Variance:
    """Split the variance of one policy's success; `InputError` with fewer than two tasks."""
    rates = success_rates(verdicts)
    return _split(list(rates.values()), [sample_noise(verdicts[task]) for task in rates])


def variance_of_difference(left: TaskVerdicts, right: TaskVerdicts) -> Variance:
    """Split the variance of the difference of two policies on their common tasks."""
    rates = success_rates(left), success_rates(right)
    tasks = sorted(rates[0].keys() & rates[1].keys())
    differences = [rates[0][task] - rates[1][task] for task in tasks]
    noises: list[tuple[float, float] | None] = []
    for task in tasks:
        parts = sample_noise(left[task]), sample_noise(right[task])
        noises.append(None if None in parts else (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]))  # type: ignore[index]
    return _split(differences, noises)


def assumed_difference(pilot: Variance, correlation: float) -> Variance:
    """Return the variance of a difference to a policy like that of the pilot, whose rates correlate with its own.

    With one sample per task its samples cannot be told from its rates, so that nothing is taken off for a correlation.
    """
    return Variance(
        num_tasks=pilot.num_tasks,
        between_tasks=2.0 * pilot.between_tasks * (1.0 - (0.0 if pilot.of_a_sample is None else correlation)),
        of_a_sample=None if pilot.of_a_sample is None else 2.0 * pilot.of_a_sample,
    )


def pilot_difference(
    pilot: TaskVerdicts, reference: TaskVerdicts | None, correlation: float | None
) -> tuple[Variance, str]:
    """Return the variance of a difference, measured or assumed, and which of both in words.

    Raises:
        InputError: a correlation is given that has no use here, or the pilot has fewer than two tasks.
    """
    is_needless = correlation is not None
    if reference is not None:
        variance, words = variance_of_difference(pilot, reference), "measured on both policies"
    elif (of_pilot := variance_of(pilot)).of_a_sample is None:
        variance = assumed_difference(of_pilot, 0.0)
        words = "assumed: the policies do not correlate (one sample per task shows no rates)"
    else:
        share, is_needless = DEFAULT_CORRELATION if correlation is None else correlation, False
        variance = assumed_difference(of_pilot, share)
        words = f"assumed: rates of the policies correlate by {share:g}"
    if is_needless:
        raise InputError("--correlation needs a pilot with two samples per task or more, and no --reference")
    return variance, words


def describe_variance(variance: Variance) -> str:
    """Return the two parts in words."""
    share = variance.share_between_tasks
    if share is None:
        return f"{variance.between_tasks:.4f}, tasks and samples together (one sample per task)"
    return (
        f"{variance.between_tasks:.4f} between tasks, {variance.of_a_sample:.4f} of a sample: with one sample "
        f"{100 * share:.0f} % of it lies between tasks, which more samples do not reduce"
    )


def plan_study(
    variance: Variance, num_tasks: int, num_samples: int, *, power: float = 0.8, difference: float | None = None
) -> PlannedStudy:
    """Return what a study of this size sees; ``difference`` and the result are rates (0.04 are four points).

    Raises:
        InputError: fewer than two tasks, several samples planned from a pilot with one, or a pilot without variance.
    """
    if num_tasks < 2:
        raise InputError(f"got a study of {num_tasks} tasks; expected at least 2, because tasks are the unit")
    if variance.of_a_sample is None and num_samples != 1:
        raise InputError(
            f"got {num_samples} samples per task, but the pilot has one: its noise cannot be separated from its tasks; "
            "plan with one, or evaluate the pilot with num_samples=2"
        )
    error = math.sqrt((variance.between_tasks + (variance.of_a_sample or 0.0) / num_samples) / num_tasks)
    if error == 0.0:
        raise InputError(
            f"got a pilot whose {variance.num_tasks} tasks are all alike, e.g. all failed: it shows no variance to "
            "plan with; evaluate on tasks of which some are solved"
        )
    critical = float(stdtrit(num_tasks - 1, (1.0 + _LEVEL) / 2.0))
    return PlannedStudy(
        num_tasks=num_tasks,
        num_samples=num_samples,
        standard_error=error,
        detectable_difference=error * (critical + NormalDist().inv_cdf(power)),
        power=None if difference is None else _power(abs(difference), error, critical),
    )


def tasks_needed(variance: Variance, num_samples: int, difference: float, power: float = 0.8) -> int | None:
    """Return the fewest tasks on which a true ``difference`` is seen with ``power``; None above a million."""
    low, high = 1, 2
    while not _is_seen(variance, high, num_samples, difference, power):
        low, high = high, 2 * high
        if high > _MAX_TASKS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_seen(variance, middle, num_samples, difference, power) else (middle, high)
    return high


def _is_seen(variance: Variance, num_tasks: int, num_samples: int, difference: float, power: float) -> bool:
    study = plan_study(variance, num_tasks, num_samples, power=power)
    return study.detectable_difference <= abs(difference)


def _power(difference: float, error: float, critical: float) -> float:
    """Return the probability that a two-sided interval excludes zero."""
    normal = NormalDist()
    return normal.cdf(difference / error - critical) + normal.cdf(-difference / error - critical)


def _split(values: list[float], noises: Sequence[tuple[float, float] | None]) -> Variance:
    if len(values) < 2:
        raise InputError(f"got a pilot of {len(values)} tasks; expected at least 2")
    total = statistics.variance(values)
    known = [noise for noise in noises if noise is not None]
    if len(known) < len(values):
        return Variance(num_tasks=len(values), between_tasks=total, of_a_sample=None)
    return Variance(
        num_tasks=len(values),
        between_tasks=max(0.0, total - statistics.fmean(of_mean for _, of_mean in known)),
        of_a_sample=statistics.fmean(of_sample for of_sample, _ in known),
    )

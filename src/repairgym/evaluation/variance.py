"""Variance of a recipe's results, split into task, seed, sample and grader; its mean and its difference to another's.

Reads verdicts of several runs of one recipe (other seeds) on the same tasks, and pairs of gradings of one submission.
Makes variance components by moments (two-way random effects: tasks by seeds, samples within). Guarantees: estimates are
unbiased before the cut at zero; a component that the data cannot show is None, never zero; the interval of the mean is
over new tasks and, from three runs on, new seeds, and no point where nothing varies; recipes are compared task by task,
seed by seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.special import stdtrit

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import unanimous
from repairgym.evaluation.pass_at_k import TaskVerdicts, sample_noise, success_rates
from repairgym.records import Record, VerdictKind

_LEVEL = 0.95
_NO_VARIANCE = 1e-12
"""Bound on the rest that rounding leaves of a variance of zero."""
MIN_SEEDS = 3
"""For an interval over new seeds: of two seeds no interval holds in 93 to 97 % of studies, whatever their spread."""
Gradings = Sequence[tuple[VerdictKind, VerdictKind]]
"""Two gradings of the same submission each."""


class VarianceParts(Record):
    """Variance of one sample's success in its parts, and the mean of a recipe."""

    num_tasks: int
    num_seeds: int
    num_samples: int
    num_regraded: int
    task: float | None
    """Between tasks, for all seeds alike; None with one run where some task has one sample."""
    seed: float | None
    """Between training runs, for all tasks alike; None with one run."""
    task_by_seed: float | None
    """Between tasks, other for each seed: the tasks that one run is better at than another. None with one run, or where
    some task has one sample, which does not tell it from `sample`."""
    sample: float | None
    """Between samples of a policy on a task, without the grader's part; None: some task has one sample in a run."""
    grader: float | None
    """Between gradings of one submission; None without any graded twice. It is part of what samples show."""
    mean: float
    ci_low: float
    ci_high: float
    """95 % interval of the mean over new tasks and, with `MIN_SEEDS` runs or more, new seeds; with fewer runs it is of
    the mean of these runs."""

    @property
    def parts(self) -> dict[str, float | None]:
        """Name -> variance, of each part."""
        names = ("task", "seed", "task_by_seed", "sample", "grader")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> float:
        """Sum of the known parts."""
        return sum(value for value in self.parts.values() if value is not None)


def split_variance(runs: Mapping[str, TaskVerdicts], regraded: Gradings = ()) -> VarianceParts:
    """Split the variance over the tasks that all runs tried; `InputError` with fewer than two."""
    rates = [success_rates(verdicts) for verdicts in runs.values()]
    tasks = sorted(set.intersection(*(set(of_run) for of_run in rates))) if rates else []
    if len(tasks) < 2:
        raise InputError(
            f"got {len(tasks)} tasks that all of {', '.join(runs) or 'no runs'} tried; expected at least 2"
        )
    cells = [[of_run[task] for task in tasks] for of_run in rates]
    noises = [sample_noise(verdicts[task]) for verdicts in runs.values() for task in tasks]
    known = [noise for noise in noises if noise is not None]
    is_known = len(known) == len(noises)
    of_sample = statistics.fmean(noise for noise, _ in known) if is_known else None
    of_mean = statistics.fmean(mean for _, mean in known) if is_known else 0.0
    squares = MeanSquares(cells)
    grader = _grader_variance(regraded)
    low, high = squares.interval((0.0, 1.0))
    has_seeds = len(cells) > 1
    within = squares.interaction if has_seeds else of_mean
    return VarianceParts(
        num_tasks=len(tasks),
        num_seeds=len(cells),
        num_samples=sum(len(verdicts[task]) for verdicts in runs.values() for task in tasks),
        num_regraded=len(regraded),
        task=max(0.0, (squares.tasks - within) / len(cells)) if has_seeds or is_known else None,
        seed=max(0.0, (squares.seeds - squares.interaction) / len(tasks)) if has_seeds else None,
        task_by_seed=max(0.0, squares.interaction - of_mean) if has_seeds and is_known else None,
        sample=None if of_sample is None else max(0.0, of_sample - (grader or 0.0)),
        grader=grader,
        mean=squares.mean,
        ci_low=max(0.0, low),
        ci_high=min(1.0, high),
    )


class RecipeComparison(Record):
    """Difference of two recipes' Pass@1, treatment minus reference, on their common tasks (strict)."""

    treatment: str
    reference: str
    num_tasks: int
    num_seeds: int
    treatment_value: float
    reference_value: float
    difference: float
    ci_low: float
    ci_high: float
    """95 % interval over new tasks, of these runs."""
    seeds_ci_low: float | None
    seeds_ci_high: float | None
    """95 % interval over new tasks and new seeds; None with fewer than `MIN_SEEDS` seeds."""
    by_seed: tuple[float, ...]
    """Difference of each pair of runs."""


def compare_recipes(
    treatment: Sequence[TaskVerdicts], reference: Sequence[TaskVerdicts], *, names: tuple[str, str]
) -> RecipeComparison:
    """Compare run by run: run N of both sides has the same seed, which is a block.

    Raises:
        InputError: the sides have other numbers of runs, or fewer than two tasks in common.
    """
    if len(treatment) != len(reference) or not treatment:
        raise InputError(
            f"got {len(treatment)} runs of {names[0]} and {len(reference)} of {names[1]}; expected one of each per seed"
        )
    rates = [[success_rates(verdicts) for verdicts in side] for side in (treatment, reference)]
    tasks = sorted(set.intersection(*(set(of_run) for side in rates for of_run in side)))
    if len(tasks) < 2:
        sides = " and ".join(names)
        raise InputError(f"got {len(tasks)} tasks that all runs of {sides} tried; expected at least 2")
    cells = [[left[task] - right[task] for task in tasks] for left, right in zip(*rates, strict=True)]
    means = [statistics.fmean(of_run[task] for of_run in side for task in tasks) for side in rates]
    squares = MeanSquares(cells)
    low, high = squares.interval((-1.0, 1.0), has_new_seeds=False)
    drawn = squares.interval((-1.0, 1.0)) if len(cells) >= MIN_SEEDS else (None, None)
    return RecipeComparison(
        treatment=names[0],
        reference=names[1],
        num_tasks=len(tasks),
        num_seeds=len(cells),
        treatment_value=means[0],
        reference_value=means[1],
        difference=squares.mean,
        ci_low=low,
        ci_high=high,
        seeds_ci_low=drawn[0],
        seeds_ci_high=drawn[1],
        by_seed=tuple(map(statistics.fmean, cells)),
    )


class MeanSquares:
    """Mean squares of a table of seeds by tasks (two-way random effects)."""

    def __init__(self, cells: Sequence[Sequence[float]]) -> None:
        self._num_seeds, self._num_tasks = len(cells), len(cells[0])
        self.mean = statistics.fmean(value for row in cells for value in row)
        of_seed = [statistics.fmean(row) for row in cells]
        of_task = [statistics.fmean(column) for column in zip(*cells, strict=True)]
        self.tasks = self._num_seeds * _square(of_task, self.mean) / (self._num_tasks - 1)
        freedom = (self._num_seeds - 1) * (self._num_tasks - 1)
        rest = [
            cells[s][t] - of_seed[s] - of_task[t] + self.mean
            for s in range(self._num_seeds)
            for t in range(self._num_tasks)
        ]
        self.seeds = self._num_tasks * _square(of_seed, self.mean) / (self._num_seeds - 1) if freedom else 0.0
        self.interaction = sum(value * value for value in rest) / freedom if freedom else 0.0

    def interval(self, bounds: tuple[float, float], *, has_new_seeds: bool = True) -> tuple[float, float]:
        """Return the 95 % interval of the mean: over new tasks, and over new seeds from `MIN_SEEDS` on.

        Without ``has_new_seeds`` it is of these runs, over new tasks alone. Where nothing varies, it is that of
        unanimous tasks with values within ``bounds``.

        The variance of the mean is (tasks - interaction + seeds) / num in mean squares. The quantile is that of Cochran
        and Cox (1950): Student's of both parts, weighted by them. One quantile with Satterthwaite's degrees of freedom
        holds in 92 % only where three seeds differ about as much as tasks.
        """
        num = self._num_seeds * self._num_tasks
        of_tasks, of_seeds = self.tasks, 0.0
        if has_new_seeds and self._num_seeds >= MIN_SEEDS:
            of_tasks, of_seeds = max(0.0, self.tasks - self.interaction), self.seeds
            # In small tables both can be 0 by chance, and the mean is not known exactly.
            if of_tasks + of_seeds < _NO_VARIANCE:
                of_tasks = self.interaction
        weighted = _margin(self._num_tasks - 1) * of_tasks + _margin(max(1, self._num_seeds - 1)) * of_seeds
        square = of_tasks + of_seeds
        if square < _NO_VARIANCE:
            spread = unanimous(self.mean, self._num_tasks, bounds)
            return spread.ci_low, spread.ci_high
        half = weighted / math.sqrt(square * num)
        return self.mean - half, self.mean + half


def _margin(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution."""
    return float(stdtrit(freedom, (1.0 + _LEVEL) / 2.0))


def _square(values: Sequence[float], mean: float) -> float:
    return sum((value - mean) ** 2 for value in values)


def _grader_variance(regraded: Gradings) -> float | None:
    """Return half of the mean squared difference of two gradings."""
    if not regraded:
        return None
    return statistics.fmean(sum(kind is VerdictKind.PASSED for kind in pair) % 2 for pair in regraded) / 2.0

"""Comparison of searches: accuracy by hidden tests against what was spent, and paired differences at equal spending.

Reads solutions and verdicts by hidden tests on their candidates; makes `SearchSummary`, `BudgetPoint` and `Matched`
records. Guarantees: at a smaller budget a search has its first waves only, as far as they fit, and chooses by agreement
among these; tasks are the unit of every interval; a difference is taken at equal average spending.
"""

import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from repairgym.config.solving import ChoiceConfig
from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.records import Record, VerdictKind
from repairgym.solving.choice import Candidate, Chooser
from repairgym.solving.results import FOLDER
from repairgym.solving.scoring import Calibration, calibration
from repairgym.solving.search import Solution
from repairgym.solving.spending import total
from repairgym.tasks.layers.atomic_write import written_whole

Unit = Literal["sampled_tokens", "forward_tokens", "test_runs", "wall_s", "cost_usd"]
_FIELDS = {"wall_s": "wall_s", "cost_usd": "cost_usd"}
_POWER_FACTOR = 2.8
"""Standard errors of a difference that is seen with power 80 % at level 5 % (1.96 + 0.84)."""
_NUM_RESAMPLES = 4000
_VERDICTS = "search_verdicts.json"

IsRight = Callable[[str, Candidate], bool]
"""(task id, candidate) -> its patch passes the hidden tests."""


def read_solutions(run: Path) -> dict[str, Solution]:
    """Return task id -> solution of a run of `repairgym solve`.

    Raises:
        InputError: the folder has none.
    """
    files = sorted((run / FOLDER).glob("*.json"))
    if not files:
        raise InputError(f"{run / FOLDER} has no solutions; run repairgym solve TASKS {run} first")
    solutions = [Solution.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
    return {solution.task_id: solution for solution in solutions}


def patch_key(candidate: Candidate) -> str:
    """Return the key of a candidate's verdict."""
    return hashlib.sha256(candidate.patch.encode(errors="replace")).hexdigest()


def to_judge(solutions: Mapping[str, Solution]) -> list[tuple[str, Candidate]]:
    """Return (task id, candidate) of each distinct patch that a choice can fall on."""
    distinct = {
        (task_id, patch_key(it)): (task_id, it)
        for task_id, solution in solutions.items()
        for it in solution.candidates
        if it.is_passed
    }
    return list(distinct.values())


class SearchSummary(Record):
    """One run with its whole budget."""

    name: str
    strategy: str
    num_tasks: int
    spent: float
    """Mean of a task, in the unit of the comparison."""
    accuracy: float
    """Share of all tasks whose chosen patch passes the hidden tests."""
    ci_low: float
    ci_high: float
    num_answers: int
    num_false_accepts: int
    """Answers that pass the visible tests and fail the hidden ones."""
    num_false_at_random: float
    """The same, expected of a random choice among the candidates that pass the visible tests."""


class BudgetPoint(Record):
    """One run with a smaller budget of each task."""

    name: str
    difficulty: str
    budget: float
    num_tasks: int
    spent: float
    accuracy: float
    ci_low: float
    ci_high: float


class Matched(Record):
    """Difference of a run and the reference where both have spent the same on average."""

    name: str
    reference: str
    difficulty: str
    num_tasks: int
    spent: float
    accuracy: float
    reference_accuracy: float
    difference: float
    ci_low: float
    ci_high: float
    detectable: float | None
    """Difference that is seen with power 80 % at this standard error; None where all tasks differ alike, so that there
    is none."""


class SearchCurve:
    """Accuracy of one run at every budget."""

    def __init__(self, name: str, solutions: Mapping[str, Solution], is_right: IsRight, unit: Unit) -> None:
        """Take the tasks of ``solutions``."""
        self.name = name
        self.solutions = solutions
        self._is_right = is_right
        self.unit = unit
        self._field = _FIELDS.get(unit, f"num_{unit}")
        self._steps = {task_id: self._task_steps(solution) for task_id, solution in solutions.items()}
        """Task id -> (spent, solved) behind each wave, rising."""

    def _task_steps(self, solution: Solution) -> list[tuple[float, float]]:
        chooser = Chooser(ChoiceConfig(), is_abstaining=True)
        steps, candidates = [(0.0, 0.0)], list[Candidate]()
        for _, wave in groupby(solution.candidates, key=lambda it: it.wave):
            candidates += wave
            best, _ = chooser.choose(candidates)
            spent = getattr(total((it.wave, it.spending) for it in candidates), self._field)
            is_solved = best is not None and self._is_right(solution.task_id, best)
            steps.append((float(spent), float(is_solved)))
        # The choice with the whole budget is the one that was made.
        chosen = next((it for it in solution.candidates if it.id == solution.chosen), None)
        steps[-1] = (steps[-1][0], float(chosen is not None and self._is_right(solution.task_id, chosen)))
        return steps

    def at(self, budget: float, tasks: Sequence[str]) -> list[tuple[float, float]]:
        """Return (spent, solved) of each task with ``budget``; a wave that would exceed it is left out."""
        return [next(step for step in reversed(self._steps[id_]) if step[0] <= budget) for id_ in tasks]

    def mixed_settings(self, tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return setting -> values of each one that differs between ``tasks``: calls of one run may change some."""
        known = [self.solutions[id_].settings for id_ in tasks if self.solutions[id_].settings]
        values = {
            name: {it.get(name, "") for it in known} for name in dict.fromkeys(name for it in known for name in it)
        }
        return {name: tuple(sorted(distinct)) for name, distinct in values.items() if len(distinct) > 1}

    def budgets(self, tasks: Sequence[str]) -> list[float]:
        """Return the budgets at which something changes, rising."""
        return sorted({spent for id_ in tasks for spent, _ in self._steps[id_]})

    def matched(self, mean: float, tasks: Sequence[str]) -> list[float]:
        """Return the chance that each task is solved, where a task spends ``mean`` on average.

        Between two budgets the one or the other is drawn, so that the mean is met.
        """
        budgets = self.budgets(tasks)
        low, high = 0, len(budgets) - 1
        while high - low > 1:
            middle = (low + high) // 2
            is_within = statistics.fmean(spent for spent, _ in self.at(budgets[middle], tasks)) <= mean
            low, high = (middle, high) if is_within else (low, middle)
        below, above = self.at(budgets[low], tasks), self.at(budgets[high], tasks)
        least, most = (statistics.fmean(spent for spent, _ in side) for side in (below, above))
        share = min(1.0, max(0.0, (mean - least) / (most - least))) if most > least else 1.0
        return [(1 - share) * left[1] + share * right[1] for left, right in zip(below, above, strict=True)]

    def summary(self, tasks: Sequence[str]) -> SearchSummary:
        """Return the run with its whole budget."""
        ends = [self._steps[id_][-1] for id_ in tasks]
        solved = [outcome for _, outcome in ends]
        spread = bootstrap_spread(solved, bounds=(0.0, 1.0), num_resamples=_NUM_RESAMPLES)
        answered = [id_ for id_ in tasks if self._passing(id_) and self.solutions[id_].chosen]
        wrong = {id_: [not self._is_right(id_, it) for it in self._passing(id_)] for id_ in answered}
        return SearchSummary(
            name=self.name,
            strategy=self.solutions[tasks[0]].strategy,
            num_tasks=len(tasks),
            spent=statistics.fmean(spent for spent, _ in ends),
            accuracy=statistics.fmean(solved),
            ci_low=spread.ci_low,
            ci_high=spread.ci_high,
            num_answers=len(answered),
            num_false_accepts=sum(self._steps[id_][-1][1] == 0.0 for id_ in answered),
            num_false_at_random=sum(statistics.fmean(map(float, outcomes)) for outcomes in wrong.values()),
        )

    def _passing(self, task_id: str) -> list[Candidate]:
        return [it for it in self.solutions[task_id].candidates if it.is_passed]

    def point(self, budget: float, tasks: Sequence[str], difficulty: str) -> BudgetPoint:
        """Return the run with ``budget`` for each task."""
        steps = self.at(budget, tasks)
        solved = [outcome for _, outcome in steps]
        spread = bootstrap_spread(solved, bounds=(0.0, 1.0), num_resamples=_NUM_RESAMPLES)
        return BudgetPoint(
            name=self.name,
            difficulty=difficulty,
            budget=budget,
            num_tasks=len(tasks),
            spent=statistics.fmean(spent for spent, _ in steps),
            accuracy=statistics.fmean(solved),
            ci_low=spread.ci_low,
            ci_high=spread.ci_high,
        )

    def confidences(self, tasks: Sequence[str]) -> Calibration | None:
        """Return the quality of the scorer's chances on ``tasks``; None where no scorer gave any."""
        scored = [
            (it.confidence, self._is_right(id_, it))
            for id_ in tasks
            for it in self._passing(id_)
            if it.confidence is not None
        ]
        return calibration(scored) if scored else None


def match(curve: SearchCurve, reference: SearchCurve, tasks: Sequence[str], difficulty: str) -> Matched:
    """Compare two runs at the smaller of their average spending.

    Raises:
        InputError: one of them has spent nothing in this unit, and the other something.
    """
    ends = {side.name: side.summary(tasks).spent for side in (curve, reference)}
    mean = min(ends.values())
    if mean == 0.0 < max(ends.values()):
        name = min(ends, key=lambda name: ends[name])
        raise InputError(f"{name} has spent no {curve.unit}, so that there is no equal spending; choose another --unit")
    left, right = curve.matched(mean, tasks), reference.matched(mean, tasks)
    differences = [a - b for a, b in zip(left, right, strict=True)]
    spread = bootstrap_spread(differences, bounds=(-1.0, 1.0), num_resamples=_NUM_RESAMPLES)
    return Matched(
        name=curve.name,
        reference=reference.name,
        difficulty=difficulty,
        num_tasks=len(tasks),
        spent=mean,
        accuracy=statistics.fmean(left),
        reference_accuracy=statistics.fmean(right),
        difference=statistics.fmean(differences),
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        detectable=_POWER_FACTOR * spread.standard_error or None,
    )


class Verdicts(Record):
    """Verdicts by hidden tests on the candidates of a run, kept in its folder."""

    kinds: dict[str, VerdictKind] = {}
    """``task id/patch key`` -> verdict."""
    keys: dict[str, str] = {}
    """The same -> grading key that the verdict was made with: another task or grader has another."""

    @classmethod
    def read(cls, run: Path) -> "Verdicts":
        """Return what is stored of ``run``."""
        path = run / _VERDICTS
        return cls.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else cls()

    def save(self, run: Path) -> None:
        """Write them."""
        with written_whole(run / _VERDICTS) as file:
            file.write(self.model_dump_json(indent=1).encode())

    def note(self, name: str, kind: VerdictKind, key: str) -> None:
        """Add the verdict on the candidate ``name``, or replace it."""
        self.kinds[name], self.keys[name] = kind, key

    def is_known(self, name: str, key: str) -> bool:
        """Return True for a verdict that says something, made with ``key``."""
        return self.keys.get(name) == key and self.kinds.get(name, VerdictKind.INVALID) is not VerdictKind.INVALID

    def is_right(self, task_id: str, candidate: Candidate) -> bool:
        """Return True where the patch of a candidate passes; an invalid verdict is no pass."""
        return self.kinds.get(f"{task_id}/{patch_key(candidate)}") is VerdictKind.PASSED

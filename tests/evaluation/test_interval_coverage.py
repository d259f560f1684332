"""Coverage of the intervals named here, near 95 % in seeded simulations whose truth is known.

Not drawn: the lost gain of a matrix, the difference of two recipes and the share between two budgets.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from repairgym.analysis.curves import reward_gap
from repairgym.analysis.selection import select
from repairgym.analysis.sweeps import SweepRun, importance_of, rank_arms, welch_interval
from repairgym.config.sweep import SweepConfig
from repairgym.evaluation.accuracy import accuracy_of, corrected
from repairgym.evaluation.contamination import Probe, probe_dates
from repairgym.evaluation.merging import MergeChecks, merge_score
from repairgym.evaluation.pass_at_k import pass_at_1
from repairgym.evaluation.ranking import rank
from repairgym.evaluation.significance import compare
from repairgym.evaluation.variance import MIN_SEEDS, split_variance
from repairgym.records import Accuracy, VerdictKind
from repairgym.rollout.names import audit_id
from repairgym.tasks.solve_rates import SolveRate

KINDS = (VerdictKind.FAILED, VerdictKind.PASSED)
Draw = Callable[[np.random.Generator], bool]
"""Draw a study; return whether its interval holds the truth."""


def verdicts(generator: np.random.Generator, rates: np.ndarray, num_samples: int) -> dict[str, list[VerdictKind]]:
    passed = generator.random((len(rates), num_samples)) < rates[:, None]
    return {str(task): [KINDS[int(value)] for value in row] for task, row in enumerate(passed)}


def pass_at_1_holds(generator: np.random.Generator) -> bool:
    estimate = pass_at_1(verdicts(generator, generator.beta(0.8, 1.2, 60), 4), num_resamples=200)
    assert estimate
    return estimate.ci_low <= 0.4 <= estimate.ci_high


def difference_holds(generator: np.random.Generator) -> bool:
    base = generator.beta(1.0, 1.5, 60) * 0.8
    sides = [verdicts(generator, rates, 2) for rates in (base + 0.1 * generator.choice([0.0, 1.0, 2.0], 60), base)]
    found = compare(*sides, names=("a", "b"), test_set="t", num_resamples=200)
    assert found
    return found.ci_low <= 0.1 <= found.ci_high


def packages_hold(generator: np.random.Generator) -> bool:
    """Fifteen packages of six tasks; the gain differs between packages."""
    gains = np.repeat(generator.uniform(0.0, 0.3, 15), 6)
    base = generator.beta(1.0, 1.5, 90) * 0.7
    sides = [verdicts(generator, rates, 2) for rates in (base + gains, base)]
    clusters = {str(task): str(task // 6) for task in range(90)}
    found = compare(*sides, names=("a", "b"), test_set="t", clusters=clusters, num_resamples=200)
    assert found
    assert found.cluster_ci_low is not None
    assert found.cluster_ci_high is not None
    return found.cluster_ci_low <= 0.15 <= found.cluster_ci_high


def audits(generator: np.random.Generator, accepted: float, rejected: float, num: int) -> Iterator[Accuracy]:
    for _ in range(num):
        num_wrong, num_right = (int(value) for value in generator.integers(5, 15, 2))
        accept, reject = (generator.beta(4 * rate, 4 * (1 - rate)) for rate in (accepted, rejected))
        yield Accuracy(
            num_wrong=num_wrong,
            num_accepted=int(generator.binomial(num_wrong, accept)),
            num_unknown=0,
            num_right=num_right,
            num_rejected=int(generator.binomial(num_right, reject)),
        )


def error_rate_holds(generator: np.random.Generator) -> bool:
    found = accuracy_of(audits(generator, 0.15, 0.1, 60), num_resamples=200)
    assert found
    assert found.false_accept
    return found.false_accept.ci_low <= 0.15 <= found.false_accept.ci_high


def corrected_holds(generator: np.random.Generator) -> bool:
    true, accepted, rejected = generator.beta(2.0, 2.0, 60), 0.15, 0.1
    estimate = pass_at_1(verdicts(generator, true * (1 - rejected) + (1 - true) * accepted, 4), num_resamples=200)
    found = accuracy_of(audits(generator, accepted, rejected, 60), num_resamples=200)
    assert estimate
    value = corrected(estimate, found)
    assert value
    return value.ci_low <= 0.5 <= value.ci_high


def best_of_k_holds(generator: np.random.Generator) -> bool:
    """The scorer is right with 70 % on each sample, so the chance that the best of two passes has a closed form."""
    rates = generator.beta(1.0, 1.0, 60)
    groups = {}
    for task, rate in enumerate(rates):
        passed = generator.random(4) < rate
        scores = np.where(generator.random(4) < 0.7, passed, ~passed)
        groups[str(task)] = [(float(score), bool(value)) for score, value in zip(scores, passed, strict=True)]
    found = select(_candidates(groups), "tests", lambda it, _: it.score, 2, num_resamples=200)  # type: ignore[arg-type, attr-defined]
    assert found
    # Of two samples, one passed: chosen with .7*.7 + half of the ties; both passed: always. E[p] = 1/2, E[p^2] = 1/3.
    chosen = 0.7 * 0.7 + 0.5 * 2 * 0.7 * 0.3
    truth = 1 / 3 + 2 * (1 / 2 - 1 / 3) * chosen
    return found.ci_low <= truth <= found.ci_high


class _Candidate:
    def __init__(self, score: float, is_passed: bool) -> None:
        self.score, self.is_passed = score, is_passed


def _candidates(groups: dict[str, list[tuple[float, bool]]]) -> dict[str, list[_Candidate]]:
    return {task: [_Candidate(*pair) for pair in pairs] for task, pairs in groups.items()}


def gap_closed_holds(generator: np.random.Generator) -> bool:
    rates = generator.beta(1.0, 1.0, 100)
    groups = {}
    for task, rate in enumerate(rates):
        passed = generator.random(4) < rate
        scores = np.where(generator.random(4) < 0.7, passed, ~passed)
        groups[str(task)] = [(float(score), bool(value)) for score, value in zip(scores, passed, strict=True)]
    found = select(_candidates(groups), "tests", lambda it, _: it.score, 2, num_resamples=300)  # type: ignore[arg-type, attr-defined]
    assert found
    assert found.gap_closed_low is not None
    assert found.gap_closed_high is not None
    truth = (1 / 3 + 1 / 3 * 0.7 - 1 / 2) / (1 / 6)
    return found.gap_closed_low <= truth <= found.gap_closed_high


def ranks_hold(generator: np.random.Generator) -> bool:
    """All equal, where ranks are hardest: every interval is 1 to 5."""
    base = generator.beta(1.0, 1.0, 60)
    places = rank({str(number): verdicts(generator, base, 2) for number in range(5)}, num_resamples=2)
    return all((place.rank_low, place.rank_high) == (1, 5) for place in places)


def solve_rate_holds(generator: np.random.Generator) -> bool:
    """Rates over their whole range, as tasks have them: at a single rate the coverage of a discrete count jumps."""
    rate = generator.uniform(0.02, 0.98)
    low, high = SolveRate(int(generator.binomial(20, rate)), 20).interval
    return low <= rate <= high


def reward_gap_holds(generator: np.random.Generator) -> bool:
    """Submissions within tasks, rewards that a second grading takes away."""
    lost = np.repeat(generator.beta(1.0, 4.0, 40), 4)
    names = [(str(place), str(place // 4)) for place in range(160)]
    rows = [SimpleNamespace(id=name, step=0, task_id=task, reward=1.0) for name, task in names]
    kept = (generator.random(160) >= lost).astype(float)
    audited = [SimpleNamespace(id=audit_id(row.id), reward=float(value)) for row, value in zip(rows, kept, strict=True)]
    (found,) = reward_gap(rows, audited)  # type: ignore[arg-type]
    return found.ci_low <= 0.2 <= found.ci_high


def recipe_mean_holds(generator: np.random.Generator) -> bool:
    """Three seeds, whose policies differ for all tasks and task by task."""
    base, seeds = generator.uniform(0.2, 0.8, 60), generator.normal(0.0, 0.05, 3)
    runs = {
        str(number): verdicts(generator, np.clip(base + shift + generator.normal(0.0, 0.05, 60), 0, 1), 4)
        for number, shift in enumerate(seeds)
    }
    parts = split_variance(runs)
    return parts.ci_low <= 0.5 <= parts.ci_high


def recipe_of(generator: np.random.Generator, num_seeds: int, of_seeds: float) -> bool:
    """Of 60 tasks x 4 samples; the interval of fewer than three seeds is of the mean of these seeds."""
    base, seeds = generator.uniform(0.3, 0.7, 60), generator.normal(0.0, of_seeds, num_seeds)
    runs = {
        str(number): verdicts(generator, np.clip(base + shift + generator.normal(0.0, 0.05, 60), 0, 1), 4)
        for number, shift in enumerate(seeds)
    }
    parts = split_variance(runs)
    truth = 0.5 if num_seeds >= MIN_SEEDS else 0.5 + statistics.fmean(seeds)
    return parts.ci_low <= truth <= parts.ci_high


def merge_score_holds(generator: np.random.Generator) -> bool:
    rates = generator.beta(2.0, 2.0, 50)
    checks = {
        str(task): [_checks(generator) if generator.random() < rate else None for _ in range(3)]
        for task, rate in enumerate(rates)
    }
    score = merge_score(checks, num_resamples=200)
    assert score
    return score.ci_low <= 0.5 * 0.8 <= score.ci_high


def _checks(generator: np.random.Generator) -> MergeChecks:
    is_small = bool(generator.random() < 0.8)
    return MergeChecks(size=is_small, files=True, complexity=True, lint=True, style=True, num_lines=2, num_gold_lines=2)


def dated(generator: np.random.Generator, sides: tuple[np.ndarray, np.ndarray], num_samples: int) -> Probe:
    """Older and newer tasks with these rates, each of a package of its own."""
    rates = np.concatenate(sides)
    days = ["2024-01-01"] * len(sides[0]) + ["2026-01-01"] * len(sides[1])
    tasks = {
        str(number): SimpleNamespace(created_at=day, provenance=SimpleNamespace(package=str(number)))
        for number, day in enumerate(days)
    }
    return probe_dates(verdicts(generator, rates, num_samples), tasks, "2025-01-01")  # type: ignore[arg-type]


def dates_hold(generator: np.random.Generator) -> bool:
    """The newer tasks are harder by 0.15 in the mean."""
    found = dated(generator, (generator.beta(2.0, 2.0, 50), generator.beta(1.4, 2.6, 30)), 2)
    return found.ci_low <= 0.15 <= found.ci_high


def margins_hold(generator: np.random.Generator) -> bool:
    sides = (generator.normal(0.3, 1.0, 12), generator.gamma(2.0, 0.5, 30) - 1.0)
    interval = welch_interval(*sides)
    assert interval
    return interval[0] <= 0.3 <= interval[1]


def arms(generator: np.random.Generator, gain: float, is_shared: bool) -> dict[str, dict[int, float]]:
    """Twelve arms of three seeds, which all arms share (as much spread between seeds as within), or which differ."""
    of_seed = generator.normal(0.0, 1.0, 3) if is_shared else np.zeros(3)
    return {
        str(arm): {
            seed if is_shared else 3 * arm + seed: float(gain * arm + of_seed[seed] + generator.normal())
            for seed in range(3)
        }
        for arm in range(12)
    }


def arm_mean_holds(generator: np.random.Generator, is_shared: bool = False) -> bool:
    place = next(place for place in rank_arms(arms(generator, 0.1, is_shared)) if place.name == "4")
    return place.ci_low <= 0.4 <= place.ci_high


def arm_ranks_hold(generator: np.random.Generator, is_shared: bool = False) -> bool:
    return all((place.rank_low, place.rank_high) == (1, 12) for place in rank_arms(arms(generator, 0.0, is_shared)))


SURFACE = SweepConfig.model_validate(
    {
        "command": ("eval", "run", "{run}"),
        "num_runs": 40,
        "num_resamples": 20,
        "settings": {
            "a": {"type": "choice", "values": ("x", "y")},
            "b": {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
            "c": {"type": "int", "low": 1, "high": 6},
            "d": {"type": "uniform", "low": 0.0, "high": 1.0},
        },
    }
)
EFFECT = 1.0


def surface_runs(generator: np.random.Generator) -> list[SweepRun]:
    """One true effect, of ``a``; the rest is noise that is not normal."""
    from repairgym.studies.sweep import draw_settings

    config = SURFACE.model_copy(update={"seed": int(generator.integers(1 << 30))})
    runs = []
    for number in range(config.num_runs):
        settings = draw_settings(config, number)
        noise = float(generator.gamma(2.0, 0.5)) - 1.0
        runs.append(SweepRun(number=number, settings=settings, value=EFFECT * (settings["a"] == "x") + noise))
    return runs


def sweep_effect_holds(generator: np.random.Generator) -> bool:
    runs = surface_runs(generator)
    sides: list[list[float]] = [[], []]
    for run in runs:
        assert run.value is not None
        sides[run.settings["a"] == "x"].append(run.value)
    interval = welch_interval(sides[1], sides[0])
    assert interval
    return interval[0] <= EFFECT <= interval[1]


INTERVALS: dict[str, Draw] = {
    "Pass@1": pass_at_1_holds,
    "paired difference": difference_holds,
    "paired difference over packages": packages_hold,
    "error rate of verdicts": error_rate_holds,
    "corrected Pass@1": corrected_holds,
    "best of k": best_of_k_holds,
    "gap closed": gap_closed_holds,
    "reward gap": reward_gap_holds,
    "solve rate of a task": solve_rate_holds,
    "mean of a recipe": recipe_mean_holds,
    "merge score": merge_score_holds,
    "older against newer tasks": dates_hold,
    "margins of a contamination probe": margins_hold,
    "effect of a sweep": sweep_effect_holds,
    "mean of an arm": arm_mean_holds,
    "mean of an arm, shared seeds": partial(arm_mean_holds, is_shared=True),
}
JOINT: dict[str, Draw] = {
    "ranks of policies": ranks_hold,
    "ranks of arms": arm_ranks_hold,
    "ranks of arms, shared seeds": partial(arm_ranks_hold, is_shared=True),
}
NUM_STUDIES = 2000


def coverage(draw: Draw, num: int) -> float:
    generator = np.random.default_rng(20261124)
    return statistics.fmean(draw(generator) for _ in range(num))


@pytest.mark.slow
@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_covers_the_truth_in_93_to_97_percent(name: str) -> None:
    share = coverage(INTERVALS[name], NUM_STUDIES)
    print(f"{name}: {100 * share:.1f} % of {NUM_STUDIES}")
    assert 0.93 <= share <= 0.97


@pytest.mark.parametrize(("num_old", "num_new", "rate"), [(40, 3, 0.15), (40, 5, 0.15), (60, 10, 0.1)])
def test_few_tasks_that_all_failed_are_no_sign_of_contamination(num_old: int, num_new: int, rate: float) -> None:
    """Equal rates: the few newer tasks often have no success at all, which says little of others."""
    generator = np.random.default_rng(0)
    sides = np.full(num_old, rate), np.full(num_new, rate)
    found = [dated(generator, sides, 1) for _ in range(60)]
    assert statistics.fmean(probe.ci_low > 0.0 for probe in found) <= 0.05
    assert statistics.fmean(probe.ci_low <= 0.0 <= probe.ci_high for probe in found) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [2, 3, 4, 5, 10])
@pytest.mark.parametrize("of_seeds", [0.0, 0.02, 0.05, 0.1, 0.15])
def test_the_mean_of_a_recipe_is_covered_however_seeds_differ(num_seeds: int, of_seeds: float) -> None:
    share = coverage(partial(recipe_of, num_seeds=num_seeds, of_seeds=of_seeds), NUM_STUDIES)
    print(f"{num_seeds} seeds, standard deviation {of_seeds}: {100 * share:.1f} % of {NUM_STUDIES}")
    assert 0.93 <= share <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINT)
def test_ranks_hold_together_in_at_least_93_percent(name: str) -> None:
    """Bonferroni holds more than it promises, so that there is no upper bound."""
    share = coverage(JOINT[name], NUM_STUDIES)
    print(f"{name}: {100 * share:.1f} % of {NUM_STUDIES}")
    assert share >= 0.93


@pytest.mark.slow
def test_a_sweep_finds_its_one_true_effect_and_no_other() -> None:
    """In 200 sweeps: the true setting leads and is clear, and others are called clear in about 5 % of sweeps."""
    generator = np.random.default_rng(20261125)
    num_found = num_false = 0
    for _ in range(200):
        rows = importance_of(surface_runs(generator), SURFACE)
        num_found += rows[0].setting == "a" and rows[0].is_clear
        num_false += any(row.is_clear for row in rows if row.setting != "a")
    print(f"found {num_found}, false alarms {num_false} of 200")
    assert num_found >= 190
    assert num_false <= 20

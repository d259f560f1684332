"""Policies x environments: transfer of a gain from one environment to another (paper A, section on mismatch).

Reads a run store that `studies/without_learning.py` filled; makes a `Matrix`. Guarantees: differences are paired on
equal tasks; a sentence claims a difference, also one of two gains, only when its 95 % interval excludes zero; a cell
without a run is absent.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from repairgym.config.commands import MatrixConfig, MatrixPolicy
from repairgym.evaluation.bootstrap import NUM_RESAMPLES, Spread, bootstrap_spread
from repairgym.evaluation.pass_at_k import Estimate, TaskVerdicts, pass_at_1, share, verdicts_by_task
from repairgym.evaluation.significance import Comparison, compare, paired_differences
from repairgym.records import Record, VerdictKind
from repairgym.rollout.names import cell_stage, eval_phase
from repairgym.rollout.store import RunStore


class MatrixCell(Record):
    """One policy in one environment."""

    policy: str
    environment: str
    pass_at_1: Estimate
    """Strict."""
    exploited_rate: float
    invalid_rate: float
    disabled_gates: tuple[str, ...]
    """Gates that the environment disables; its numbers prove less."""


class Matrix(Record):
    """Paper A's table with intervals."""

    test_set: str
    policies: tuple[str, ...]
    environments: tuple[str, ...]
    cells: tuple[MatrixCell, ...]
    differences: tuple[Comparison, ...]
    """Each policy against its start in each environment, then against itself in its training environment."""
    findings: tuple[str, ...]
    """The differences as sentences."""

    def cell(self, policy: str, environment: str) -> MatrixCell | None:
        """Return the cell, if it was run."""
        return next((cell for cell in self.cells if (cell.policy, cell.environment) == (policy, environment)), None)


def build_matrix(store: RunStore, config: MatrixConfig, *, num_resamples: int = NUM_RESAMPLES) -> Matrix:
    """Build the matrix from the cells in the store."""
    test_set = config.select.set_name
    verdicts: dict[tuple[str, str], TaskVerdicts] = {}
    for policy in config.policies:
        for environment in config.environments:
            rows = store.rows(phase=eval_phase(cell_stage(policy, environment), test_set))
            if rows:
                verdicts[policy, environment] = verdicts_by_task(rows)
    differences = tuple(_differences(config, verdicts, test_set, num_resamples))
    by_names = {(difference.treatment, difference.reference): difference for difference in differences}
    sentences = [
        sentence
        for name, policy in config.policies.items()
        for environment in _elsewhere(config, policy)
        for sentence in _mismatch(
            name, policy, environment, by_names, _lost_gain(name, policy, environment, verdicts, num_resamples)
        )
    ]
    return Matrix(
        test_set=test_set,
        policies=tuple(config.policies),
        environments=tuple(config.environments),
        cells=tuple(_cells(config, verdicts, num_resamples)),
        differences=differences,
        findings=tuple(sentences),
    )


def _cells(
    config: MatrixConfig, verdicts: Mapping[tuple[str, str], TaskVerdicts], num_resamples: int
) -> Iterator[MatrixCell]:
    for (policy, environment), cell_verdicts in verdicts.items():
        estimate = pass_at_1(cell_verdicts, num_resamples=num_resamples)
        if estimate:
            yield MatrixCell(
                policy=policy,
                environment=environment,
                pass_at_1=estimate,
                exploited_rate=share(cell_verdicts, VerdictKind.EXPLOITED),
                invalid_rate=share(cell_verdicts, VerdictKind.INVALID),
                disabled_gates=config.environments[environment].grading.disabled_gates,
            )


def _differences(
    config: MatrixConfig, verdicts: Mapping[tuple[str, str], TaskVerdicts], test_set: str, num_resamples: int
) -> Iterator[Comparison]:
    for cells in _pairs(config):
        treatment, reference = (verdicts.get(cell, {}) for cell in cells)
        names = (in_words(*cells[0]), in_words(*cells[1]))
        difference = compare(treatment, reference, names=names, test_set=test_set, num_resamples=num_resamples)
        if difference:
            yield difference


def _pairs(config: MatrixConfig) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for name, policy in config.policies.items():
        if policy.start:
            yield from (((name, environment), (policy.start, environment)) for environment in config.environments)
        for environment in _elsewhere(config, policy):
            yield (name, environment), (name, policy.trained_in)


def _elsewhere(config: MatrixConfig, policy: MatrixPolicy) -> list[str]:
    """Return the environments that a policy was not trained in; none where it was not trained."""
    return [name for name in config.environments if policy.trained_in and name != policy.trained_in]


def in_words(policy: str, environment: str) -> str:
    """Return the name of a cell."""
    return f"{policy} in {environment}"


class _LostGain(NamedTuple):
    """The gain at home minus that in another environment, on equal tasks."""

    difference: float
    spread: Spread

    def __str__(self) -> str:
        return _in_points(self.difference, self.spread.ci_low, self.spread.ci_high)


def _lost_gain(
    name: str,
    policy: MatrixPolicy,
    environment: str,
    verdicts: Mapping[tuple[str, str], TaskVerdicts],
    num_resamples: int,
) -> _LostGain | None:
    home, away = (
        paired_differences(verdicts.get((name, place), {}), verdicts.get((policy.start, place), {}))
        for place in (policy.trained_in, environment)
    )
    values = [home[task] - away[task] for task in sorted(home.keys() & away.keys())]
    if not values:
        return None
    return _LostGain(
        statistics.fmean(values), bootstrap_spread(values, bounds=(-2.0, 2.0), num_resamples=num_resamples)
    )


def _mismatch(
    name: str,
    policy: MatrixPolicy,
    environment: str,
    differences: Mapping[tuple[str, str], Comparison],
    lost: _LostGain | None,
) -> Iterator[str]:
    home = policy.trained_in
    across = differences.get((in_words(name, environment), in_words(name, home)))
    gain_home = differences.get((in_words(name, home), in_words(policy.start, home)))
    gain_away = differences.get((in_words(name, environment), in_words(policy.start, environment)))
    if gain_home and gain_away:
        word = "loses" if gain_away.ci_high < 0 else "shows no gain"
        is_lost = lost is not None and lost.spread.ci_low > 0
        if gain_home.ci_low > 0 and gain_away.ci_low <= 0 and not is_lost:
            yield (
                f"{name} gains in {home} ({_points(gain_home)} over {policy.start}) and {word} in {environment} "
                f"({_points(gain_away)}); the two cannot be distinguished ({lost or 'they have no task in common'})."
            )
        elif gain_home.ci_low > 0 and gain_away.ci_low <= 0:
            yield (
                f"Mismatch: the gain of {name} in {home} ({_points(gain_home)} over {policy.start}) "
                f"does not transfer to {environment}, where it {word} ({_points(gain_away)}; "
                f"difference of the gains {lost})."
            )
        elif gain_home.ci_low > 0:
            yield (
                f"The gain of {name} in {home} ({_points(gain_home)} over {policy.start}) "
                f"transfers to {environment} ({_points(gain_away)})."
            )
        else:
            yield f"No gain shown for {name} in {home} ({_points(gain_home)} over {policy.start})."
    if across and across.ci_high < 0:
        yield (
            f"{name} solves {100 * across.reference_value:.1f} % in {home}, its training environment, "
            f"and {100 * across.treatment_value:.1f} % in {environment} ({_points(across)})."
        )
    elif across:
        yield f"No mismatch shown for {name} between {home} and {environment} ({_points(across)})."


def _points(pair: Comparison) -> str:
    return _in_points(pair.difference, pair.ci_low, pair.ci_high)


def _in_points(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"

"""Policies x environments: does what was learned in one environment hold in another (paper A, section on mismatch)?

Reads a run store that `studies/matrix.py` filled; makes a `Matrix`. Invariants: differences are paired on equal tasks;
a sentence claims a difference only when its 95 % interval leaves zero out; a cell that was not run is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from repairgym.config.evaluation import MatrixConfig, MatrixPolicy
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import Estimate, TaskVerdicts, pass_at_1, share, verdicts_by_task
from repairgym.evaluation.significance import Comparison, compare
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
    """Gates that the environment grades without; its numbers prove less."""


class Matrix(Record):
    """Paper A's table with its doubts."""

    test_set: str
    policies: tuple[str, ...]
    environments: tuple[str, ...]
    cells: tuple[MatrixCell, ...]
    differences: tuple[Comparison, ...]
    """Each policy against its start in each environment, then in other environments against its own."""
    findings: tuple[str, ...]
    """What the differences mean, in words."""

    def cell(self, policy: str, environment: str) -> MatrixCell | None:
        """The cell, when it was run."""
        return next((one for one in self.cells if (one.policy, one.environment) == (policy, environment)), None)


def build_matrix(store: RunStore, config: MatrixConfig, *, num_resamples: int = NUM_RESAMPLES) -> Matrix:
    """The matrix as far as the store holds it."""
    test_set = f"{config.select.split}-{config.select.source}"
    verdicts: dict[tuple[str, str], TaskVerdicts] = {}
    for policy in config.policies:
        for environment in config.environments:
            rows = store.rows(phase=eval_phase(cell_stage(policy, environment), test_set))
            if rows:
                verdicts[policy, environment] = verdicts_by_task(rows)
    differences = tuple(_differences(config, verdicts, test_set, num_resamples))
    return Matrix(
        test_set=test_set,
        policies=tuple(config.policies),
        environments=tuple(config.environments),
        cells=tuple(_cells(config, verdicts, num_resamples)),
        differences=differences,
        findings=tuple(_findings(config, {(one.treatment, one.reference): one for one in differences})),
    )


def _cells(
    config: MatrixConfig, verdicts: Mapping[tuple[str, str], TaskVerdicts], num_resamples: int
) -> Iterator[MatrixCell]:
    for (policy, environment), found in verdicts.items():
        estimate = pass_at_1(found, num_resamples=num_resamples)
        if estimate:
            yield MatrixCell(
                policy=policy,
                environment=environment,
                pass_at_1=estimate,
                exploited_rate=share(found, VerdictKind.EXPLOITED),
                invalid_rate=share(found, VerdictKind.INVALID),
                disabled_gates=config.environments[environment].grading.disabled_gates,
            )


def _differences(
    config: MatrixConfig, verdicts: Mapping[tuple[str, str], TaskVerdicts], test_set: str, num_resamples: int
) -> Iterator[Comparison]:
    for treatment, reference in _pairs(config):
        if treatment in verdicts and reference in verdicts:
            names = (in_words(*treatment), in_words(*reference))
            found = compare(
                verdicts[treatment], verdicts[reference], names=names, test_set=test_set, num_resamples=num_resamples
            )
            if found:
                yield found


def _pairs(config: MatrixConfig) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for name, policy in config.policies.items():
        if policy.start:
            for environment in config.environments:
                yield (name, environment), (policy.start, environment)
        for environment in config.environments:
            if policy.trained_in and environment != policy.trained_in:
                yield (name, environment), (name, policy.trained_in)


def in_words(policy: str, environment: str) -> str:
    """A cell as text."""
    return f"{policy} in {environment}"


def _findings(config: MatrixConfig, differences: Mapping[tuple[str, str], Comparison]) -> Iterator[str]:
    for name, policy in config.policies.items():
        if not policy.trained_in:
            continue
        for environment in config.environments:
            if environment != policy.trained_in:
                yield from _mismatch(name, policy, environment, differences)


def _mismatch(
    name: str, policy: MatrixPolicy, environment: str, differences: Mapping[tuple[str, str], Comparison]
) -> Iterator[str]:
    home = policy.trained_in
    across = differences.get((in_words(name, environment), in_words(name, home)))
    gain_home = differences.get((in_words(name, home), in_words(policy.start, home)))
    gain_away = differences.get((in_words(name, environment), in_words(policy.start, environment)))
    if gain_home and gain_away:
        if gain_home.ci_low > 0 and gain_away.ci_low <= 0:
            word = "loses there" if gain_away.ci_high < 0 else "shows nothing there"
            yield (
                f"Mismatch: what {name} learned in {home} ({_points(gain_home)} over {policy.start}) "
                f"does not carry over to {environment}, where it {word} ({_points(gain_away)})."
            )
        elif gain_home.ci_low > 0:
            yield (
                f"What {name} learned in {home} ({_points(gain_home)} over {policy.start}) "
                f"carries over to {environment} ({_points(gain_away)})."
            )
        else:
            yield f"{name} learned nothing that {home} shows ({_points(gain_home)} over {policy.start})."
    if across and across.ci_high < 0:
        yield (
            f"{name} solves {100 * across.reference_value:.1f} % in {home}, where it was trained, "
            f"and {100 * across.treatment_value:.1f} % in {environment} ({_points(across)})."
        )
    elif across:
        yield f"No mismatch shown for {name} between {home} and {environment} ({_points(across)})."


def _points(one: Comparison) -> str:
    return f"{100 * one.difference:+.1f} points, 95 % interval {100 * one.ci_low:+.1f} to {100 * one.ci_high:+.1f}"

"""Every result as a table, for the terminal, the report, CSV and Parquet.

Reads records of evaluation and analysis; makes `Table` records. Guarantees: a column holds one type (or None); rates
are shares between 0 and 1, unformatted; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repairgym.analysis.behavior import BehaviorSummary
from repairgym.analysis.overview import Analysis
from repairgym.analysis.selection import SelectionStudy
from repairgym.evaluation.matrix import Matrix
from repairgym.evaluation.pass_at_k import LabelResult
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.summary import StageResult
from repairgym.records import Record

Value = str | int | float | bool | None


class Table(Record):
    """Rows under named columns."""

    name: str
    """File name without suffix."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


def table(name: str, title: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> Table:
    """Return a table; rows are copied."""
    return Table(name=name, title=title, columns=tuple(columns), rows=tuple(tuple(row) for row in rows))


def stage_table(stages: Iterable[StageResult]) -> Table:
    """Pass@1 of every stage on every test set."""
    columns = (
        *("stage", "test_set", "status", "pass_at_1", "ci_low", "ci_high", "standard_error_tasks"),
        *("standard_error_runs", "pass_at_1_without_invalids", "exact_match_rate", "num_tasks", "num_samples"),
        *("exploited_rate", "suspicious_rate", "invalid_rate", "disabled_gates"),
    )
    rows = []
    for stage in stages:
        rate, valid, num = stage.pass_at_1, stage.pass_at_1_without_invalids, stage.num_samples
        rows.append(
            (
                *(
                    stage.stage,
                    stage.test_set,
                    stage.status,
                    rate.value,
                    rate.ci_low,
                    rate.ci_high,
                    rate.standard_error,
                ),
                *(
                    rate.standard_error_runs,
                    valid.value if valid else None,
                    stage.exact_match_rate,
                    stage.num_tasks,
                    num,
                ),
                *(stage.num_exploited / num, stage.num_suspicious / num, stage.num_invalid / num),
                " ".join(stage.disabled_gates),
            )
        )
    return table("stages", "Pass@1 of every stage", columns, rows)


def pass_at_k_table(stages: Iterable[StageResult]) -> Table:
    """Unbiased Pass@k; None where samples are missing."""
    rows = [(stage.stage, stage.test_set, k.k, k.value, k.num_tasks) for stage in stages for k in stage.pass_at_k]
    return table("pass_at_k", "Pass@k", ("stage", "test_set", "k", "pass_at_k", "num_tasks"), rows)


def comparison_table(comparisons: Iterable[Comparison]) -> Table:
    """Paired differences."""
    columns = (
        *("treatment", "reference", "test_set", "difference", "ci_low", "ci_high", "cluster_ci_low"),
        *("cluster_ci_high", "difference_without_invalids", "mcnemar_p", "num_tasks", "sentence"),
    )
    rows = [[getattr(comparison, column) for column in columns] for comparison in comparisons]
    return table("comparisons", "Paired differences of Pass@1", columns, rows)


def label_table(labels: Iterable[LabelResult]) -> Table:
    """Pass@1 by label."""
    columns = (
        "label",
        "value",
        "pass_at_1",
        "ci_low",
        "ci_high",
        "num_tasks",
        "num_samples",
        "exploited_rate",
        "invalid_rate",
    )
    rows = [
        (
            *(result.label, result.value, result.pass_at_1.value, result.pass_at_1.ci_low, result.pass_at_1.ci_high),
            *(result.pass_at_1.num_tasks, result.pass_at_1.num_samples, result.exploited_rate, result.invalid_rate),
        )
        for result in labels
    ]
    return table("labels", "Pass@1 by label", columns, rows)


def matrix_tables(matrix: Matrix) -> list[Table]:
    """Cells and differences of a matrix."""
    columns = (
        *("policy", "environment", "pass_at_1", "ci_low", "ci_high", "standard_error_runs", "num_tasks"),
        *("num_samples", "exploited_rate", "invalid_rate", "disabled_gates"),
    )
    rows = [
        (
            *(cell.policy, cell.environment, cell.pass_at_1.value, cell.pass_at_1.ci_low, cell.pass_at_1.ci_high),
            *(cell.pass_at_1.standard_error_runs, cell.pass_at_1.num_tasks, cell.pass_at_1.num_samples),
            *(cell.exploited_rate, cell.invalid_rate, " ".join(cell.disabled_gates)),
        )
        for cell in matrix.cells
    ]
    differences = comparison_table(matrix.differences)
    return [
        table("matrix", f"Policies by environments on {matrix.test_set}", columns, rows),
        differences.model_copy(update={"name": "matrix_differences", "title": "Differences within the matrix"}),
    ]


def selection_tables(study: SelectionStudy) -> list[Table]:
    """Best-of-k and abstention curves."""
    columns = (
        *("scorer", "k", "value", "ci_low", "ci_high", "pass_at_1", "pass_at_k"),
        *("gap_closed", "gap_closed_low", "gap_closed_high", "num_tasks"),
    )
    rows = [[getattr(selection, column) for column in columns] for selection in study.selections]
    points = [
        (curve.confidence, point.coverage, point.accuracy, curve.auroc, curve.mean_risk, curve.num_candidates)
        for curve in study.abstentions
        for point in curve.points
    ]
    names = ("confidence", "coverage", "accuracy", "auroc", "mean_risk", "num_candidates")
    return [
        table("selection", f"Best of {study.k} in {study.phase}", columns, rows),
        table("abstention", f"Accuracy by coverage on {study.phase}", names, points),
    ]


def analysis_tables(analysis: Analysis) -> list[Table]:
    """Return every non-empty table of an analysis."""
    tables = [
        _metric_table(analysis.behavior),
        _tool_table(analysis),
        _transition_table(analysis.behavior),
        _shift_table(analysis),
        _length_table(analysis.behavior),
        _error_table(analysis.behavior),
        _exploit_table(analysis),
        _example_table(analysis),
        _gap_table(analysis),
        _drift_table(analysis),
        _curve_table(analysis),
    ]
    return [table for table in tables if table.rows]


def _metric_table(behavior: Sequence[BehaviorSummary]) -> Table:
    fields = tuple(type(behavior[0].metrics).model_fields) if behavior else ()
    rows = [(field, *(getattr(summary.metrics, field) for summary in behavior)) for field in fields]
    return table("behavior", "Behavior", ("measure", *(summary.stage for summary in behavior)), rows)


def _tool_table(analysis: Analysis) -> Table:
    rows = [(step, tool, share) for step, tools in analysis.tools_by_step.items() for tool, share in tools.items()]
    return table("tools_by_step", "Tools during training", ("step", "tool", "share"), rows)


def _transition_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, tool, following, count, summary.transitions.probabilities()[tool][following])
        for summary in behavior
        for tool, row in summary.transitions.counts.items()
        for following, count in row.items()
    ]
    return table("transitions", "Tool transitions", ("stage", "tool", "next_tool", "count", "share"), rows)


def _shift_table(analysis: Analysis) -> Table:
    shift = analysis.shift
    rows = (
        [
            (" > ".join(change.tools), change.before, change.after, shift.divergence, shift.p_value, shift.num_before)
            for change in shift.changes
        ]
        if shift
        else []
    )
    columns = ("tools", "share_before", "share_after", "divergence_bits", "p_value", "num_episodes_before")
    return table("policy_shift", "Tool sequences with the largest change", columns, rows)


def _length_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, it.verdict.value, it.num_episodes, it.mean_turns, it.mean_tokens, it.mean_action_tokens)
        for summary in behavior
        for it in summary.lengths
    ]
    columns = ("stage", "verdict", "num_episodes", "mean_turns", "mean_tokens", "mean_action_tokens")
    return table("lengths", "Turns and tokens by outcome", columns, rows)


def _error_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, verdict, name, count)
        for summary in behavior
        for verdict, counts in summary.error_classes.items()
        for name, count in counts.items()
    ]
    columns = ("stage", "verdict", "error_class", "num_episodes")
    return table("error_classes", "Main errors by class", columns, rows)


def _exploit_table(analysis: Analysis) -> Table:
    columns = ("step", "detector", "severity", "num_episodes", "num_in_step")
    rows = [[getattr(count, column) for column in columns] for count in analysis.exploits]
    return table("exploits_by_step", "Exploit findings during training", columns, rows)


def _example_table(analysis: Analysis) -> Table:
    rows = [
        (
            example.detector,
            example.severity,
            example.step,
            example.verdict.value,
            example.trajectory_id,
            example.place,
            example.detail,
        )
        for example in analysis.examples
    ]
    columns = ("detector", "severity", "step", "verdict", "trajectory_id", "place", "detail")
    return table("exploit_examples", "Examples of exploit findings", columns, rows)


def _gap_table(analysis: Analysis) -> Table:
    columns = (
        *("step", "reported", "validated", "gap", "ci_low", "ci_high"),
        *("marked_share", "num_audited", "num_tasks"),
    )
    rows = [[getattr(point, column) for column in columns] for point in analysis.gap]
    return table("reward_gap", "Reported against validated reward", columns, rows)


def _drift_table(analysis: Analysis) -> Table:
    columns = ("task_id", "early", "late", "difference", "num_early", "num_late")
    tasks = analysis.drift.tasks if analysis.drift else ()
    return table(
        "drift",
        "Solve rate, first and second half of training",
        columns,
        [[getattr(task, column) for column in columns] for task in tasks],
    )


def _curve_table(analysis: Analysis) -> Table:
    rows: list[tuple[Value, ...]] = [
        ("reward", point.step, point.value, point.standard_error, point.num_samples) for point in analysis.reward
    ]
    rows += [("log_prob_gap", point.step, point.value, None, None) for point in analysis.log_prob_gap]
    return table("curves", "Training by step", ("quantity", "step", "value", "standard_error", "num_samples"), rows)

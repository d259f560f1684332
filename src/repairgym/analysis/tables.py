"""Every result as a table, for the terminal, the report, CSV and Parquet.

Reads records of evaluation and analysis; makes `Table` records. Guarantees: a column holds one type (or None); rates
are shares between 0 and 1, unformatted; nothing is computed here.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from repairgym.analysis.behavior import BehaviorSummary, OutcomeLength
from repairgym.analysis.overview import Analysis
from repairgym.analysis.selection import SelectionStudy
from repairgym.analysis.sweeps import ArmPlace, Importance, SweepRun
from repairgym.evaluation.contamination import Probe
from repairgym.evaluation.matrix import Matrix
from repairgym.evaluation.merging import MergeScore
from repairgym.evaluation.pass_at_k import LabelResult
from repairgym.evaluation.planning import PlannedStudy
from repairgym.evaluation.ranking import Place
from repairgym.evaluation.significance import Comparison
from repairgym.evaluation.summary import StageResult
from repairgym.evaluation.variance import RecipeComparison, VarianceParts
from repairgym.records import Record

Value = str | int | float | bool | None
_RUN_COLUMNS = ("seed", "status", "value", "wall_s", "cpu_s", "num_tokens", "num_sampled_tokens", "flops")
_ESTIMATE = "pass_at_1=pass_at_1.value ci_low=pass_at_1.ci_low ci_high=pass_at_1.ci_high"


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


def _record_table(name: str, title: str, columns: str, records: Iterable[object]) -> Table:
    """Return a table with a row per record; ``columns`` names fields, or ``column=path.to.field``."""
    pairs = [(column, path or column) for column, _, path in (word.partition("=") for word in columns.split())]
    rows = [[_value(record, path) for _, path in pairs] for record in records]
    return table(name, title, [column for column, _ in pairs], rows)


def _value(record: object, path: str) -> Value:
    value: Any = record
    for field in path.split("."):
        value = None if value is None else getattr(value, field)
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, Enum):
        return str(value.value)
    return value  # type: ignore[no-any-return]


def stage_table(stages: Iterable[StageResult]) -> Table:
    """Pass@1 of every stage on every test set."""
    columns = (
        f"stage test_set status {_ESTIMATE} standard_error_tasks=pass_at_1.standard_error "
        "standard_error_runs=pass_at_1.standard_error_runs "
        "pass_at_1_without_invalids=pass_at_1_without_invalids.value official_pass_at_1 exact_match_rate num_tasks "
        "num_samples "
        "exploited_rate suspicious_rate invalid_rate disabled_gates"
    )
    return _record_table("stages", "Pass@1 of every stage", columns, stages)


def pass_at_k_table(stages: Iterable[StageResult]) -> Table:
    """Unbiased Pass@k and pass^k; None where samples are missing."""
    rows = [
        (stage.stage, stage.test_set, k.k, k.value, k.all_value, k.num_tasks)
        for stage in stages
        for k in stage.pass_at_k
    ]
    columns = ("stage", "test_set", "k", "pass_at_k", "pass_hat_k", "num_tasks")
    return table("pass_at_k", "Pass@k (one of k passes) and pass^k (all of k pass)", columns, rows)


def cost_table(stages: Iterable[StageResult]) -> Table:
    """Costs of a solved sample; None where nothing was solved."""
    columns = (
        "stage test_set num_passed tokens_per_solve sampled_tokens_per_solve episode_s_per_solve cpu_s_per_solve "
        "usd_per_solve "
        "corrected_pass_at_1=corrected.value corrected_low=corrected.ci_low corrected_high=corrected.ci_high"
    )
    return _record_table("costs", "Costs of a solve, and Pass@1 corrected for errors of the verdicts", columns, stages)


def record_table(name: str, title: str, records: Sequence[Record]) -> Table:
    """Return a table with a row per record and a column per field; empty without records."""
    columns = list(type(records[0]).model_fields) if records else []
    return table(name, title, columns, ([getattr(it, column) for column in columns] for it in records))


def comparison_table(
    comparisons: Iterable[Comparison], name: str = "comparisons", title: str = "Paired differences of Pass@1"
) -> Table:
    """Paired differences."""
    columns = (
        "treatment reference test_set difference ci_low ci_high cluster_ci_low cluster_ci_high "
        "difference_without_invalids mcnemar_p num_tasks sentence"
    )
    return _record_table(name, title, columns, comparisons)


def plan_tables(studies: Iterable[PlannedStudy], needs: Iterable[tuple[int, int | None]]) -> list[Table]:
    """Planned studies, and (samples per task, tasks) that the difference asked for needs."""
    columns = "num_tasks num_samples num_episodes standard_error detectable_difference power"
    rows = [(samples, tasks, None if tasks is None else 2 * tasks * samples) for samples, tasks in needs]
    return [
        _record_table("studies", "Smallest difference that is seen, and power for the one asked for", columns, studies),
        table("needs", "Tasks that the difference needs", ("num_samples", "num_tasks", "num_episodes"), rows),
    ]


def rank_table(places: Iterable[Place], test_set: str) -> Table:
    """Policies by Pass@1, with intervals of their ranks."""
    columns = f"name {_ESTIMATE} num_tasks=pass_at_1.num_tasks rank_low rank_high indistinguishable"
    return _record_table("ranks", f"Ranks by Pass@1 on the common tasks of {test_set}", columns, places)


def variance_table(parts: VarianceParts) -> Table:
    """Parts of the variance of one sample's success, with their shares."""
    rows = [
        (name, value, None if value is None or not parts.total else value / parts.total)
        for name, value in parts.parts.items()
    ]
    title = (
        f"Variance of a sample: {parts.num_tasks} tasks, {parts.num_seeds} seeds, {parts.num_samples} samples, "
        f"{parts.num_regraded} graded twice"
    )
    return table("variance", title, ("part", "variance", "share"), rows)


def recipe_table(comparisons: Iterable[RecipeComparison]) -> Table:
    """Paired differences of recipes, over new tasks, and over new tasks and seeds."""
    rows = list(comparisons)
    columns = (
        "treatment reference difference ci_low ci_high seeds_ci_low seeds_ci_high treatment_value reference_value "
        "num_tasks num_seeds"
    )
    shown = _record_table("differences", "Paired differences of Pass@1, task by task and seed by seed", columns, rows)
    by_seed = (" ".join(f"{100 * value:+.1f}" for value in row.by_seed) for row in rows)
    cells = [(*cells, points) for cells, points in zip(shown.rows, by_seed, strict=True)]
    return table(shown.name, shown.title, (*shown.columns, "points_by_seed"), cells)


def merge_table(score: MergeScore) -> Table:
    """Share of the passed samples that hold each check, and the merge score."""
    rows = [
        *((name, share, None, None) for name, share in score.held.items()),
        ("merge score", score.value, score.ci_low, score.ci_high),
    ]
    title = f"Merge score: {score.num_passed} of {score.num_samples} samples passed"
    return table("merge", title, ("check", "share", "ci_low", "ci_high"), rows)


def probe_table(probes: Iterable[Probe]) -> Table:
    """Probes of contamination."""
    columns = "what num_held_out num_control num_units held_out control difference ci_low ci_high"
    return _record_table("contamination", "Held-out against control", columns, probes)


def sweep_tables(
    runs: Iterable[SweepRun],
    settings: Iterable[Importance],
    arms: Iterable[ArmPlace],
    comparisons: Iterable[RecipeComparison] = (),
) -> list[Table]:
    """Importance of settings with the effects of their values, or places and differences of arms; then the runs."""
    rows = list(settings)
    effects = [value for row in rows for value in row.values]
    effect_columns = "setting value num_runs mean effect ci_low ci_high mean_best win_share"
    shown = [
        _record_table("importance", "Settings by the share of the variance between runs", "setting explained p", rows),
        _record_table("effects", "Runs with a value against all others", effect_columns, effects),
        _record_table(
            "arms",
            "Arms by the mean of their seeds",
            "name num_runs mean ci_low ci_high rank_low rank_high indistinguishable",
            arms,
        ),
        recipe_table(comparisons),
        table(
            "runs",
            "Runs",
            ("number", "settings", *_RUN_COLUMNS),
            [
                (
                    row.number,
                    row.arm or " ".join(f"{name}={value}" for name, value in row.settings.items()),
                    *(getattr(row, name) for name in _RUN_COLUMNS),
                )
                for row in runs
            ],
        ),
    ]
    return [each for each in shown if each.rows]


def label_table(labels: Iterable[LabelResult]) -> Table:
    """Pass@1 by label."""
    counts = "num_tasks=pass_at_1.num_tasks num_samples=pass_at_1.num_samples"
    columns = f"label value {_ESTIMATE} {counts} exploited_rate invalid_rate"
    return _record_table("labels", "Pass@1 by label", columns, labels)


def matrix_tables(matrix: Matrix) -> list[Table]:
    """Cells and differences of a matrix."""
    columns = (
        f"policy environment {_ESTIMATE} standard_error_runs=pass_at_1.standard_error_runs "
        "num_tasks=pass_at_1.num_tasks num_samples=pass_at_1.num_samples exploited_rate invalid_rate disabled_gates"
    )
    return [
        _record_table("matrix", f"Policies by environments on {matrix.test_set}", columns, matrix.cells),
        comparison_table(matrix.differences, "matrix_differences", "Differences within the matrix"),
    ]


def selection_tables(study: SelectionStudy) -> list[Table]:
    """Best-of-k and abstention curves."""
    columns = "scorer k value ci_low ci_high pass_at_1 pass_at_k gap_closed gap_closed_low gap_closed_high num_tasks"
    points = [
        (curve.confidence, coverage, accuracy, curve.auroc, curve.mean_risk, curve.num_candidates)
        for curve in study.abstentions
        for coverage, accuracy in curve.points
    ]
    names = ("confidence", "coverage", "accuracy", "auroc", "mean_risk", "num_candidates")
    return [
        _record_table("selection", f"Best of {study.k} in {study.phase}", columns, study.selections),
        table("abstention", f"Accuracy by coverage on {study.phase}", names, points),
    ]


def analysis_tables(analysis: Analysis) -> list[Table]:
    """Return every non-empty table of an analysis."""
    drift = analysis.drift.tasks if analysis.drift else ()
    tools = [(step, tool, share) for step, tools in analysis.tools_by_step.items() for tool, share in tools.items()]
    exploits = "step detector severity num_episodes num_in_step"
    examples = "detector severity step verdict trajectory_id place detail"
    gap = "step reported validated gap ci_low ci_high marked_share num_audited num_tasks"
    drifts = "task_id early late difference num_early num_late"
    tables = [
        _metric_table(analysis.behavior),
        table("tools_by_step", "Tools during training", ("step", "tool", "share"), tools),
        _transition_table(analysis.behavior),
        _shift_table(analysis),
        _length_table(analysis.behavior),
        _token_table(analysis.behavior),
        _error_table(analysis.behavior),
        _record_table("exploits_by_step", "Exploit findings during training", exploits, analysis.exploits),
        _record_table("exploit_examples", "Examples of exploit findings", examples, analysis.examples),
        _record_table("reward_gap", "Reported against validated reward", gap, analysis.gap),
        _record_table("drift", "Solve rate, first and second half of training", drifts, drift),
        _curve_table(analysis),
    ]
    return [table for table in tables if table.rows]


def _metric_table(behavior: Sequence[BehaviorSummary]) -> Table:
    fields = tuple(type(behavior[0].metrics).model_fields) if behavior else ()
    rows = [(field, *(getattr(summary.metrics, field) for summary in behavior)) for field in fields]
    return table("behavior", "Behavior", ("measure", *(summary.stage for summary in behavior)), rows)


def _transition_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, tool, following, count, summary.next_tools()[tool][following])
        for summary in behavior
        for tool, row in summary.transitions.items()
        for following, count in row.items()
    ]
    return table("transitions", "Tool transitions", ("stage", "tool", "next_tool", "count", "share"), rows)


def _shift_table(analysis: Analysis) -> Table:
    shift = analysis.shift
    rows = []
    if shift:
        common = (shift.divergence, shift.p_value, shift.num_before)
        rows = [(" > ".join(change.tools), change.before, change.after, *common) for change in shift.changes]
    columns = ("tools", "share_before", "share_after", "divergence_bits", "p_value", "num_episodes_before")
    return table("policy_shift", "Tool sequences with the largest change", columns, rows)


def _length_table(behavior: Sequence[BehaviorSummary]) -> Table:
    columns = tuple(OutcomeLength.model_fields)
    lengths = [(summary.stage, length) for summary in behavior for length in summary.lengths]
    rows = [(stage, *(_value(length, column) for column in columns)) for stage, length in lengths]
    return table("lengths", "Turns and tokens by outcome", ("stage", *columns), rows)


def _token_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, verdict.value, part, share)
        for summary in behavior
        for verdict, parts in summary.token_shares.items()
        for part, share in parts.items()
    ]
    return table("token_shares", "Tokens by tool and outcome", ("stage", "verdict", "part", "share"), rows)


def _error_table(behavior: Sequence[BehaviorSummary]) -> Table:
    rows = [
        (summary.stage, verdict, name, count)
        for summary in behavior
        for verdict, counts in summary.error_classes.items()
        for name, count in counts.items()
    ]
    return table("error_classes", "Main errors by class", ("stage", "verdict", "error_class", "num_episodes"), rows)


def _curve_table(analysis: Analysis) -> Table:
    points = [("reward", point) for point in analysis.reward] + [("log_prob_gap", gap) for gap in analysis.log_prob_gap]
    fields = ("step", "value", "standard_error", "num_samples")
    rows = [(name, point.step, point.value, point.standard_error, point.num_samples or None) for name, point in points]
    return table("curves", "Training by step", ("quantity", *fields), rows)

"""The content of the report, gathered from a run folder.

Reads ``run.db`` (read-only) and the files of `run_folder`; makes one `Content`. Guarantees: absent parts of an
unfinished run are None or empty; only the example trajectories are held as text; the run folder is unchanged.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from repairgym.analysis.behavior import BehaviorSummary, mean, summarize_behavior, tool_counts
from repairgym.analysis.curves import Point, by_step, find_metric, metric_curve
from repairgym.analysis.episodes import EpisodeFacts, Example, choose_examples, read_episodes
from repairgym.analysis.overview import Analysis, analyze, sides, training_phase
from repairgym.analysis.selection import SelectionStudy, phase_to_study, study_selection
from repairgym.config.commands import AnalysisConfig
from repairgym.config.loading import flatten
from repairgym.evaluation.matrix import Matrix, build_matrix
from repairgym.evaluation.pass_at_k import LabelResult, by_label, labels_of, verdicts_by_task
from repairgym.evaluation.stages import (
    MUTATIONS,
    START,
    TREATMENT,
    VALIDATION,
    parse_eval_phase,
    stage_label,
    training_step,
)
from repairgym.evaluation.summary import StageResult, Summary, build_summary
from repairgym.records import Task
from repairgym.report import run_folder
from repairgym.report.figures import NUM_COLORS, Figure, Series, curves, share_plot
from repairgym.report.reading import Reading, read
from repairgym.report.tokens import find_tokenizer
from repairgym.rollout.names import ALARM_PREFIX, eval_phase
from repairgym.rollout.rows import Event
from repairgym.rollout.store import RunStore

_READING_CHARS = 300_000
"""Text of one example; five of them stay well below the report's bound of 3 MB."""
_READING_TESTS = 20


@dataclass(frozen=True)
class Content:
    """The report in data."""

    run_name: str
    summary: Summary
    curves: list[Figure]
    other_metrics: list[Figure]
    tool_shares: Figure | None
    tool_names: list[str]
    analysis: Analysis
    selection: SelectionStudy | None
    """None when no evaluation has several samples per task."""
    labels: list[LabelResult]
    """Of the last stage, by label; empty without tasks."""
    labels_stage: StageResult | None
    matrix: Matrix | None
    log_prob_gap: float | None
    alarms: list[Event]
    """Oldest first."""
    funnel: run_folder.Funnel | None
    settings: list[tuple[str, str]]
    readings: list[tuple[Example, str, Reading]]
    """Examples with stage and text."""

    def behavior_of(self, stage: str) -> BehaviorSummary | None:
        """Return the behavior of ``stage``."""
        return next((summary for summary in self.analysis.behavior if summary.stage == stage), None)


def gather(folder: Path) -> Content:
    """Read a run folder.

    Raises:
        InputError: there is no run store, or a file of the run cannot be read.
    """
    tasks = run_folder.read_tasks(folder)
    config = run_folder.read_config(folder)
    packages = {task.id: task.provenance.package for task in tasks.values()}
    with RunStore.open(folder / run_folder.DATABASE_FILE, is_read_only=True) as store:
        phase = training_phase(store)
        digests = run_folder.task_digests(folder)
        summary = build_summary(store, config, packages=packages, tasks=tasks, digests=digests)
        training = list(read_episodes(store, phase=phase))
        evaluated = list(read_episodes(store, phase_prefix="eval/"))
        tokenizer = find_tokenizer(folder)
        examples = choose_examples([*evaluated, *training])
        names = list(tool_counts([*training, *evaluated]))
        analysis = _analyze(store, phase, training, evaluated)
        labels_stage = _labels_stage(summary)
        matrix_config = run_folder.read_matrix_config(folder)
        return Content(
            run_name=folder.resolve().name,
            summary=summary,
            curves=curves(_curves(store, summary, training, analysis)),
            other_metrics=curves(_metrics(store)),
            tool_shares=share_plot(analysis.tools_by_step, names[:NUM_COLORS]),
            tool_names=names,
            analysis=analysis,
            selection=_selection(store, phase),
            labels=_labels(store, labels_stage, tasks),
            labels_stage=labels_stage,
            matrix=build_matrix(store, matrix_config) if matrix_config else None,
            log_prob_gap=mean(abs(point.value) for point in analysis.log_prob_gap),
            alarms=[event for event in store.events() if event.kind.startswith(ALARM_PREFIX)],
            funnel=run_folder.read_funnel(folder),
            settings=list(flatten(config)),
            readings=[_read_example(example, store, tasks, tokenizer) for example in examples],
        )


def _read_example(
    example: Example, store: RunStore, tasks: Mapping[str, Task], tokenizer: Tokenizer | None
) -> tuple[Example, str, Reading]:
    trajectory = store.trajectory(example.episode.id)
    phase = parse_eval_phase(example.episode.phase)
    task, ledger = tasks.get(trajectory.task_id), trajectory.ledger
    reading = read(trajectory, task, ledger, tokenizer, max_chars=_READING_CHARS, max_tests=_READING_TESTS)
    return example, stage_label(phase.stage) if phase else example.episode.phase, reading


def _analyze(
    store: RunStore, phase: str, training: Sequence[EpisodeFacts], evaluated: Sequence[EpisodeFacts]
) -> Analysis:
    """Analyze RL's start against its end on held-out tasks; without these, training's first and last step."""
    start, end = (
        [episode for episode in evaluated if episode.phase == eval_phase(stage, MUTATIONS)]
        for stage in (START, TREATMENT)
    )
    config = AnalysisConfig(phase=phase)
    if not start and not end:
        return analyze(store, config, training, *sides(store, config, training))
    behavior = [summarize_behavior(stage, some) for stage, some in ((START, start), (TREATMENT, end)) if some]
    return replace(analyze(store, config, training, start, end), behavior=behavior)


def _selection(store: RunStore, phase: str) -> SelectionStudy | None:
    studied = phase_to_study(store.rows(phase_prefix="eval/"))
    return study_selection(store, studied, training_phase=phase) if studied else None


def _labels_stage(summary: Summary) -> StageResult | None:
    """Return the stage to break down: the trained policy on held-out tasks, or else the last stage."""
    return summary.stage(TREATMENT, MUTATIONS) or next(reversed(summary.stages), None)


def _labels(store: RunStore, stage: StageResult | None, tasks: Mapping[str, Task]) -> list[LabelResult]:
    if stage is None or not tasks:
        return []
    verdicts = verdicts_by_task(store.rows(phase=eval_phase(stage.stage, stage.test_set)))
    results = by_label(verdicts, {task.id: labels_of(task) for task in tasks.values()}, num_resamples=2000)
    num_values = Counter(result.label for result in results)
    return [result for result in results if num_values[result.label] > 1]


def _curves(store: RunStore, summary: Summary, training: Sequence[EpisodeFacts], analysis: Analysis) -> list[Series]:
    turns = by_step(training, lambda metrics: metrics.mean_turns)
    blind = by_step(training, lambda metrics: metrics.blind_submit_rate)
    note = "of the submitted, valid training episodes: no test run after the last edit"
    return [
        _reward_series(analysis.reward),
        _checkpoint_series(summary, VALIDATION, "Validation Pass@1", "checkpoints on validation tasks"),
        _checkpoint_series(summary, MUTATIONS, "Held-out Pass@1", "checkpoints on tasks of packages never trained on"),
        Series("Turns per episode", "training", turns),
        Series("Blind submissions", note, blind, is_rate=True),
        Series("Entropy per sampled token", "nats", find_metric(store, analysis.phase, "entropy")),
        Series("Sampler-learner log-prob gap", "mean |difference|; below 0.005 is healthy", analysis.log_prob_gap),
    ]


def _reward_series(points: Sequence[Point]) -> Series:
    errors = [point.standard_error or 0.0 for point in points]
    return Series(
        "Training reward",
        "mean of the valid samples ± one standard error over tasks",
        points,
        low=[max(0.0, point.value - error) for point, error in zip(points, errors, strict=True)],
        high=[min(1.0, point.value + error) for point, error in zip(points, errors, strict=True)],
        is_rate=True,
    )


def _checkpoint_series(summary: Summary, test_set: str, title: str, note: str) -> Series:
    steps = {training_step(result.stage): result for result in summary.stages if result.test_set == test_set}
    rates = {step: steps[step].pass_at_1 for step in sorted(step for step in steps if step is not None)}
    return Series(
        title,
        f"{note}, 95 % interval",
        [Point(step=step, value=rate.value, num_samples=rate.num_samples) for step, rate in rates.items()],
        low=[rate.ci_low for rate in rates.values()],
        high=[rate.ci_high for rate in rates.values()],
        is_rate=True,
    )


def _metrics(store: RunStore) -> Iterator[Series]:
    for phase in store.metric_phases():
        for name in store.metric_names(phase):
            yield Series(name, phase, metric_curve(store, phase, name))

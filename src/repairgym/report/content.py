"""Everything that the report shows, gathered from a run folder.

Reads ``run.db`` (read-only) and the files of `run_folder`; makes one `Content`. Invariants: works on a run that is not
finished (what is absent is None or empty), holds the text of no trajectory but those it shows, and changes nothing in
the run folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repairgym.analysis.behavior import by_step, habits
from repairgym.analysis.curves import Point, find_metric, mean_log_prob_gap, metric_curve, reward_curve
from repairgym.analysis.episodes import Episode, read_episodes
from repairgym.analysis.overview import Analysis, BehaviorSummary, analyse, manner, sides, training_phase
from repairgym.analysis.selection_study import SelectionStudy, phase_to_study, study_selection
from repairgym.analysis.tool_use import tool_counts, tool_shares_by_step
from repairgym.config.evaluation import AnalysisConfig
from repairgym.config.loading import flatten
from repairgym.evaluation.breakdown import LabelResult, by_label, labels_of
from repairgym.evaluation.matrix import Matrix, build_matrix
from repairgym.evaluation.pass_at_k import verdicts_by_task
from repairgym.evaluation.stages import MUTATIONS, START, TREATMENT, VALIDATION, training_step
from repairgym.evaluation.summary import StageResult, Summary, build_summary
from repairgym.records import Task
from repairgym.report.figures import NUM_COLOURS, Figure, Series, curve, share_plot
from repairgym.report.reading import Reading, choose, read
from repairgym.report.run_folder import (
    DATABASE_FILE,
    Funnel,
    read_config,
    read_funnel,
    read_matrix_config,
    read_tasks,
    task_digests,
)
from repairgym.report.tokens import find_tokenizer
from repairgym.rollout.names import ALARM_PREFIX, eval_phase
from repairgym.rollout.rows import Event
from repairgym.rollout.store import RunStore


@dataclass(frozen=True)
class Content:
    """The report in data."""

    run_name: str
    summary: Summary
    curves: list[Figure]
    other_metrics: list[Figure]
    tool_shares: Figure | None
    tool_names: list[str]
    manners: list[BehaviorSummary]
    """Start first, end last; one or none when the run is not finished."""
    analysis: Analysis
    selection: SelectionStudy | None
    """None when no evaluation has several samples per task."""
    labels: list[LabelResult]
    """Of the last stage, by label; empty without tasks."""
    labels_stage: StageResult | None
    matrix: Matrix | None
    log_prob_gap: float | None
    alarms: list[Event]
    """In the order in which they came."""
    funnel: Funnel | None
    settings: list[tuple[str, str]]
    readings: list[Reading]

    def manner(self, stage: str) -> BehaviorSummary | None:
        """The manner of ``stage``."""
        return next((one for one in self.manners if one.stage == stage), None)


def gather(folder: Path) -> Content:
    """Read a run folder.

    Raises:
        InputError: there is no run store, or a file of the run cannot be read.
    """
    tasks = read_tasks(folder)
    config = read_config(folder)
    packages = {task.id: task.provenance.package for task in tasks.values()}
    with RunStore.open(folder / DATABASE_FILE, is_read_only=True) as store:
        phase = training_phase(store)
        summary = build_summary(store, config, packages=packages, digests=task_digests(folder))
        training = list(read_episodes(store, phase=phase))
        evaluated = list(read_episodes(store, phase_prefix="eval/"))
        tokenizer = find_tokenizer(folder)
        chosen = [(one, store.trajectory(one.episode.id)) for one in choose([*evaluated, *training])]
        names = list(tool_counts([*training, *evaluated]))
        analysis = _analyse(store, phase, training, evaluated)
        labels_stage = _labels_stage(summary)
        matrix_config = read_matrix_config(folder)
        return Content(
            run_name=folder.resolve().name,
            summary=summary,
            curves=list(_curves(store, summary, training, phase)),
            other_metrics=list(_other_metrics(store)),
            tool_shares=share_plot(tool_shares_by_step(training), names[:NUM_COLOURS]),
            tool_names=names,
            manners=analysis.manners,
            analysis=analysis,
            selection=_selection(store, phase),
            labels=_labels(store, labels_stage, tasks),
            labels_stage=labels_stage,
            matrix=build_matrix(store, matrix_config) if matrix_config else None,
            log_prob_gap=mean_log_prob_gap(store, phase),
            alarms=[event for event in store.events() if event.kind.startswith(ALARM_PREFIX)],
            funnel=read_funnel(folder),
            settings=list(flatten(config)),
            readings=[read(one, whole, tasks.get(whole.task_id), tokenizer) for one, whole in chosen],
        )


def _analyse(store: RunStore, phase: str, training: Sequence[Episode], evaluated: Sequence[Episode]) -> Analysis:
    """Behaviour of RL's start against its end on held-out tasks; without these, of training's first and last step."""
    start, end = (
        [one for one in evaluated if one.phase == eval_phase(stage, MUTATIONS)] for stage in (START, TREATMENT)
    )
    config = AnalysisConfig(phase=phase)
    if not start and not end:
        return analyse(store, config, training, *sides(store, config, training))
    found = analyse(store, config, training, start, end)
    manners = [manner(stage, some) for stage, some in ((START, start), (TREATMENT, end)) if some]
    return replace(found, manners=manners)


def _selection(store: RunStore, phase: str) -> SelectionStudy | None:
    studied = phase_to_study(store.rows(phase_prefix="eval/"))
    return study_selection(store, studied, training_phase=phase) if studied else None


def _labels_stage(summary: Summary) -> StageResult | None:
    """The stage whose results are broken down: the trained policy on held-out tasks, or else the last stage."""
    return summary.stage(TREATMENT, MUTATIONS) or next(reversed(summary.stages), None)


def _labels(store: RunStore, stage: StageResult | None, tasks: Mapping[str, Task]) -> list[LabelResult]:
    if stage is None or not tasks:
        return []
    verdicts = verdicts_by_task(store.rows(phase=eval_phase(stage.stage, stage.test_set)))
    found = by_label(verdicts, {task.id: labels_of(task) for task in tasks.values()}, num_resamples=2000)
    many = Counter(one.label for one in found)
    return [one for one in found if many[one.label] > 1]


def _curves(store: RunStore, summary: Summary, training: Sequence[Episode], phase: str) -> Iterator[Figure]:
    entropy = find_metric(store, phase, "entropy")
    gap = find_metric(store, phase, "log_prob_gap")
    series = [
        _reward_series(store, phase),
        _checkpoint_series(summary, VALIDATION, "Validation Pass@1", "checkpoints on validation tasks"),
        _checkpoint_series(summary, MUTATIONS, "Held-out Pass@1", "checkpoints on tasks of packages never trained on"),
        Series("Turns per episode", "training", _points(by_step(training, lambda some: habits(some).mean_turns))),
        Series(
            "Blind submissions",
            "of the submitted training episodes: no test run after the last edit",
            _points(by_step(training, lambda some: habits(some).blind_submit_rate)),
            is_rate=True,
        ),
        Series("Entropy per sampled token", "nats", metric_curve(store, phase, entropy) if entropy else []),
        Series(
            "Sampler against learner",
            "mean |log-prob gap|; below 0.005 is healthy",
            metric_curve(store, phase, gap) if gap else [],
        ),
    ]
    yield from (figure for one in series if (figure := curve(one)))


def _reward_series(store: RunStore, phase: str) -> Series:
    found = reward_curve(store.rows(phase=phase))
    errors = [point.standard_error or 0.0 for point in found]
    return Series(
        "Training reward",
        "mean of the valid samples ± one standard error",
        found,
        low=[max(0.0, point.value - error) for point, error in zip(found, errors, strict=True)],
        high=[min(1.0, point.value + error) for point, error in zip(found, errors, strict=True)],
        is_rate=True,
    )


def _checkpoint_series(summary: Summary, test_set: str, title: str, note: str) -> Series:
    by_training_step: dict[int, StageResult] = {}
    for result in summary.stages:
        step = training_step(result.stage)
        if step is not None and result.test_set == test_set:
            by_training_step[step] = result
    rates = {step: by_training_step[step].pass_at_1 for step in sorted(by_training_step)}
    return Series(
        title,
        f"{note}, 95 % interval",
        [Point(step=step, value=rate.value, num_samples=rate.num_samples) for step, rate in rates.items()],
        low=[rate.ci_low for rate in rates.values()],
        high=[rate.ci_high for rate in rates.values()],
        is_rate=True,
    )


def _points(values: Sequence[tuple[int, float]]) -> list[Point]:
    return [Point(step=step, value=value) for step, value in values]


def _other_metrics(store: RunStore) -> Iterator[Figure]:
    for phase in store.metric_phases():
        for name in store.metric_names(phase):
            if figure := curve(Series(name, phase, metric_curve(store, phase, name))):
                yield figure

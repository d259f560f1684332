"""Everything that the report shows, gathered from a run folder.

Reads ``run.db`` (read-only) and the files of `run_folder`; makes one `Content`. Invariants: works on a run that is not
finished (what is absent is None or empty), reads each trajectory's text once, and changes nothing in the run folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from mendwright.analysis.behaviour import (
    Habits,
    OutcomeLength,
    by_step,
    exploit_findings,
    habits,
    lengths_by_outcome,
    stop_reasons,
)
from mendwright.analysis.curves import Point, find_metric, mean_log_prob_gap, metric_curve, reward_curve
from mendwright.analysis.episodes import Episode, read_episodes
from mendwright.analysis.tool_use import Transitions, shares, tool_counts, tool_shares_by_step, transitions
from mendwright.evaluation.stages import MUTATIONS, START, TREATMENT, VALIDATION, training_step
from mendwright.evaluation.summary import StageResult, Summary, build_summary
from mendwright.recipes.alarms import EVENT_PREFIX
from mendwright.report.figures import NUM_COLOURS, Figure, Series, curve, share_plot
from mendwright.report.reading import Reading, choose, read
from mendwright.report.run_folder import (
    DATABASE_FILE,
    Funnel,
    flatten,
    read_config,
    read_funnel,
    read_tasks,
    task_digests,
)
from mendwright.report.tokens import find_tokenizer
from mendwright.rollout.phases import eval_phase
from mendwright.rollout.rows import Event
from mendwright.rollout.store import RunStore


@dataclass(frozen=True)
class Manner:
    """How the agent of one stage behaved on the held-out mutation tasks."""

    stage: str
    habits: Habits
    tools: dict[str, float]
    transitions: Transitions
    lengths: list[OutcomeLength]
    stop_reasons: dict[str, int]
    exploits: dict[str, int]


@dataclass(frozen=True)
class Content:
    """The report in data."""

    run_name: str
    summary: Summary
    curves: list[Figure]
    other_metrics: list[Figure]
    tool_shares: Markup | None
    tool_names: list[str]
    manners: list[Manner]
    """Start first, end last; one or none when the run is not finished."""
    log_prob_gap: float | None
    alarms: list[Event]
    """In the order in which they came."""
    funnel: Funnel | None
    settings: list[tuple[str, str]]
    readings: list[Reading]

    def manner(self, stage: str) -> Manner | None:
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
        summary = build_summary(store, config, packages=packages, digests=task_digests(folder))
        training = list(read_episodes(store, phase=TREATMENT))
        evaluated = list(read_episodes(store, phase_prefix="eval/"))
        tokenizer = find_tokenizer(folder)
        chosen = [(one, store.trajectory(one.episode.id)) for one in choose(evaluated)]
        names = list(tool_counts([*training, *evaluated]))
        return Content(
            run_name=folder.resolve().name,
            summary=summary,
            curves=list(_curves(store, summary, training)),
            other_metrics=list(_other_metrics(store)),
            tool_shares=share_plot(tool_shares_by_step(training), names[:NUM_COLOURS]),
            tool_names=names,
            manners=[one for stage in (START, TREATMENT) if (one := _manner(stage, evaluated))],
            log_prob_gap=mean_log_prob_gap(store, TREATMENT),
            alarms=[event for event in store.events() if event.kind.startswith(EVENT_PREFIX)],
            funnel=read_funnel(folder),
            settings=list(flatten(config)),
            readings=[read(one, whole, tasks.get(whole.task_id), tokenizer) for one, whole in chosen],
        )


def _manner(stage: str, evaluated: Sequence[Episode]) -> Manner | None:
    phase = eval_phase(stage, MUTATIONS)
    episodes = [one for one in evaluated if one.phase == phase]
    if not episodes:
        return None
    return Manner(
        stage=stage,
        habits=habits(episodes),
        tools=shares(tool_counts(episodes)),
        transitions=transitions(episodes),
        lengths=lengths_by_outcome(episodes),
        stop_reasons={reason.value: count for reason, count in stop_reasons(episodes).items()},
        exploits=exploit_findings(episodes),
    )


def _curves(store: RunStore, summary: Summary, training: Sequence[Episode]) -> Iterator[Figure]:
    entropy = find_metric(store, TREATMENT, "entropy")
    gap = find_metric(store, TREATMENT, "log_prob_gap")
    series = [
        _reward_series(store),
        _checkpoint_series(summary, VALIDATION, "Validation Pass@1", "checkpoints on validation tasks"),
        _checkpoint_series(summary, MUTATIONS, "Held-out Pass@1", "checkpoints on tasks of packages never trained on"),
        Series("Turns per episode", "training", _points(by_step(training, lambda some: habits(some).mean_turns))),
        Series(
            "Blind submissions",
            "of the submitted training episodes: no test run after the last edit",
            _points(by_step(training, lambda some: habits(some).blind_submit_rate)),
            is_rate=True,
        ),
        Series("Entropy per sampled token", "nats", metric_curve(store, TREATMENT, entropy) if entropy else []),
        Series(
            "Sampler against learner",
            "mean |log-prob gap|; below 0.005 is healthy",
            metric_curve(store, TREATMENT, gap) if gap else [],
        ),
    ]
    yield from (figure for one in series if (figure := curve(one)))


def _reward_series(store: RunStore) -> Series:
    found = reward_curve(store.rows(phase=TREATMENT))
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

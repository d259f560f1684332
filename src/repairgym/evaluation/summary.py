"""``summary.json``: the results of a run in numbers.

Reads a run store and the resolved config; makes one `Summary`. Guarantees: the same store gives the same summary, byte
for byte; every rate comes with its number of tasks; a comparison is paired on equal tasks; ``missing`` names unfinished
phases, whose numbers are partial.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from repairgym.evaluation.accuracy import (
    UNKNOWN,
    Corrected,
    VerdictAccuracy,
    accuracy_of,
    corrected,
    describe_accuracy,
)
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import (
    Estimate,
    PassAtK,
    TaskVerdicts,
    exact_match_rate,
    mean_pass_at_k,
    pass_at_1,
    verdicts_by_task,
    without_invalids,
)
from repairgym.evaluation.runs import evaluation_rows
from repairgym.evaluation.significance import Comparison, compare
from repairgym.evaluation.stages import (
    MUTATIONS,
    START,
    TREATMENT,
    EvalPhase,
    is_checkpoint,
    is_control,
    is_temperature_control,
    parse_eval_phase,
    stage_order,
)
from repairgym.grading.official import OfficialKind, official_kind
from repairgym.records import SCHEMA_VERSION, Accuracy, Record, Task, VerdictKind
from repairgym.rollout.names import RL, UPDATE_TIME, eval_phase
from repairgym.rollout.rows import PhaseRow, TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import written_whole

REQUIRED_PHASES = ("rft", "rl", eval_phase(START, MUTATIONS), eval_phase(TREATMENT, MUTATIONS))
"""Phases that the headline needs; named as missing even when the run planned nothing. A run that only evaluates (a
matrix, a study) or only trains needs none of them."""
_OF_THE_LOOP = frozenset({"teacher", *(eval_phase(stage, MUTATIONS) for stage in (START, TREATMENT))})
"""Phases that mark a run as the whole loop."""

_KS = (2, 4, 8, 10, 16)
EPISODE_PARTS = ("generate", "tool", "grade")
"""Parts of an episode's time that follow each other (`Trajectory.durations_s`)."""
OfficialVerdicts = dict[str, list[OfficialKind | None]]
"""Task id -> official verdicts of its samples."""


class StageResult(Record):
    """One stage on one test set."""

    stage: str
    test_set: str
    status: str
    """Of the phase; with anything but ``done`` the numbers are partial."""
    pass_at_1: Estimate
    """Strict: an invalid or exploited sample is not passed."""
    pass_at_1_without_invalids: Estimate | None
    pass_at_k: tuple[PassAtK, ...]
    """Strict, unbiased, for k up to the number of samples per task."""
    exact_match_rate: float | None
    """Share of samples that restore the original source (mean over tasks)."""
    num_tasks: int
    num_samples: int
    num_passed: int
    num_failed: int
    num_exploited: int
    num_suspicious: int
    """Passed with a suspicious finding."""
    num_invalid: int
    disabled_gates: tuple[str, ...]
    """Gates that gradings of the stage skipped; with any, the numbers prove less than they say."""
    accuracy: VerdictAccuracy | None = None
    """Error rates of the verdicts by the audits of the stage's tasks; None: not audited, or tasks are unknown."""
    has_tasks: bool = True
    """False where no task of the stage was found, so that audits and official verdicts are unknown."""
    official_pass_at_1: float | None = None
    """Pass@1 by the lists of imported records (mean over tasks; undecided: not passed); None: a task has no record."""
    num_official_undecided: int = 0
    corrected: Corrected | None = None
    """Pass@1 corrected for the errors of the verdicts; None where the audits do not give both rates."""
    num_tokens: int = 0
    num_sampled_tokens: int = 0
    episode_s: float = 0.0
    """Wall seconds of all episodes, which ran side by side."""
    cpu_s: float = 0.0
    """Processor seconds of the phase: sampling, tools and grading."""
    usd: float = 0.0
    """Price of the answers, for a model that has one."""

    @property
    def verdict_errors(self) -> str:
        """Error rates of the verdicts in words."""
        return describe_accuracy(self.accuracy) if self.has_tasks else UNKNOWN

    @property
    def tokens_per_solve(self) -> float | None:
        """Tokens of all samples, observations included, over those that passed."""
        return self._per_solve(self.num_tokens)

    @property
    def sampled_tokens_per_solve(self) -> float | None:
        """Tokens that the policy sampled."""
        return self._per_solve(self.num_sampled_tokens)

    @property
    def episode_s_per_solve(self) -> float | None:
        """Seconds of episodes one after the other."""
        return self._per_solve(self.episode_s)

    @property
    def cpu_s_per_solve(self) -> float | None:
        """None for an evaluation during training, whose processor time counts there."""
        return self._per_solve(self.cpu_s) if self.cpu_s else None

    @property
    def usd_per_solve(self) -> float | None:
        """None for models without a price (`endpoint.prices`)."""
        return self._per_solve(self.usd) if self.usd else None

    def _per_solve(self, total: float) -> float | None:
        return total / self.num_passed if self.num_passed else None

    @property
    def exploited_rate(self) -> float:
        """Share of exploited samples."""
        return self.num_exploited / self.num_samples

    @property
    def suspicious_rate(self) -> float:
        """Share of samples that passed with a suspicious finding."""
        return self.num_suspicious / self.num_samples

    @property
    def invalid_rate(self) -> float:
        """Share of invalid samples."""
        return self.num_invalid / self.num_samples


class Summary(Record):
    """The results of a run in numbers; keys of ``summary.json``."""

    schema_version: int = SCHEMA_VERSION
    headline: Comparison | None
    """RL against its start on the held-out mutation tasks: the one comparison fixed in advance."""
    stages: tuple[StageResult, ...]
    """By test set, then in the order of training."""
    comparisons: tuple[Comparison, ...]
    """Every paired comparison, the headline included; all others are secondary."""
    num_rl_iterations: int = 0
    phases: tuple[PhaseRow, ...]
    """Seconds, peak memory and detail per phase."""
    missing: tuple[str, ...]
    """Planned or required phases that are not done."""
    wall_s: float
    cpu_s: float
    """Sums over the phases; evaluations of checkpoints ran during training and count there."""
    peak_rss_bytes: int
    event_counts: dict[str, int]
    """Kind of event (``sandbox_lost``, ...) -> count."""
    digests: dict[str, str]
    """``config`` (SHA-256 of the canonical JSON), digests of the caller, and those in phase details."""
    config: dict[str, Any]
    """The resolved configuration of the run."""

    def stage(self, stage: str, test_set: str) -> StageResult | None:
        """Return the result of ``stage`` on ``test_set``."""
        return next((result for result in self.stages if (result.stage, result.test_set) == (stage, test_set)), None)


def build_summary(
    store: RunStore,
    config: Mapping[str, Any],
    *,
    packages: Mapping[str, str] | None = None,
    tasks: Mapping[str, Task] | None = None,
    digests: Mapping[str, str] | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> Summary:
    """Compute the summary of a run, finished or not.

    ``packages`` is task id -> package, for intervals over packages; ``tasks`` is task id -> task, for its audit and its
    official verdicts; ``digests`` are further ones to quote, e.g. of the
    task set and the code.
    """
    results = evaluation_rows(store)
    phases = store.phases()
    comparisons = tuple(_comparisons(results, packages, num_resamples))
    counted = [phase for phase in phases if not _is_nested(phase)]
    return Summary(
        headline=next((comparison for comparison in comparisons if _is_headline(comparison)), None),
        stages=tuple(_stage_results(store, results, tasks or {}, num_resamples)),
        comparisons=comparisons,
        num_rl_iterations=len(store.metrics(RL, UPDATE_TIME)),
        phases=tuple(phases),
        missing=_missing({phase.name: phase.status for phase in phases}),
        wall_s=sum(phase.wall_s for phase in counted),
        cpu_s=sum(phase.cpu_s for phase in counted),
        peak_rss_bytes=max((phase.peak_rss_bytes for phase in phases), default=0),
        event_counts=dict(sorted(Counter(event.kind for event in store.events()).items())),
        digests=_digests(config, phases, digests or {}),
        config=dict(config),
    )


def write_summary(summary: Summary, path: Path) -> None:
    """Write ``summary.json``, completely or not at all."""
    with written_whole(path) as stream:
        stream.write(f"{json.dumps(summary.model_dump(mode='json'), indent=1)}\n".encode())


def _gradings(
    store: RunStore, tasks: Mapping[str, Task]
) -> tuple[Counter[str], dict[str, set[str]], dict[str, OfficialVerdicts]]:
    """Return what rows do not hold, by phase: number of suspicious passes, disabled gates, official verdicts."""
    num_suspicious: Counter[str] = Counter()
    gates: dict[str, set[str]] = {}
    official: dict[str, OfficialVerdicts] = {}
    for row, document in store.documents(phase_prefix="eval/"):
        verdict, task = document.verdict, tasks.get(row.task_id)
        gates.setdefault(row.phase, set()).update(verdict.disabled_gates)
        is_passed = verdict.kind is VerdictKind.PASSED
        num_suspicious[row.phase] += is_passed and any(finding.severity == "suspicious" for finding in verdict.findings)
        kinds = official.setdefault(row.phase, {}).setdefault(row.task_id, [])
        kinds.append(official_kind(task, verdict) if task else None)
    return num_suspicious, gates, official


def _official_pass_at_1(verdicts: OfficialVerdicts) -> float | None:
    """Return the mean over tasks of the share of resolved samples; None unless every task has a record."""
    if any(None in kinds for kinds in verdicts.values()):
        return None
    return mean(kinds.count("resolved") / len(kinds) for kinds in verdicts.values())


def _audit_of(task: Task | None) -> Accuracy | None:
    return task.certificate.accuracy if task else None


def _stage_results(
    store: RunStore,
    results: Mapping[EvalPhase, list[TrajectoryRow]],
    tasks: Mapping[str, Task],
    num_resamples: int,
) -> Iterator[StageResult]:
    num_suspicious, gates, official = _gradings(store, tasks)
    phases, prices = {phase.name: phase for phase in store.phases()}, store.prices()
    for (stage, test_set), rows in results.items():
        verdicts = verdicts_by_task(rows)
        strict = pass_at_1(verdicts, num_resamples=num_resamples)
        if strict is None:
            continue
        phase = eval_phase(stage, test_set)
        kinds = Counter(row.verdict for row in rows)
        accuracy = accuracy_of([_audit_of(tasks.get(task_id)) for task_id in verdicts], num_resamples)
        yield StageResult(
            stage=stage,
            test_set=test_set,
            status=phases[phase].status if phase in phases else "missing",
            pass_at_1=strict,
            pass_at_1_without_invalids=pass_at_1(without_invalids(verdicts), num_resamples=num_resamples),
            pass_at_k=tuple(mean_pass_at_k(verdicts, k) for k in _ks(verdicts)),
            exact_match_rate=exact_match_rate(rows),
            num_tasks=len(verdicts),
            num_samples=len(rows),
            num_passed=kinds[VerdictKind.PASSED],
            num_failed=kinds[VerdictKind.FAILED],
            num_exploited=kinds[VerdictKind.EXPLOITED],
            num_suspicious=num_suspicious[phase],
            num_invalid=kinds[VerdictKind.INVALID],
            disabled_gates=tuple(sorted(gates[phase])),
            accuracy=accuracy,
            has_tasks=not tasks.keys().isdisjoint(verdicts),
            corrected=corrected(strict, accuracy),
            official_pass_at_1=_official_pass_at_1(official[phase]),
            num_official_undecided=sum(kinds.count("undecided") for kinds in official[phase].values()),
            num_tokens=sum(row.num_tokens for row in rows),
            num_sampled_tokens=sum(row.num_action_tokens for row in rows),
            episode_s=sum(row.durations_s.get(name, 0.0) for row in rows for name in EPISODE_PARTS),
            cpu_s=phases[phase].cpu_s if phase in phases else 0.0,
            usd=prices.get(phase, 0.0),
        )


def _ks(verdicts: TaskVerdicts) -> list[int]:
    most = max(len(kinds) for kinds in verdicts.values())
    return sorted({k for k in (*_KS, most) if 2 <= k <= most})


def _comparisons(
    results: Mapping[EvalPhase, list[TrajectoryRow]], packages: Mapping[str, str] | None, num_resamples: int
) -> Iterator[Comparison]:
    verdicts = {phase: verdicts_by_task(rows) for phase, rows in results.items()}
    for test_set in dict.fromkeys(phase.test_set for phase in results):
        for names in _pairs([phase.stage for phase in results if phase.test_set == test_set]):
            treatment, reference = (verdicts[EvalPhase(stage, test_set)] for stage in names)
            comparison = compare(
                treatment, reference, names=names, test_set=test_set, clusters=packages, num_resamples=num_resamples
            )
            if comparison:
                yield comparison


def _pairs(stages: Sequence[str]) -> list[tuple[str, str]]:
    """Return (treatment, reference): RL against its start, then its controls; the start against the base."""
    controls = [stage for stage in stages if is_control(stage)]
    references = [START, *sorted(controls, key=lambda stage: (not is_temperature_control(stage), stage_order(stage)))]
    pairs = [(TREATMENT, stage) for stage in references if TREATMENT in stages and stage in stages]
    return pairs + [(START, "base")] * (START in stages and "base" in stages)


def _is_headline(comparison: Comparison) -> bool:
    return (comparison.treatment, comparison.reference, comparison.test_set) == (TREATMENT, START, MUTATIONS)


def _is_nested(phase: PhaseRow) -> bool:
    evaluation = parse_eval_phase(phase.name)
    return evaluation is not None and is_checkpoint(evaluation.stage)


def _missing(statuses: Mapping[str, str]) -> tuple[str, ...]:
    is_loop = not statuses or not _OF_THE_LOOP.isdisjoint(statuses)
    wanted = dict.fromkeys((*statuses, *(REQUIRED_PHASES if is_loop else ())))
    return tuple(name for name in wanted if statuses.get(name) != "done")


def _digests(config: Mapping[str, Any], phases: Sequence[PhaseRow], more: Mapping[str, str]) -> dict[str, str]:
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), default=str)
    digests = {"config": hashlib.sha256(canonical.encode()).hexdigest(), **more}
    for phase in phases:
        for key, value in phase.detail.items():
            if isinstance(value, str) and ("digest" in key or "sha256" in key):
                digests[f"{phase.name}: {key}"] = value
    return digests

"""Evaluations of run stores: lookup, comparison across runs, export as SWE-bench predictions.

Reads run stores; makes comparisons with the first run as reference, and JSON lines with ``instance_id``,
``model_name_or_path`` and ``model_patch``. Guarantees: a comparison is over the common tasks of two runs; predictions
hold one line per task with that sample, also for an empty patch.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import TaskVerdicts, verdicts_by_task
from repairgym.evaluation.significance import Comparison, compare
from repairgym.evaluation.stages import parse_eval_phase, stage_label, stage_order
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore


def evaluations(store: RunStore) -> dict[str, TaskVerdicts]:
    """Return evaluation phase -> verdicts by task, ordered by test set, then training."""
    rows: dict[str, list[TrajectoryRow]] = {}
    for row in store.rows(phase_prefix="eval/"):
        if parse_eval_phase(row.phase):
            rows.setdefault(row.phase, []).append(row)
    return {phase: verdicts_by_task(rows[phase]) for phase in sorted(rows, key=_order)}


def _order(phase: str) -> tuple[str, tuple[int, int, str]]:
    parsed = parse_eval_phase(phase)
    return (parsed.test_set, stage_order(parsed.stage)) if parsed else ("", (0, 0, phase))


def compare_runs(
    runs: Mapping[str, Mapping[str, TaskVerdicts]], *, num_resamples: int = NUM_RESAMPLES
) -> list[Comparison]:
    """Compare each run with the first, on every evaluation that both have.

    Args:
        runs: Name of the run -> its `evaluations`.
        num_resamples: Number of bootstrap samples.
    """
    (reference, first), *others = runs.items()
    comparisons = []
    for name, phases in others:
        for phase in first.keys() & phases.keys():
            comparison = compare_phases(
                phases[phase], first[phase], (name, reference), phase, num_resamples=num_resamples
            )
            if comparison:
                comparisons.append((_order(phase), comparison))
    return [comparison for _, comparison in sorted(comparisons, key=lambda pair: (pair[0], pair[1].treatment))]


def compare_phases(
    treatment: TaskVerdicts,
    reference: TaskVerdicts,
    runs: tuple[str, str],
    phase: str,
    *,
    num_resamples: int = NUM_RESAMPLES,
) -> Comparison | None:
    """Compare one phase of two runs; None when they share no task."""
    parsed = parse_eval_phase(phase)
    stage, test_set = (stage_label(parsed.stage), parsed.test_set) if parsed else (phase, phase)
    names = (f"{stage} of {runs[0]}", f"{stage} of {runs[1]}")
    return compare(treatment, reference, names=names, test_set=test_set, num_resamples=num_resamples)


def choose_phase(store: RunStore, wanted: str) -> str:
    """Return the phase ``wanted``, or the only evaluation of the run.

    Raises:
        InputError: the run has no such phase, or not exactly one evaluation.
    """
    known = {row.phase: None for row in store.rows()}
    if wanted in known:
        return wanted
    phases = [phase for phase in known if parse_eval_phase(phase)]
    if wanted or len(phases) != 1:
        problem = f"has no phase {wanted!r}" if wanted else f"has {len(phases)} evaluations"
        raise InputError(f"{store.path} {problem}; name one of: {', '.join(known) or 'none'}")
    return phases[0]


def write_predictions(store: RunStore, phase: str, sample: int, path: Path) -> int:
    """Write sample number ``sample`` (in the order of seeds) of each task; return the number of lines.

    Raises:
        InputError: no task of the phase has that many samples.
        DiskFullError: no room; an older file is intact.
    """
    by_task: dict[str, list[str]] = {}
    for row in sorted(store.rows(phase=phase), key=lambda row: (row.task_id, row.seed, row.id)):
        by_task.setdefault(row.task_id, []).append(row.id)
    chosen = [ids[sample] for ids in by_task.values() if len(ids) > sample]
    if not chosen:
        raise InputError(f"{store.path} has no sample {sample} in phase {phase!r}; samples count from 0")
    partial = path.with_name(f"{path.name}.part")
    with disk_full_as_repairgym_error(path), partial.open("w", encoding="utf-8") as file:
        for trajectory_id in chosen:
            trajectory = store.trajectory(trajectory_id)
            line = {
                "instance_id": trajectory.task_id,
                "model_name_or_path": trajectory.policy_id,
                "model_patch": trajectory.final_patch,
            }
            file.write(json.dumps(line) + "\n")
    partial.replace(path)
    return len(chosen)

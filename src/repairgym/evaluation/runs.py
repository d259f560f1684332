"""Evaluations of run stores: lookup, comparison across runs, export as SWE-bench predictions.

Reads run stores; makes comparisons with the first run as reference, and JSON lines with ``instance_id``,
``model_name_or_path`` and ``model_patch``. Guarantees: a comparison is over the common tasks of two runs; predictions
hold one line per task with that sample, also for an empty patch.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import NUM_RESAMPLES
from repairgym.evaluation.pass_at_k import TaskVerdicts, rows_by_task
from repairgym.evaluation.significance import Comparison, compare
from repairgym.evaluation.stages import EvalPhase, parse_eval_phase, stage_label
from repairgym.rollout.rows import TrajectoryRow
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import written_whole


def evaluation_rows(store: RunStore) -> dict[EvalPhase, list[TrajectoryRow]]:
    """Return the rows of each evaluation, ordered by test set, then training."""
    rows: dict[EvalPhase, list[TrajectoryRow]] = {}
    for row in store.rows(phase_prefix="eval/"):
        if phase := parse_eval_phase(row.phase):
            rows.setdefault(phase, []).append(row)
    return {phase: rows[phase] for phase in sorted(rows, key=lambda phase: phase.order)}


def evaluations(store: RunStore) -> dict[EvalPhase, TaskVerdicts]:
    """Return the verdicts by task of each evaluation, in the same order."""
    known = {parse_eval_phase(name): verdicts for name, verdicts in store.verdicts("eval/").items()}
    return {phase: known[phase] for phase in sorted(filter(None, known), key=lambda phase: phase.order)}


def compare_runs(
    runs: Mapping[str, Mapping[EvalPhase, TaskVerdicts]], *, num_resamples: int = NUM_RESAMPLES
) -> list[Comparison]:
    """Compare each run (name -> its `evaluations`) with the first, on every evaluation that both have."""
    (reference, first), *others = runs.items()
    comparisons = []
    for phase in sorted(first, key=lambda phase: phase.order):
        label = stage_label(phase.stage)
        for name, phases in sorted(others):
            names = (f"{label} of {name}", f"{label} of {reference}")
            treatment = phases.get(phase, {})
            comparisons.append(
                compare(treatment, first[phase], names=names, test_set=phase.test_set, num_resamples=num_resamples)
            )
    return [comparison for comparison in comparisons if comparison]


def evaluation_phases(store: RunStore) -> list[str]:
    """Return the names of the evaluations, in the order of `evaluation_rows`."""
    return ["/".join(("eval", *phase)) for phase in evaluation_rows(store)]


def choose_phase(store: RunStore, wanted: str) -> str:
    """Return the phase ``wanted``, or the only evaluation of the run.

    Raises:
        InputError: the run has no such phase, or not exactly one evaluation.
    """
    known = {row.phase: None for row in store.rows()}
    if wanted in known:
        return wanted
    phases = evaluation_phases(store)
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
    by_task = rows_by_task(store.rows(phase=phase)).values()
    chosen = [samples[sample].id for samples in by_task if len(samples) > sample]
    if not chosen:
        raise InputError(f"{store.path} has no sample {sample} in phase {phase!r}; samples count from 0")
    with written_whole(path) as stream:
        for trajectory_id in chosen:
            trajectory = store.trajectory(trajectory_id)
            line = {
                "instance_id": trajectory.task_id,
                "model_name_or_path": trajectory.policy_id,
                "model_patch": trajectory.final_patch,
            }
            stream.write(f"{json.dumps(line)}\n".encode())
    return len(chosen)

"""An evaluation's patches as SWE-bench predictions, for any other grader.

Reads a run store; writes JSON lines with ``instance_id``, ``model_name_or_path`` and ``model_patch``. Invariants: one
line per task; a task without that sample is left out; an empty patch stays in, because it was submitted.
"""

from __future__ import annotations

import json
from pathlib import Path

from repairgym.errors import InputError, disk_full_as_repairgym_error
from repairgym.rollout.store import RunStore


def write_predictions(store: RunStore, phase: str, sample: int, path: Path) -> int:
    """Write sample number ``sample`` (in the order of seeds) of each task; returns the number of lines.

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
            one = store.trajectory(trajectory_id)
            line = {
                "instance_id": one.task_id,
                "model_name_or_path": one.policy_id,
                "model_patch": one.final_patch,
            }
            file.write(json.dumps(line) + "\n")
    partial.replace(path)
    return len(chosen)

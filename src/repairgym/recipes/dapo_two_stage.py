"""Paper B's two stages of RL (section 4.3, Table 3), from a fine-tuned checkpoint.

1. DAPO on all training tasks, at most 40 turns in 65k tokens of context.
2. DAPO on the tasks of the first stage that are worth more work: solved sometimes, but in fewer than two thirds of the
   attempts. The context is twice as long, by YaRN, the upper clip lower, the batch larger.
"""

import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

from repairgym.config.recipes import TwoStageConfig
from repairgym.config.tasks import SolveRateConfig
from repairgym.errors import ConfigError, ModelFolderError, TaskError
from repairgym.inference.loading import replace_folder
from repairgym.rollout.store import RunStore
from repairgym.training.rl_loop import OpenRun, run_rl_stage
from repairgym.training.run import Run

START = "start"
STAGE_1, STAGE_2 = "stage-1", "stage-2"


def dapo_two_stage(open_run: OpenRun, config: TwoStageConfig) -> None:
    """From checkpoint ``start`` to ``stage-1`` and ``stage-2``; a killed run resumes.

    Raises:
        TaskError: no training task, or none is left for the second stage.
    """
    with open_run(config.stage_1.rollout) as run:
        run_rl_stage(run, config.stage_1.rl, START, STAGE_1, config.watch.alarms)
        task_ids = select_tasks_again(run, config.select)
        start = extend(run, STAGE_1, config.yarn_factor)
    with open_run(config.stage_2.rollout) as run:
        run_rl_stage(run, config.stage_2.rl, start, STAGE_2, config.watch.alarms, task_ids)


def select_tasks_again(run: Run, bounds: SolveRateConfig) -> list[str]:
    """Tasks that the first stage solved with a rate above ``bounds.above`` and below ``bounds.below``.

    Tasks with fewer than ``min_samples`` attempts have no rate and are left out.

    Raises:
        TaskError: none is left.
    """
    rates = solve_rates(run.store, STAGE_1, bounds.min_samples)
    chosen = sorted(task_id for task_id, rate in rates.items() if bounds.above < rate < bounds.below)
    counts = {"select/num_tasks_with_rate": len(rates), "select/num_tasks_chosen": len(chosen)}
    run.store.add_metrics(STAGE_2, 0, {name: float(count) for name, count in counts.items()})
    if not chosen:
        raise TaskError(
            f"none of {len(rates)} tasks with a solve rate is above {bounds.above:.2f} and below {bounds.below:.2f}; "
            "widen select.below and select.above, or give the first stage other tasks"
        )
    return chosen


def solve_rates(store: RunStore, phase: str, min_samples: int) -> dict[str, float]:
    """Task -> share of its attempts in ``phase`` that were rewarded, over all iterations; invalid ones do not count."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for row in store.rows(phase=phase):
        if row.reward is not None:
            rewards[row.task_id].append(row.reward)
    return {task_id: sum(values) / len(values) for task_id, values in rewards.items() if len(values) >= min_samples}


def extend(run: Run, stage: str, factor: float) -> str:
    """The checkpoint that the second stage starts from: ``stage`` itself, or with a longer context by YaRN."""
    if factor == 1.0:
        return stage
    target = run.checkpoint(f"{stage}-long")
    if not target.exists():
        extend_context(run.checkpoint(stage), target, factor)
    return target.name


def extend_context(source: Path, target: Path, factor: float) -> int:
    """Copy model folder ``source`` to ``target`` with YaRN by ``factor``; returns its positions.

    Raises:
        ModelFolderError: ``source`` has no ``config.json``.
        ConfigError: the model has no rotary positions, or stretched ones already.
    """
    path = source / "config.json"
    if not path.is_file():
        raise ModelFolderError(f"{source} has no config.json; expected a model folder in Hugging Face format")
    config = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes rope_parameters; folders of older versions have rope_theta and rope_scaling apart.
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is None or rope.get("rope_type", "default") != "default":
        rope_type = rope.get("rope_type", "none")
        raise ConfigError(
            f"{source} has rotary positions of type {rope_type!r}, YaRN needs 'default'; set yarn_factor=1"
        )
    longest = int(config["max_position_embeddings"])
    yarn = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": longest}
    config.pop("rope_scaling", None)
    config |= {"rope_parameters": yarn, "max_position_embeddings": round(longest * factor)}
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(source, temporary)
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return int(config["max_position_embeddings"])

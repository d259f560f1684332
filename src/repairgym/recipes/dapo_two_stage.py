"""Paper B's two stages of RL (section 4.3, Table 3), from a fine-tuned checkpoint.

1. DAPO on all training tasks, at most 40 turns in 65k tokens of context.
2. DAPO on the tasks of the first stage that are worth more work: solved sometimes, but in fewer than two thirds of the
   attempts. The context is twice as long, by YaRN, the upper clip lower, the batch larger.
"""

from collections import defaultdict

from repairgym.config.recipes import TwoStageConfig
from repairgym.config.tasks import SolveRateConfig
from repairgym.errors import TaskError
from repairgym.inference.stretching import stretch_folder
from repairgym.rollout.store import RunStore
from repairgym.sizing.positions import read_positions
from repairgym.training.evaluate import weights_digest
from repairgym.training.rl_loop import OpenRun, has_successor, run_rl_stage
from repairgym.training.run import Run

START = "start"
STAGE_1, STAGE_2 = "stage-1", "stage-2"


def dapo_two_stage(open_run: OpenRun, config: TwoStageConfig) -> None:
    """From checkpoint ``start`` to ``stage-1`` and ``stage-2``; a killed run resumes.

    ``stage-1`` stays as it is once ``stage-2`` has begun from it, also where its bounds have grown.

    Raises:
        ConfigError: no training task.
        TaskError: none is left for the second stage.
    """
    with open_run(config.stage_1.rollout) as run:
        if not has_successor(run, STAGE_1, (STAGE_2,)):
            start = extend(run, START, config.stage_1.yarn_factor, STAGE_1)
            run_rl_stage(run, config.stage_1.rl, start, STAGE_1, config.watch.alarms)
        task_ids = select_tasks_again(run, config.select)
        start = extend(run, STAGE_1, config.stage_2.yarn_factor, STAGE_2)
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


def extend(run: Run, checkpoint: str, factor: float, stage: str) -> str:
    """The checkpoint that ``stage`` starts from: ``checkpoint`` itself, or with positions stretched to ``factor``.

    A stretched one of an earlier call is made again if ``checkpoint`` or the factor has changed since then, unless
    ``stage`` has begun from it.
    """
    source = run.checkpoint(checkpoint)
    if factor in (1.0, read_positions(source).factor):
        return checkpoint
    target = run.checkpoint(f"{checkpoint}-long")
    is_made = target.exists() and (
        (weights_digest(source) == weights_digest(target) and read_positions(target).factor == factor)
        or has_successor(run, target.name, (stage,))
    )
    if not is_made:
        stretch_folder(source, target, factor)
    return target.name

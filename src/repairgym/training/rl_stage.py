"""One stage of RL from start to end: iterations, regular validation, a checkpoint under the stage's name.

Reads a run with tasks and a start checkpoint. Makes what `RLLoop` makes, the metric ``validation/pass_at_1`` and the
checkpoint ``phase``. Guarantees: validation never trains; a killed stage resumes after its last update; a finished
stage continues only when `max_iterations` has grown.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing

from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import AlarmConfig, RolloutConfig
from repairgym.rollout.names import VALIDATION
from repairgym.training.evaluate import evaluate
from repairgym.training.rl_loop import RLLoop
from repairgym.training.run import Run

OpenRun = Callable[[RolloutConfig], AbstractContextManager[Run]]
"""Opens the run folder with workers of this configuration: stages differ in turns, context and budgets."""


def run_rl_stage(
    run: Run,
    config: RlConfig,
    start: str,
    phase: str,
    alarms: AlarmConfig | None = None,
    task_ids: Collection[str] | None = None,
    *,
    is_over: Callable[[], bool] | None = None,
    keeps_checkpoints: bool = False,
) -> None:
    """Train from checkpoint ``start`` to checkpoint ``phase``.

    Args:
        run: Open run.
        config: Sizes, algorithm, reward.
        start: Checkpoint to begin with.
        phase: Name of the stage's trajectories, metrics and checkpoint.
        alarms: Bounds of the metrics.
        task_ids: Training tasks to use; None: all.
        is_over: Called after each iteration; True ends the stage before `max_iterations`.
        keeps_checkpoints: Validate the start as well, and keep the weights of each validation as checkpoint
            ``<phase>-step-<number>``.
    """
    loop = RLLoop(run, config, start, alarms, phase=phase, task_ids=task_ids)
    with run.store.phase(phase):
        if keeps_checkpoints:
            _validate(run, loop, config, phase, keeps_checkpoints)
        with closing(loop.iterations()) as iterations:
            for metrics in iterations:
                detail = f"reward {metrics['rollout/reward_mean']:.2f}, {metrics['rollout/num_turns_mean']:.1f} turns"
                run.progress(phase, loop.num_done, 0 if is_over else config.max_iterations, detail)
                _validate(run, loop, config, phase, keeps_checkpoints)
                if is_over and is_over():
                    break
        loop.keep(phase)
    loop.close()


def _validate(run: Run, loop: RLLoop, config: RlConfig, phase: str, keeps_checkpoints: bool) -> None:
    """Validate every `validation_every` iterations; stored episodes are not run again."""
    if loop.num_done % config.validation_every:
        return
    stage = f"{phase}-step-{loop.num_done:04d}"
    if tasks := run.select("validation", limit=config.num_validation_tasks):
        score = evaluate(run, stage, loop.policy(), VALIDATION, tasks, 1)
        run.store.add_metrics(phase, loop.num_done, {"validation/pass_at_1": score})
    if keeps_checkpoints and loop.num_done:
        loop.keep(stage)

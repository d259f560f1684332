"""One stage of RL from start to end: iterations, validation now and then, a checkpoint under the stage's name.

Reads a run with tasks and a start checkpoint; makes what `RLLoop` makes, ``validation/pass_at_1`` beside it and the
checkpoint ``phase``. Invariants: validation never trains; a killed stage goes on from its last update, an ended one
only when more iterations are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from repairgym.config.recipes import RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.watch import AlarmConfig
from repairgym.training.evaluate import evaluate
from repairgym.training.rl_loop import RLLoop
from repairgym.training.run import Run

OpenRun = Callable[[RolloutConfig], AbstractContextManager[Run]]
"""Opens the run folder with workers of this configuration: stages differ in turns, context and budgets."""
VALIDATION = "validation"


def run_rl_stage(
    run: Run,
    config: RlConfig,
    start: str,
    phase: str,
    alarms: AlarmConfig | None = None,
    task_ids: Collection[str] | None = None,
) -> None:
    """Train from checkpoint ``start`` to checkpoint ``phase`` on the training tasks, or on ``task_ids`` of them."""
    loop = RLLoop(run, config, start, alarms, phase=phase, task_ids=task_ids)
    with run.store.phase(phase):
        for metrics in loop.iterations():
            detail = f"reward {metrics['rollout/reward_mean']:.2f}"
            run.progress(phase, loop.num_done, config.max_iterations, detail)
            if loop.num_done % config.validation_every == 0:
                _validate(run, loop, config, phase)
    loop.keep(phase)
    loop.close()


def _validate(run: Run, loop: RLLoop, config: RlConfig, phase: str) -> None:
    tasks = run.select("validation", limit=config.num_validation_tasks)
    if tasks:
        score = evaluate(run, f"{phase}-step-{loop.num_done:04d}", loop.policy(), VALIDATION, tasks, 1)
        run.store.add_metrics(phase, loop.num_done, {"validation/pass_at_1": score})

"""`repairgym tasks calibrate`: solve rates of reference policies, stored next to the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.arguments import check_new_run, check_tasks, open_stored
from repairgym.cli.options import NewRun, Tasks, Tokenizer, configured
from repairgym.config.commands import CalibrationConfig
from repairgym.tasks.solve_rates import RATES_FILE, MeasuredRate, SolveRate, add_rates, count_levels, measured


@configured
def calibrate(
    tasks: Tasks,
    run: NewRun,
    config: CalibrationConfig,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="Model folder, base or scripted policy; may repeat.")
    ] = None,
    model: Tokenizer = None,
) -> None:
    """Measure how often reference policies solve tasks, and store it in the task folder; tasks stay as they are.

    Default policies: random (random search) and base (the shipped model). The run keeps the episodes, and the same
    command resumes it.

    Example: repairgym tasks calibrate tasks runs/calibration select.splits=train

    Example: repairgym tasks calibrate tasks runs/calibration --policy runs/rl/checkpoints/rl
    """
    check_tasks(tasks), check_new_run(run)
    rates: list[MeasuredRate] = []
    for name in policies or ["random", "base"]:
        own = _measure(tasks, run, config, name, model)
        add_rates(tasks / RATES_FILE, own)
        rates += own
    for policy, levels in count_levels(rates).items():
        typer.echo(f"{policy}: {levels}")
    typer.echo(f"solve rates: {tasks / RATES_FILE}")


def _measure(tasks: Path, run: Path, config: CalibrationConfig, name: str, model: Path | None) -> list[MeasuredRate]:
    from repairgym.cli.running import evaluate_policy
    from repairgym.evaluation.pass_at_k import num_passed, verdicts_by_task, without_invalids
    from repairgym.rollout.names import eval_phase

    ref, settings, chosen = evaluate_policy(tasks, run, config, name, model)
    test_set = config.select.set_name
    with open_stored(run) as store:
        verdicts = without_invalids(verdicts_by_task(store.rows(phase=eval_phase(ref.name, test_set))))
    return [
        measured(task, ref.name, settings, SolveRate(num_passed(kinds), len(kinds)))
        for task in chosen
        if (kinds := verdicts.get(task.id))
    ]

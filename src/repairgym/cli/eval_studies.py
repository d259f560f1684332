"""`repairgym eval` matrix, audit and exploit-study: policies across environments, and audits of rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_new_run, check_run, check_tasks, find_policy, open_stored
from repairgym.cli.options import NewRun, RunFolder, Tasks, TasksOption, configured
from repairgym.config.evaluation import AuditConfig, DataFilesConfig, ExploitStudyConfig, MatrixConfig
from repairgym.config.loading import to_toml
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError

if TYPE_CHECKING:
    from repairgym.training.run import Run

FOLDER = "matrix"


@configured
def matrix(tasks: Tasks, run: NewRun, config: MatrixConfig) -> None:
    """Evaluate policies in environments (pipelines, tools, prompts, gates); table, heat map and findings in words.

    Example: repairgym eval matrix tasks runs/matrix --config matrix.toml num_samples=2
    """
    temperature = _common_temperature(config)
    policies = {
        name: find_policy(entry.policy, temperature, config.endpoint) for name, entry in config.policies.items()
    }
    check_tasks(tasks), check_new_run(run)
    from repairgym.analysis.tables import matrix_tables
    from repairgym.cli.display import print_table
    from repairgym.cli.running import check_policy, open_run
    from repairgym.evaluation.matrix import build_matrix
    from repairgym.inference.loading import shipped_base
    from repairgym.report.data_files import export
    from repairgym.report.figures import heat_plot
    from repairgym.report.html import write_report
    from repairgym.report.run_folder import MATRIX_FILE
    from repairgym.studies.without_learning import run_matrix

    @contextmanager
    def open_environment(rollout: RolloutConfig, model: Path) -> Iterator[Run]:
        for ref in policies.values():
            check_policy(ref, model, rollout)
        with open_run(run, tasks, model, rollout, config.seed) as opened:
            yield opened

    run.mkdir(parents=True, exist_ok=True)
    (run / MATRIX_FILE).write_text(to_toml(config), encoding="utf-8")
    run_matrix(config, policies, open_environment, shipped_base())
    with open_stored(run) as store:
        result = build_matrix(store, config)
    tables = matrix_tables(result)
    for table in tables:
        print_table(table)
    for finding in result.findings:
        typer.echo(finding)
    export(tables, [heat_plot(result)], run / FOLDER, DataFilesConfig())
    typer.echo(f"tables and heat map: {run / FOLDER}; report: {write_report(run)}")


def _common_temperature(config: MatrixConfig) -> float:
    temperature, *others = sorted({environment.temperature for environment in config.environments.values()})
    if others:
        raise InputError(
            f"got environments of temperatures {[temperature, *others]}; a matrix needs a single temperature"
        )
    return temperature


@configured
def audit(run: RunFolder, config: AuditConfig, tasks: TasksOption = None) -> None:
    """Grade rewarded submissions again with every gate and compare the rewards; resumable.

    Example: repairgym eval audit runs/rl phase=rl num_per_step=16
    """
    check_run(run)
    asyncio.run(_audit(run, tasks or run / "tasks", config))


async def _audit(run: Path, tasks: Path, config: AuditConfig) -> None:
    from repairgym.analysis.curves import gap_trend, reward_gap
    from repairgym.cli.display import ProgressDisplay
    from repairgym.report.wording import gap_claim
    from repairgym.rollout.names import audit_phase
    from repairgym.rollout.store import RunStore
    from repairgym.tasks.store import TaskStore
    from repairgym.training.evaluate import audit, open_grader
    from repairgym.training.run_settings import CallConfig, keep_config

    known = {task.id: task for task in TaskStore(tasks).load()}
    with RunStore.open(run / "run.db") as store, ProgressDisplay() as progress:
        keep_config(
            run, CallConfig(f"audit-{config.phase}", config, free=("num_per_step", "num_in_flight", "sandbox.*"))
        )
        backend, grader = open_grader(config.sandbox, config.grading)
        try:
            num = await audit(store, known, config, grader, progress)
        finally:
            await backend.close()
        rows, audited = store.rows(phase=config.phase), store.rows(phase=audit_phase(config.phase))
    for point in reward_gap(rows, audited):
        typer.echo(
            f"step {point.step}: reported {point.reported:.3f}, validated {point.validated:.3f}, "
            f"gap {point.gap:+.3f} ({point.ci_low:+.3f} to {point.ci_high:+.3f}), {point.num_audited} submissions"
        )
    trend = gap_trend(rows, audited)
    typer.echo(gap_claim(trend) if trend else f"{num} submissions audited; a trend needs at least two steps")


@configured
def exploit_study(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks, best exposed ones (repairgym tasks expose).")],
    run: NewRun,
    config: ExploitStudyConfig,
) -> None:
    """Run a scripted policy whose share of cheats rises, by default graded without gates.

    Afterwards `repairgym eval audit RUN phase=exploit-study` and `repairgym report RUN` show the reward gap.

    Example: repairgym eval exploit-study exposed runs/study select.num_tasks=12
    """
    check_tasks(tasks), check_new_run(run)
    from repairgym.cli.running import open_run
    from repairgym.inference.loading import shipped_base
    from repairgym.studies.without_learning import cheat_shares, run_exploit_study
    from repairgym.training.run import select_tasks
    from repairgym.training.run_settings import CallConfig

    call = CallConfig("exploit-study", config, free=("select.*", "num_samples"))
    with open_run(run, tasks, shipped_base(), config.rollout, config.seed, call=call) as opened:
        rewards = run_exploit_study(opened, config, select_tasks(opened, config.select))
    for step, (share, reward) in enumerate(zip(cheat_shares(config), rewards, strict=True)):
        typer.echo(f"step {step}: {share:.0%} cheats, reported reward {reward:.3f}")

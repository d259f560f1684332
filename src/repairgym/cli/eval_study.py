"""`repairgym eval audit` and `repairgym eval exploit-study`: is the reward that training reports real?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from repairgym.cli.options import Config, DryRun, Overrides, resolve
from repairgym.config.evaluation import AuditConfig, ExploitStudyConfig


def audit_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    overrides: Overrides = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of tasks; default: RUN/tasks.")] = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Grade what training rewarded again, with every gate, and say whether the reward was real; resumable.

    Example: repairgym eval audit runs/rl phase=rl num_per_step=16
    """
    resolved = resolve(AuditConfig, config, overrides, dry_run)
    asyncio.run(_audit(run, tasks or run / "tasks", resolved))


async def _audit(run: Path, tasks: Path, config: AuditConfig) -> None:
    from repairgym.analysis.reward_gap import gap_trend, reward_gap
    from repairgym.cli.progress import ProgressDisplay
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
    typer.echo(gap_claim(trend) if trend else f"{num} submissions audited; with two steps or more there is a trend")


def exploit_study(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks, best exposed ones (repairgym tasks expose).")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted study is continued.")],
    overrides: Overrides = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Run a scripted policy whose share of cheats rises, graded without gates unless told otherwise.

    Then `repairgym eval audit RUN phase=exploit-study` and `repairgym report RUN` show what the reward was worth.

    Example: repairgym eval exploit-study exposed runs/study select.num_tasks=12
    """
    resolved = resolve(ExploitStudyConfig, config, overrides, dry_run)
    from repairgym.cli.running import open_run
    from repairgym.inference.loading import shipped_base
    from repairgym.studies.scripted import cheat_shares, run_exploit_study
    from repairgym.training.run import select_tasks
    from repairgym.training.run_settings import CallConfig

    call = CallConfig("exploit-study", resolved, free=("select.*", "num_samples"))
    with open_run(run, tasks, shipped_base(), resolved.rollout, resolved.seed, call=call) as opened:
        rewards = run_exploit_study(opened, resolved, select_tasks(opened, resolved.select))
    for step, (share, reward) in enumerate(zip(cheat_shares(resolved), rewards, strict=True)):
        typer.echo(f"step {step}: {share:.0%} cheats, reported reward {reward:.3f}")

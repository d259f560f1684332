"""`mend eval`: Pass@1 and Pass@k of a policy on tasks, and cold regrading of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from mendwright.config.commands import RolloutCommandConfig
from mendwright.config.loading import load_config, to_toml
from mendwright.config.sandbox import SandboxConfig
from mendwright.errors import TaskError

app = typer.Typer(help="Measure Pass@1 and Pass@k, with their uncertainty.", no_args_is_help=True)


@app.command(name="run")
def run_command(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted evaluation is continued.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="a.b=value")] = None,
    policy: Annotated[str, typer.Option(help="Model folder, scripted policy, openai or vllm (endpoint.*).")] = "",
    stage: Annotated[str, typer.Option(help="Name under which the result is stored.")] = "",
    config: Annotated[Path | None, typer.Option(help="TOML file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and leave.")] = False,
) -> None:
    """Evaluate a policy; the sandbox must isolate.

    Example: mend eval run tasks runs/eval --policy runs/demo/checkpoints/dapo num_samples=4
    """
    from mendwright.cli.running import open_run, policy_of
    from mendwright.evaluation.summary import build_summary
    from mendwright.recipes.demo import shipped_base
    from mendwright.recipes.evaluate import evaluate
    from mendwright.recipes.run import select_tasks

    resolved = load_config(RolloutCommandConfig, config, overrides or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    ref = policy_of(policy or str(shipped_base()), resolved.rollout.temperature, resolved.endpoint)
    folder = Path(ref.folder) if ref.folder else shipped_base()
    test_set = f"{resolved.select.split}-{resolved.select.source}"
    with open_run(run, tasks, folder, resolved.rollout, resolved.seed) as opened:
        chosen = select_tasks(opened, resolved.select)
        evaluate(opened, stage or ref.name, ref, test_set, chosen, resolved.num_samples)
        summary = build_summary(opened.store, {})
    for row in summary.stages:
        typer.echo(row.model_dump_json())


@app.command()
def regrade(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    tasks: Annotated[Path | None, typer.Option(help="Folder of tasks; default: RUN/tasks.")] = None,
) -> None:
    """Grade every rewarded trajectory of a run again, cold, in a fresh sandbox each.

    Example: mend eval regrade runs/demo-20260101-120000
    """
    from mendwright.recipes.evaluate import regrade_cold
    from mendwright.records import VerdictKind
    from mendwright.rollout.store import RunStore
    from mendwright.tasks.store import TaskStore

    known = {task.id: task for task in TaskStore(tasks or run / "tasks").load()}
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        rewarded = [t for t in store.trajectories() if t.verdict.kind is VerdictKind.PASSED]
    result = asyncio.run(regrade_cold(rewarded, known, SandboxConfig()))
    typer.echo(f"{result.num_confirmed} of {result.num_regraded} rewarded trajectories are rewarded again")
    if result.num_confirmed != result.num_regraded:
        raise TaskError(f"refuted: {', '.join(result.refuted[:5])}; invalid: {', '.join(result.invalid[:5])}")


@app.command()
def agreement(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    num_per_package: Annotated[int, typer.Option("--per-package", min=0, help="Tasks per package; 0 for all.")] = 1,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 1,
) -> None:
    """Grade gold, empty and broken patches warm and cold, and say where the verdicts differ.

    Example: mend eval agreement tasks --per-package 2
    """
    from mendwright.cli.progress import ProgressDisplay
    from mendwright.grading.agreement import compare_warm_and_cold, one_per_package
    from mendwright.tasks.store import TaskStore

    chosen = one_per_package(TaskStore(tasks).load(), num_per_package)
    differences: list[str] = []

    async def compare() -> int:
        num_pairs = num_done = 0
        with ProgressDisplay() as display:
            async for pairs in compare_warm_and_cold(chosen, num_concurrent=num_concurrent):
                num_done, num_pairs = num_done + 1, num_pairs + len(pairs)
                differences.extend(f"{one.task_id} {one.patch}: {one.difference}" for one in pairs if one.difference)
                display("warm and cold", num_done, len(chosen), f"{len(differences)} differences")
        return num_pairs

    num_pairs = asyncio.run(compare())
    for line in differences:
        typer.echo(line)
    typer.echo(f"{num_pairs - len(differences)} of {num_pairs} pairs of verdicts agree ({len(chosen)} tasks)")
    if differences:
        raise TaskError(f"{len(differences)} warm verdicts are not what a cold grading says")

"""`repairgym rollout`: run a policy on tasks, grade what it delivers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config, to_toml

PHASE = "rollout"


def rollout(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks (repairgym tasks build).")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted one is continued.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="a.b=value")] = None,
    policy: Annotated[
        str, typer.Option(help="Model folder; openai or vllm (endpoint.*); oracle, submit-at-once, random, teacher.")
    ] = "oracle",
    model: Annotated[
        Path | None, typer.Option(help="Folder with the tokenizer of scripted and served policies.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and leave.")] = False,
) -> None:
    """Run a policy on tasks and count the verdicts.

    Example: repairgym rollout tasks runs/oracle --policy oracle select.split=test

    Example: repairgym rollout tasks runs/many cluster.address=ray://head:10001 rollout.num_workers=16

    Example: repairgym rollout tasks runs/api --policy openai endpoint.base_url=http://127.0.0.1:8000/v1 endpoint.model=base
    """
    from repairgym.cli.running import check_policy, describe_losses, describe_usage, open_run, policy_of
    from repairgym.inference.loading import shipped_base
    from repairgym.rollout.jobs import make_groups
    from repairgym.training.run import select_tasks
    from repairgym.training.run_settings import CallConfig

    resolved = load_config(RolloutCommandConfig, config, overrides or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    ref = policy_of(policy, resolved.rollout.temperature, resolved.endpoint)
    folder = model or (Path(ref.folder) if ref.folder else shipped_base())
    check_policy(ref, folder, resolved.rollout)
    call = CallConfig(f"rollout-{ref.name}", resolved, free=("select.*", "num_samples"))
    with open_run(run, tasks, folder, resolved.rollout, resolved.seed, cluster=resolved.cluster, call=call) as opened:
        chosen = select_tasks(opened, resolved.select)
        jobs = make_groups(f"{PHASE}/{ref.name}", 0, [task.id for task in chosen], resolved.num_samples, resolved.seed)
        with opened.store.phase(PHASE):
            found = opened.run_jobs(ref, jobs, phase=PHASE)
        counters = opened.pool.counters()
    counts = Counter(trajectory.verdict.kind.value for trajectory in found)
    typer.echo(
        f"{ref.name}: {len(chosen)} tasks, {len(found)} episodes: " + ", ".join(f"{n} {k}" for k, n in counts.items())
    )
    for line in filter(None, (describe_usage(counters), describe_losses(counters))):
        typer.echo(line)

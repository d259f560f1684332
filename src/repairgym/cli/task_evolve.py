"""`repairgym tasks evolve`: the next generation of tasks, from the last one and what a policy did on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_run, check_tasks
from repairgym.cli.display import ProgressDisplay, time_left
from repairgym.cli.options import AsJson, Tasks, Tokenizer, configured, print_json
from repairgym.config.commands import EvolutionConfig
from repairgym.errors import ConfigError, Interrupted
from repairgym.tasks.store import FUNNEL_FILE, TaskStore

if TYPE_CHECKING:
    from repairgym.recipes.evolution.generation import Report
    from repairgym.recipes.evolution.proposals import Proposer

RUN_FOLDER = "run"
"""Folder of the episodes of --policy in that of the new tasks."""


@configured
def evolve(
    tasks: Tasks,
    output: Annotated[Path, typer.Argument(help="Folder for the next generation; an interrupted call is continued.")],
    config: EvolutionConfig,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="Run folder with episodes on the tasks; may repeat.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="Model folder, base or a server: run it on the tasks.")] = "",
    phase: Annotated[str, typer.Option("--phase", help="Only episodes of this phase of the runs; default: all.")] = "",
    model: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Make the next generation of tasks: of what a policy failed, of the kinds of bugs that taught it most.

    Each failure is attributed to the task or to the trajectory (attribution.jsonl). The code that failures left becomes
    tasks; a plan over packages, operators and numbers of edits, moved by learnability, makes the others (plan.json).
    Every task is certified, and rebuilt from the folder's manifest by `repairgym tasks build NEW --manifest
    OUT/evolved.toml`. Call it again on the new folder for the generation after it.

    Example: repairgym tasks evolve tasks evolved --run runs/rl num_tasks=300

    Example: repairgym tasks evolve tasks evolved --policy base --json
    """
    from repairgym.recipes.evolution.generation import evolve as make_generation
    from repairgym.rollout.calls import locked

    if bool(runs) == bool(policy):
        raise ConfigError("evolve reads what a policy did: give --run (may repeat), or --policy to run one")
    check_tasks(tasks)
    folders = [check_run(run).resolve() for run in runs or ()]
    output.mkdir(parents=True, exist_ok=True)
    with locked(output):
        if policy:
            folders = [_run_policy(tasks, output / RUN_FOLDER, config, policy, model)]
        with ProgressDisplay() as progress, _proposer(config) as propose:
            try:
                made = make_generation(
                    TaskStore(tasks), TaskStore(output), folders, config, _timed(progress), phase=phase, propose=propose
                )
            except KeyboardInterrupt as error:
                text = "interrupted; attributions and finished packages are kept, the same command resumes there"
                raise Interrupted(text) from error
    if as_json:
        print_json({"folder": str(output), "generation": made.plan.generation, **made.funnel})
        return
    for title in ("attribution", "total"):
        counts = made.funnel[title].get("evolved", made.funnel[title])
        for reason, count in counts.items():
            typer.echo(f"{reason.replace('_', ' '):<40}{count:>6}")
    typer.echo(f"generation {made.plan.generation}: {len(made.tasks)} tasks in {output}; drops: {output / FUNNEL_FILE}")


def _timed(progress: ProgressDisplay) -> Report:
    """Return ``progress`` with the time that a stage still takes."""
    first: dict[str, tuple[float, int]] = {}

    def report(stage: str, done: int, total: int, detail: str) -> None:
        begun, num_before = first.setdefault(stage, (time.monotonic(), done))
        is_timed = num_before < done < total
        left = f", {time_left(begun, done - num_before, total - num_before)}" if is_timed else ""
        progress(stage, done, total, f"{detail}{left}")

    return report


@contextmanager
def _proposer(config: EvolutionConfig) -> Iterator[Proposer | None]:
    """Open the generator where one is asked; tell at the end what it was asked and cost."""
    if not config.num_proposals:
        yield None
        return
    from repairgym.cli.running import describe_usage
    from repairgym.inference.endpoint import EndpointClient
    from repairgym.inference.openai import OpenAITextModel
    from repairgym.recipes.evolution.proposals import Proposer

    client = EndpointClient(config.generator)
    yield Proposer(OpenAITextModel(client, temperature=1.0), config.plan.max_edits, config.seed)
    typer.echo(describe_usage(client.statistics.as_metrics("generator"), "generator"), err=True)


def _run_policy(tasks: Path, run: Path, config: EvolutionConfig, policy: str, model: Path | None) -> Path:
    """Run ``policy`` on the tasks; return its run folder."""
    from repairgym.cli.running import evaluate_policy

    evaluate_policy(tasks, run, config, policy, model)
    return run

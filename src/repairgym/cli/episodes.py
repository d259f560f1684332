"""`repairgym rollout`, `repairgym scaffolds` and `repairgym replay`: run episodes and replay stored ones."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_new_run, check_tasks, find_policy, load_tasks, open_stored, tokenizer_folder
from repairgym.cli.options import (
    AsJson,
    NewRun,
    Overrides,
    RunFolder,
    Tasks,
    TasksOption,
    Tokenizer,
    configured,
    print_json,
)
from repairgym.cli.preflights import show_selection
from repairgym.config.commands import ReplayCommandConfig, RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ConfigError, InputError, TaskError

if TYPE_CHECKING:
    from repairgym.records import Task, Trajectory, VerdictKind
    from repairgym.rollout.jobs import EpisodeJob, PolicyRef
    from repairgym.rollout.replay import Replay
    from repairgym.rollout.store import RunStore
    from repairgym.training.run import Run
    from repairgym.training.trees import Trees

PHASE = "rollout"
BRANCH_PHASE = "branch"


@partial(configured, check_dry=show_selection)
def rollout(
    tasks: Tasks,
    run: NewRun,
    config: RolloutCommandConfig,
    policy: Annotated[
        str,
        typer.Option(
            help="Model folder, base or hub id; openai, vllm (endpoint.*); oracle, submit-at-once, random, teacher."
        ),
    ] = "oracle",
    model: Tokenizer = None,
    branch: Annotated[
        str, typer.Option(help="ID:TURNS of an episode in RUN: begin with its first turns instead of a task's start.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run a policy on tasks and count the verdicts.

    Example: repairgym rollout tasks runs/oracle --policy oracle select.splits=test

    Example: repairgym rollout tasks runs/many cluster.address=ray://head:10001 rollout.num_workers=16

    Example: repairgym rollout tasks runs/api --policy openai endpoint.base_url=http://HOST:8000/v1 endpoint.model=base

    Example: repairgym rollout tasks runs/own --policy models/rft --branch 'rollout/rft/0/TASK#3:5' num_samples=8

    Example: repairgym rollout tasks runs/tree --policy models/rft num_samples=8 tree.type=entropy tree.num_chains=4
    """
    ref = find_policy(policy, config.rollout.temperature, config.endpoint)
    check_tasks(tasks), check_new_run(run)
    check_branches(config, branch, is_script=not (ref.folder or ref.endpoint or ref.router))
    from repairgym.cli.running import check_policy, describe_missing_oracles, open_run
    from repairgym.training.run_settings import CallConfig

    folder, phase = tokenizer_folder(model, ref), BRANCH_PHASE if branch else PHASE
    check_policy(ref, folder, config.rollout)
    free = ("select.*", "num_samples") if config.tree.type == "none" else ("select.*",)
    call = CallConfig(f"rollout-{ref.name}", config, free=free)
    with open_run(run, tasks, folder, config.rollout, config.seed, cluster=config.cluster, call=call) as opened:
        identity = check_identity(opened.store, phase, ref, config.rollout)
        jobs, trees = (branch_jobs(opened, ref, config, branch), None) if branch else _task_jobs(opened, ref, config)
        chosen = [opened.tasks[task_id] for task_id in dict.fromkeys(job.task_id for job in jobs)]
        if missing := describe_missing_oracles(chosen, config.rollout):
            typer.echo(missing, err=True)
        with opened.store.phase(phase, identity):
            trajectories = opened.run_jobs(ref, jobs, phase=phase, trees=trees)
        counters = opened.pool.counters()
    print_verdicts(ref.name, trajectories, counters, run, as_json)


def check_identity(store: RunStore, phase: str, ref: PolicyRef, rollout: RolloutConfig) -> dict[str, str]:
    """Return what ``phase`` keeps of a policy; InputError where another one of its name has episodes there.

    Ids, and the file with the settings, hold no more of a model than the name of its folder.
    """
    from repairgym.training.evaluate import check_fingerprint, named_fingerprint, policy_fingerprint

    identity = named_fingerprint(ref.name, {"policy_digest": policy_fingerprint(ref, rollout)["policy_digest"]})
    check_fingerprint(store, phase, identity)
    return identity


def check_branches(config: RolloutCommandConfig, branch: str, *, is_script: bool) -> None:
    """Raise a `ConfigError` where the settings of branches exclude each other, or a script cannot continue them."""
    is_tree = config.tree.type != "none"
    if is_tree and is_script:
        raise ConfigError(f"tree.type={config.tree.type!r}: a script says in a branch what it said before; use a model")
    if branch and is_tree:
        raise ConfigError("--branch begins all episodes behind one turn; leave tree.* out")
    if branch and config.select != RolloutCommandConfig().select:
        raise ConfigError("--branch names an episode and with it the task; leave select.* out")


def _task_jobs(opened: Run, ref: PolicyRef, config: RolloutCommandConfig) -> tuple[list[EpisodeJob], Trees | None]:
    from repairgym.training.trees import plan_groups

    task_ids = [task.id for task in opened.select(config.select, "tasks")]
    return plan_groups(config.tree, f"{PHASE}/{ref.name}", 0, task_ids, config.num_samples, config.seed)


def branch_jobs(opened: Run, ref: PolicyRef, config: RolloutCommandConfig, branch: str) -> list[EpisodeJob]:
    """Return the jobs of ``--branch``; an error unless it names turns of an episode of this run."""
    from repairgym.rollout.jobs import make_branches

    trajectory_id, _, turns = branch.rpartition(":")
    if not trajectory_id or not turns.isdecimal():
        raise ConfigError(
            f"got --branch {branch!r}, expected ID:TURNS, the id of a stored episode and a number of turns"
        )
    parent = opened.store.trajectory(trajectory_id)
    if parent.pipeline != config.rollout.scaffold:
        raise ConfigError(f"{parent.id} has the pipeline {parent.pipeline!r}, got {config.rollout.scaffold!r}")
    if parent.task_id not in opened.tasks:
        raise InputError(f"{parent.id} is an episode of {parent.task_id}, which is not among the tasks")
    return make_branches(parent, int(turns), config.num_samples, config.seed, f"{BRANCH_PHASE}/{ref.name}")


def print_verdicts(
    policy: str, trajectories: Sequence[Trajectory], counters: dict[str, float], run: Path, as_json: bool
) -> None:
    """Print the verdicts of a rollout, its rate with the interval, and the command to read it with."""
    from repairgym.evaluation.pass_at_k import pass_at_1
    from repairgym.report.wording import percent

    counts = Counter(trajectory.verdict.kind.value for trajectory in trajectories)
    by_task: dict[str, list[VerdictKind]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task_id, []).append(trajectory.verdict.kind)
    estimate = pass_at_1(by_task)
    if as_json:
        totals = {"policy": policy, "num_tasks": len(by_task), "num_episodes": len(trajectories)}
        rate = estimate and estimate.model_dump()
        print_json({**totals, "verdicts": counts, "pass_at_1": rate, "counters": counters})
        return
    verdicts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    typer.echo(f"{policy}: {len(by_task)} tasks, {len(trajectories)} episodes: {verdicts}")
    if estimate:
        interval = f"95 % interval {100 * estimate.ci_low:.1f} to {100 * estimate.ci_high:.1f} %"
        typer.echo(f"Pass@1 {percent(estimate.value, space=' ')}, {interval}")
    typer.echo(f"next: repairgym view {shlex.quote(str(run))}")


PIPELINES = ("compact", "simplified", "full", "paper_b")


def scaffolds(
    tasks: Tasks,
    run: NewRun,
    overrides: Overrides = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="Type of a pipeline, or a TOML file; default: every type.")
    ] = None,
    num_tasks: Annotated[int, typer.Option("--tasks", min=0, help="Tasks of all splits and sources; 0 for all.")] = 0,
) -> None:
    """Check that an oracle solves every task with each pipeline's tools, and that a do-nothing agent solves none.

    Settings are those of rollout.* only.

    Example: repairgym scaffolds tasks runs/scaffolds --pipeline paper_b --tasks 20
    """
    check_tasks(tasks), check_new_run(run)
    from repairgym.cli.running import open_run
    from repairgym.inference.loading import shipped_base
    from repairgym.studies.without_learning import chosen_tasks, measure_scaffold
    from repairgym.training.run_settings import CallConfig

    configs = {name: load_scaffold(name, overrides or []) for name in pipeline or PIPELINES}
    results = []
    for name, config in configs.items():
        # Kept, so that other settings under the same name are rejected instead of answered by stored episodes.
        call = CallConfig(f"scaffold-{Path(name).stem}", config, option="the settings in")
        with open_run(run, tasks, shipped_base(), config.rollout, seed=0, call=call) as opened:
            results.append(measure_scaffold(opened, Path(name).stem, chosen_tasks(opened, num_tasks)))
    typer.echo(f"{'pipeline':<16}{'oracle':>14}{'do nothing':>14}{'invalid':>9}{'turns':>7}")
    for result in results:
        rates = [f"{count} of {result.num_tasks}" for count in (result.num_solved, result.num_solved_by_nothing)]
        typer.echo(f"{result.pipeline:<16}{rates[0]:>14}{rates[1]:>14}{result.num_invalid:>9}{result.mean_turns:>7.1f}")
    if unsound := [result for result in results if not result.is_sound]:
        names = ", ".join(
            f"{result.pipeline} ({', '.join(result.unsolved[:3]) or 'solved by nothing'})" for result in unsound
        )
        raise TaskError(f"unsound: {names}; see repairgym report, or the trajectories in {run}")


def load_scaffold(name: str, overrides: list[str]) -> RolloutCommandConfig:
    """Return the settings of a pipeline, a type or a TOML file; ConfigError for settings outside of ``rollout``."""
    file, choice = (Path(name), []) if name.endswith(".toml") else (None, [f"rollout.pipeline.type={name}"])
    config = load_config(RolloutCommandConfig, file, [*choice, *overrides])
    default = RolloutCommandConfig()
    idle = [key for key in config.model_fields_set - {"rollout"} if getattr(config, key) != getattr(default, key)]
    given = (text.partition("=")[0].strip() for text in overrides)
    if idle := sorted({*idle, *(key for key in given if key.partition(".")[0] != "rollout")}):
        raise ConfigError(
            f"scaffolds reads rollout.* only, got {', '.join(idle)}; it plays every split once with seed 0 (--tasks: "
            "fewer tasks)"
        )
    return config


_NUM_SHOWN = 10


@configured
def replay(run: RunFolder, config: ReplayCommandConfig, tasks: TasksOption = None, model: Tokenizer = None) -> None:
    """Replay stored episodes in new sandboxes and compare the observations, byte for byte.

    Only times, temporary names and addresses may differ. rollout.pipeline must be that of the run.

    Example: repairgym replay runs/teacher --tasks tasks num_episodes=100
    """
    known = load_tasks(tasks or run / "tasks")
    with open_stored(run) as store:
        chosen = _choose(store.trajectories(phase=config.phase or None), known, config)
    replays = asyncio.run(_replay(chosen, known, tokenizer_folder(model), config))
    different = [episode for episode in replays if episode.difference]
    for episode in different[:_NUM_SHOWN]:
        typer.echo(f"{episode.trajectory_id}: {episode.difference}")
    num_turns, num_equal = sum(episode.num_turns for episode in replays), sum(episode.num_equal for episode in replays)
    num_normalized = sum(episode.num_normalized for episode in replays)
    typer.echo(
        f"{len(replays) - len(different)} of {len(replays)} episodes are the same; of {num_turns} observations "
        f"{num_equal} are equal byte for byte and {num_normalized} after times, temporary names and addresses are "
        "replaced"
    )
    if different:
        raise TaskError(f"{len(different)} of {len(replays)} episodes differ from the stored ones")


def _choose(stored: Iterable[Trajectory], known: Mapping[str, Task], config: ReplayCommandConfig) -> list[Trajectory]:
    scaffold = config.rollout.scaffold
    chosen: list[Trajectory] = []
    for trajectory in stored:
        if not trajectory.turns or trajectory.task_id not in known or len(chosen) == config.num_episodes:
            continue
        if trajectory.pipeline != scaffold:
            raise ConfigError(
                f"{trajectory.id} has the pipeline {trajectory.pipeline!r}, got {scaffold!r}; "
                "give the configuration of the run"
            )
        chosen.append(trajectory)
    if not chosen:
        raise InputError("no stored episode of these tasks has actions; see --tasks and phase=")
    return chosen


async def _replay(
    chosen: list[Trajectory], known: Mapping[str, Task], model: Path, config: ReplayCommandConfig
) -> list[Replay]:
    from repairgym.cli.display import ProgressDisplay
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.rollout.replay import replay as play
    from repairgym.rollout.runner import Runner
    from repairgym.sandbox.probe import create_backend
    from repairgym.tasks.build.validation import task_layers
    from repairgym.tasks.layers.store import LayerStore

    renderer = ChatRenderer(load_tokenizer(model))
    store = LayerStore(config=config.rollout.layers)
    backend = create_backend(config.rollout.sandbox)
    replays: list[Replay] = []
    try:
        runner = Runner(config.rollout, backend, lambda task: task_layers(task, store), renderer, store)
        with ProgressDisplay() as progress:
            async for episode in play(chosen, known, runner, renderer):
                replays.append(episode)
                num_different = sum(bool(episode.difference) for episode in replays)
                progress("replay", len(replays), len(chosen), f"{num_different} different")
    finally:
        await backend.close()
    return replays

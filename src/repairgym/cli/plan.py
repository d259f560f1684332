"""`repairgym plan`: estimate memory, time and cost of RL on given machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repairgym.cli.arguments import open_stored
from repairgym.cli.options import AsJson, Config, DryRun, Overrides, Preset, config_files, print_json
from repairgym.config.cluster import PlanCommandConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.errors import ConfigError

if TYPE_CHECKING:
    from repairgym.config.recipes import DemoConfig
    from repairgym.sizing.simulation import StoredEpisode

_GIB = 1 << 30


def plan(
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    measure: Annotated[Path | None, typer.Option(help="Take the section `episode` from this run's rollouts.")] = None,
    check: Annotated[Path | None, typer.Option(help="Simulate this run's iterations and compare.")] = None,
    models: Annotated[bool, typer.Option("--models", help="List the known models and exit.")] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Estimate memory, time of an iteration and bottlenecks, from first principles and a simulation.

    Example: repairgym plan model=Qwen3-32B context_tokens=131072 machine.num_gpus=8

    Example: repairgym plan --measure runs/rl model=Qwen3-8B

    Example: repairgym plan --check runs/demo-DATE
    """
    if check and (overrides or preset or config or measure):
        raise ConfigError("--check takes everything from its run; leave settings, --preset, --config and --measure out")
    from repairgym.sizing.estimate import estimate
    from repairgym.sizing.simulation import measured_episode

    if models:
        _list_models(as_json)
        return
    resolved = load_config(PlanCommandConfig, config_files(config, preset), overrides or [])
    if measure:
        episodes = [episode for _, _, episode in _episodes(measure)]
        resolved = resolved.model_copy(update={"episode": measured_episode(episodes)})
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    if check:
        _check(check, as_json)
        return
    planned = estimate(resolved)
    sections = _figures(resolved, planned)
    if as_json:
        print_json(sections)
        return
    for line in planned.preflight:
        typer.echo(line)
    for title, figures in sections.items():
        typer.echo(title)
        for name, value in figures.items():
            typer.echo(f"  {name:<44}{value:>14}" if isinstance(value, str) else f"  {name:<44}{value:>14,.6g}")


def _list_models(as_json: bool) -> None:
    from repairgym.sizing.shapes import SHAPES

    if as_json:
        print_json({name: {"num_parameters": shape.num_parameters} for name, shape in SHAPES.items()})
        return
    for name, shape in SHAPES.items():
        typer.echo(f"{name:<16}{shape.num_parameters / 1e9:6.1f} B parameters")


def _figures(config: PlanCommandConfig, estimate: Any) -> dict[str, dict[str, Any]]:
    from repairgym.sizing.simulation import SIMULATED_SHARES

    machine, rollouts = config.machine, estimate.rollouts
    least_s, most_s = (rollouts.duration_s / share for share in reversed(SIMULATED_SHARES))
    hours = config.num_iterations * estimate.iteration_s / 3600.0
    run = {"iterations": config.num_iterations, "days": hours / 24.0, "GPU hours": hours * machine.num_gpus}
    if machine.usd_per_gpu_hour:
        run["US dollars"] = hours * machine.num_gpus * machine.usd_per_gpu_hour
    stretch = {"stretch first (repairgym models stretch), factor": estimate.yarn_factor}
    return {
        **({"positions": stretch} if estimate.yarn_factor > 1.0 else {}),
        "training, on each GPU": {
            **{f"{name} (GiB)": value / _GIB for name, value in estimate.training.parts.items()},
            "together (GiB)": estimate.training.total_bytes / _GIB,
            "GPUs that share one context": estimate.training.context_parallel,
        },
        "generation": {
            "GPUs of one replica": estimate.generation.tensor_parallel,
            "replicas": estimate.num_replicas,
            "tokens of one replica's cache": estimate.generation.num_kv_tokens,
            "episodes of mean length in it": estimate.max_sequences,
        },
        "one iteration": {
            "episodes": estimate.num_episodes,
            "tokens of an episode": estimate.episode_tokens,
            "rollouts (s, simulated)": rollouts.duration_s,
            "rollouts (s) as a demo measured them": f"{least_s:.6g} to {most_s:.6g}",
            "of which the last tenth of episodes (s)": rollouts.tail_s,
            "busy share of engines": rollouts.engine_share,
            "busy share of cores": rollouts.core_share,
            "update (s)": estimate.update_s,
            "new weights to the engines (s)": estimate.transfer_s,
            "together (s), rollouts as simulated": estimate.iteration_s,
        },
        "the run": run,
    }


def _check(run: Path, as_json: bool) -> None:
    from repairgym.sizing.simulation import simulated_s
    from repairgym.sizing.workers import size_workers, this_host

    config = _demo_config(run)
    in_flight = config.rollout.max_in_flight * size_workers(config.rollout, [this_host()]).num_workers
    with open_stored(run) as store:
        measured = dict(store.metrics("rl", "time/rollout_s"))
    batches = sorted(_batches(run).items())
    rows = [(step, simulated_s(of_step, in_flight), measured[step]) for step, of_step in batches if step in measured]
    if as_json:
        names = ("iteration", "simulated_s", "measured_s")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    for step, simulated, seconds in rows:
        typer.echo(
            f"iteration {step}: simulated {simulated:.1f} s, measured {seconds:.1f} s, {simulated / seconds:.2f}"
        )


def _demo_config(run: Path) -> DemoConfig:
    from repairgym.config.recipes import DemoConfig

    return load_config(DemoConfig, run / "config.toml")


def _episodes(run: Path) -> list[tuple[int, str, StoredEpisode]]:
    """Return iteration, group and work of each stored RL episode."""
    from repairgym.sizing.simulation import StoredEpisode

    episodes = []
    with open_stored(run) as store:
        for row in store.rows(phase="rl"):
            seconds = [row.durations_s.get(name, 0.0) for name in ("generate", "tool", "grade")]
            episode = StoredEpisode(row.num_turns, row.num_tokens, row.num_action_tokens, *seconds)
            episodes.append((row.step, row.group_id, episode))
    return episodes


def _batches(run: Path) -> dict[int, list[list[StoredEpisode]]]:
    """Return stored RL episodes by iteration and batch: the first sampled groups, then the refill."""
    first = _demo_config(run).rl.num_groups_sampled
    groups_by_step: dict[int, dict[str, list[StoredEpisode]]] = {}
    for step, group_id, episode in _episodes(run):
        groups_by_step.setdefault(step, {}).setdefault(group_id, []).append(episode)
    batches = {}
    for step, groups in groups_by_step.items():
        members = list(groups.values())
        parts = members[:first], members[first:]
        batches[step] = [[episode for group in part for episode in group] for part in parts if part]
    return batches

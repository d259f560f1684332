"""`repairgym scaffolds`: the oracle and the do-nothing agent in each pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.config.commands import RolloutCommandConfig
from repairgym.config.loading import load_config
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import TaskError

PIPELINES = ("compact", "simplified", "full", "paper_b")
_UNBOUNDED = "rollout.engine.max_len_tokens=1048576"
"""Scripts have no engine; a pipeline's context must fit it all the same."""


def scaffolds(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted one is continued.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="a.b=value, for every pipeline")] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option(help="Type of a pipeline, or a TOML file; default: every type.")
    ] = None,
    num_tasks: Annotated[int, typer.Option("--tasks", min=0, help="Tasks of all splits and sources; 0 for all.")] = 0,
) -> None:
    """Check that an oracle solves every task by each pipeline's own tools, and that doing nothing solves none.

    Example: repairgym scaffolds tasks runs/scaffolds --pipeline paper_b --tasks 20
    """
    from repairgym.cli.running import open_run
    from repairgym.inference.loading import shipped_base
    from repairgym.studies.scripted import chosen_tasks, measure_scaffold

    found = []
    for name in pipeline or PIPELINES:
        with open_run(run, tasks, shipped_base(), _load(name, overrides or []), seed=0) as opened:
            found.append(measure_scaffold(opened, Path(name).stem, chosen_tasks(opened, num_tasks)))
    typer.echo(f"{'pipeline':<16}{'oracle':>14}{'do nothing':>14}{'invalid':>9}{'turns':>7}")
    for one in found:
        rates = [f"{count} of {one.num_tasks}" for count in (one.num_solved, one.num_solved_by_nothing)]
        typer.echo(f"{one.pipeline:<16}{rates[0]:>14}{rates[1]:>14}{one.num_invalid:>9}{one.mean_turns:>7.1f}")
    if unsound := [one for one in found if not one.is_sound]:
        names = ", ".join(f"{one.pipeline} ({', '.join(one.unsolved[:3]) or 'solved by nothing'})" for one in unsound)
        raise TaskError(f"not as it should be: {names}; see repairgym report, or the trajectories in {run}")


def _load(name: str, overrides: list[str]) -> RolloutConfig:
    if name.endswith(".toml"):
        return load_config(RolloutCommandConfig, Path(name), [_UNBOUNDED, *overrides]).rollout
    return load_config(RolloutCommandConfig, None, [f"rollout.pipeline.type={name}", _UNBOUNDED, *overrides]).rollout

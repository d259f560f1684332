"""`repairgym trajectories`: export and import episodes of other systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import load_tasks, open_stored, tokenizer_folder
from repairgym.cli.options import RunFolder, configured
from repairgym.config.commands import TrajectoryTablesConfig
from repairgym.errors import ConfigError, InputError

if TYPE_CHECKING:
    from repairgym.bridges.trajectories.base import TrajectoryFormat
    from repairgym.inference.renderer import ChatRenderer

app = typer.Typer(help="Trajectories for other systems and from them.", no_args_is_help=True, add_completion=False)

AUTO = "auto"
OTLP = "otlp"
_FORMATS = "mini_swe_agent, swe_agent, atif, chat"
_READ_ONLY = "inspect, verl, trl, slime, prime_rl, otlp"
_NUM_SHOWN = 5

Model = Annotated[Path | None, typer.Option(help="Folder with the tokenizer; default: the shipped base.")]


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write into; a .jsonl file for chat and otlp.")],
    format_name: Annotated[str, typer.Option("--format", help=f"{OTLP}, {_FORMATS}.")] = "chat",
    phase: Annotated[str, typer.Option(help="Phase of the run; default: all.")] = "",
    verdict: Annotated[str, typer.Option(help="Only this kind: passed, failed, exploited, invalid.")] = "",
    model: Model = None,
) -> None:
    """Write the trajectories of a run in the format of another system, or as OpenTelemetry spans (otlp).

    Example: repairgym trajectories export runs/teacher sft.jsonl --format chat --verdict passed

    Example: repairgym trajectories export runs/teacher spans.jsonl --format otlp
    """
    from repairgym.bridges.trajectories.base import from_trajectory
    from repairgym.bridges.trajectories.files import write_trajectories
    from repairgym.bridges.trajectories.spans import write_spans
    from repairgym.records import VerdictKind

    form = None if format_name == OTLP else _format(format_name)
    if verdict and verdict not in set(VerdictKind):
        raise ConfigError(f"got --verdict {verdict}, expected one of {', '.join(VerdictKind)}")
    renderer = _renderer(model) if form else None
    with open_stored(run) as store:
        rows = [row for row in store.rows(phase=phase or None) if row.num_turns and verdict in ("", row.verdict)]
        chosen = ((store.trajectory(row.id), row.created_at) for row in rows)
        if form and renderer:
            count = write_trajectories((from_trajectory(each, renderer) for each, _ in chosen), form, out)
        else:
            count = write_spans(chosen, out)
    if not count:
        raise InputError(f"{run} has no such trajectory with actions; see --phase and --verdict")
    typer.echo(f"{count} trajectories in {out} ({format_name})")


@app.command(name="import")
def import_command(
    run: Annotated[Path, typer.Argument(help="Run folder; made when it is missing.")],
    source: Annotated[Path, typer.Argument(help="File, or folder of files.")],
    tasks: Annotated[Path | None, typer.Option(help="Folder of their tasks; without it they can only be read.")] = None,
    format_name: Annotated[str, typer.Option("--format", help=f"{AUTO}, {_FORMATS}, {_READ_ONLY}.")] = AUTO,
    graded: Annotated[Path | None, typer.Option(help="Results folder of repairgym grade, for their verdicts.")] = None,
    model: Model = None,
) -> None:
    """Store trajectories of other agents in a run, for repairgym train sft (phase=import) and viewing, never for RL.

    Their text is encoded here, so there are no sampled tokens. Verdicts come from repairgym grade.

    Example: repairgym trajectories import runs/mini mini-output --tasks tasks --graded preds-graded
    """
    from repairgym.bridges.trajectories.files import Gradings, import_trajectories, read_trajectories
    from repairgym.rollout.calls import locked
    from repairgym.rollout.store import RunStore

    form = None if format_name == AUTO else _format(format_name)
    known = load_tasks(tasks) if tasks else None
    gradings = Gradings(graded) if graded else None
    renderer = _renderer(model)
    run.mkdir(parents=True, exist_ok=True)
    path = run / "run.db"
    with locked(run), RunStore.open(path) if path.exists() else RunStore.create(path) as store:
        done = import_trajectories(read_trajectories(source, form), store, known, renderer, gradings)
    for bad in done.bad[:_NUM_SHOWN]:
        typer.secho(f"left out: {bad.place}: {bad.reason}", fg="yellow", err=True)
    if not done.num_stored and not done.num_known:
        raise InputError(f"none of the {len(done.bad)} trajectories of {source} can be used")
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.verdicts.items() if count) or "none new"
    typer.echo(f"{done.num_stored} trajectories stored ({kinds}), {done.num_known} known, {len(done.bad)} left out")


def _format(name: str) -> TrajectoryFormat:
    from repairgym.bridges.trajectories.formats import FORMATS

    if name not in FORMATS:
        raise ConfigError(f"got --format {name}, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def _renderer(model: Path | None) -> ChatRenderer:
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer

    return ChatRenderer(load_tokenizer(tokenizer_folder(model)))


@app.command()
@configured
def parquet(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="File (layout=parquet) or folder (layout=dataset) to make.")],
    config: TrajectoryTablesConfig,
) -> None:
    """Write trajectories or samples of a run as Parquet; `datasets.load_dataset(OUT)` reads the folder.

    Example: repairgym trajectories parquet runs/rl samples what=samples phase=rl
    """
    from repairgym.studies.trajectory_tables import export_run

    with open_stored(run) as store:
        num_rows = export_run(store, out, config)
    typer.echo(f"{out}: {num_rows} {config.what}")

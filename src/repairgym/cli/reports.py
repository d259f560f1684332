"""`repairgym analyze`, `repairgym report` and `repairgym view`: a run in tables, figures and web pages."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repairgym.cli.arguments import check_run, open_stored, tokenizer_folder
from repairgym.cli.options import Overrides, Port, RunFolder, configured, port_override
from repairgym.config.commands import AnalysisConfig, DataFilesConfig, ViewConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, InputError

if TYPE_CHECKING:
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.records import Trajectory
    from repairgym.view.api_pages import Formats

FOLDER = "analysis"
_MAX_ROWS = 20


@configured
def analyze(
    run: RunFolder,
    config: AnalysisConfig,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and figures; default: RUN/analysis.")] = None,
) -> None:
    """Analyze stored trajectories: tools, policy shift, loops, errors, exploits, reward gap, drift.

    Example: repairgym analyze runs/demo-DATE before=eval/rft/test-mutations after=eval/rl/test-mutations
    """
    check_run(run)
    from repairgym.analysis.behavior import tools_by_use
    from repairgym.analysis.overview import analyze_run
    from repairgym.analysis.tables import analysis_tables
    from repairgym.cli.display import print_table
    from repairgym.report.data_files import export
    from repairgym.report.figures import NUM_COLORS, exploit_plot, gap_plot, share_plot
    from repairgym.report.wording import gap_claim, shift_claim

    with open_stored(run) as store:
        analysis = analyze_run(store, config)
    tables = analysis_tables(analysis)
    figures = (
        share_plot(analysis.tools_by_step, tools_by_use(analysis.tools_by_step)[:NUM_COLORS]),
        gap_plot(analysis.gap),
        exploit_plot(analysis.exploits, list(analysis.tools_by_step)),
    )
    for table in tables:
        print_table(table, _MAX_ROWS)
    if analysis.shift:
        typer.echo(shift_claim(analysis.shift))
    if analysis.trend:
        typer.echo(gap_claim(analysis.trend))
    drawn, folder = [figure for figure in figures if figure], out or run / FOLDER
    paths = export(tables, drawn, folder, config.export)
    typer.echo(f"{len(tables)} tables, {len(drawn)} figures, {len(paths)} files in {folder}")


COMPARISON_FILE = "comparison.html"


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of the run; it holds run.db. Several with --compare.")],
    is_opened: Annotated[bool, typer.Option("--open", help="Show the report in the web browser.")] = False,
    is_comparison: Annotated[
        bool, typer.Option("--compare", help="Compare the runs on their common tasks; the first is the reference.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File of the comparison; default: comparison.html in the last run's folder.")
    ] = None,
    is_data_written: Annotated[
        bool, typer.Option("--data", help="Also write every table and figure as files, into RUN/data.")
    ] = False,
    export: Annotated[list[str] | None, typer.Option("--set", help='Setting of --data, e.g. tables=["csv"].')] = None,
) -> None:
    """Write report.html and summary.json into a run folder; also for unfinished runs.

    Example: repairgym report runs/demo-DATE --open

    Example: repairgym report --compare runs/seed0 runs/seed1 --out seeds.html
    """
    if is_comparison and is_data_written:
        raise ConfigError("--data writes the tables of one run; leave it or --compare out")
    if export and not is_data_written:
        raise ConfigError("--set is a setting of --data; add --data")
    for run in runs:
        check_run(run)
    from repairgym.report.html import write_comparison, write_data, write_report

    if is_comparison:
        path = write_comparison(runs, out or runs[-1] / COMPARISON_FILE)
    elif len(runs) > 1 or out:
        raise ConfigError(f"got {len(runs)} runs{' and --out' if out else ''}; to compare runs, add --compare")
    else:
        path = write_report(runs[0])
        if is_data_written:
            for written in write_data(runs[0], load_config(DataFilesConfig, None, export or [])):
                typer.echo(str(written))
    typer.echo(str(path))
    if is_opened:
        typer.launch(path.resolve().as_uri())


def view(
    runs: Annotated[Path, typer.Argument(help="Folder of a run or of runs; a file of trajectories of another system.")],
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default: 127.0.0.1. Others need a token.")] = "",
    port: Port = None,
    token: Annotated[
        str, typer.Option(envvar="REPAIRGYM_VIEW_TOKEN", help="Token that browsers must send; generated when needed.")
    ] = "",
    is_opened: Annotated[bool, typer.Option("--open", help="Show the first page in the web browser.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the pages into this folder instead: a site that needs no server.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="For a file: folder with its tokenizer, to keep its tokens; default: the shipped."),
    ] = None,
) -> None:
    """Show runs, metrics, groups, trajectories and tokens as web pages, live during a run; read-only.

    Example: repairgym view runs --open

    Example: repairgym view rollouts/12.jsonl

    Example: repairgym view rollout_7.pt --model models/trained

    Example: repairgym view runs/demo-DATE --export site max_trajectories=200
    """
    given = [*([f"host='{host}'"] if host else []), *port_override(port)]
    resolved = load_config(ViewConfig, None, [*(overrides or []), *given])
    from repairgym.view.folders import check_root

    if model and not runs.is_file():
        raise ConfigError(f"--model is for a file of another system; {runs} is a folder, which has its own tokenizer")
    if not runs.is_file():
        check_root(runs)  # before the server is imported, which takes most of a second
    with _as_run(runs, model) if runs.is_file() else nullcontext(runs) as root:
        if export:
            _export(root, export, resolved.max_trajectories, is_opened)
        else:
            _serve(root, resolved, token, is_opened)


def _serve(root: Path, config: ViewConfig, token: str, is_opened: bool) -> None:
    from repairgym.view.app import serve

    def tell(address: str) -> None:
        typer.echo(f"{address}  (Ctrl-C stops it)")
        if is_opened:
            typer.launch(address)

    serve(
        root,
        host=config.host,
        port=config.port,
        token=token,
        tell=tell,
        embed_from=config.embed_from,
        formats=_downloads(),
    )


def _export(root: Path, out: Path, max_trajectories: int, is_opened: bool) -> None:
    from repairgym.cli.display import ProgressDisplay
    from repairgym.report.wording import size
    from repairgym.view.export import export_site

    with ProgressDisplay() as progress:
        done = export_site(
            root,
            out,
            max_trajectories=max_trajectories,
            formats=_downloads(),
            progress=lambda num, known: progress("export", num, known, "files"),
        )
    for name, num in done.runs.items():
        typer.echo(f"{name}: {num['exported']} of {num['stored']} trajectories")
    first = out / "index.html"
    typer.echo(f"{done.num_files} files, {size(done.num_bytes)}; the first page is {first}")
    if is_opened:
        typer.launch(first.resolve().as_uri())


def _downloads() -> "Formats":
    """Return the formats of other systems in which a trajectory can be downloaded."""
    return {name: partial(_in_format, name) for name in ("atif", "chat")}


def _in_format(name: str, trajectory: "Trajectory", folder: Path) -> "dict[str, Any]":
    from repairgym.bridges.trajectories.base import from_trajectory
    from repairgym.bridges.trajectories.formats import FORMATS

    write = FORMATS[name].write
    if write is None:
        raise InputError(f"the format {name} is only read")
    return write(from_trajectory(trajectory, _renderer(folder)))


@cache
def _renderer(folder: Path) -> "ChatRenderer":
    from repairgym.inference.loading import load_tokenizer, shipped_base
    from repairgym.inference.renderer import ChatRenderer

    own = next(iter(sorted(folder.glob("checkpoints/**/tokenizer.json"))), None)
    return ChatRenderer(load_tokenizer(own.parent if own else shipped_base()))


@contextmanager
def _as_run(source: Path, model: Path | None = None) -> Iterator[Path]:
    """Import a file of another system into a run folder that goes with the command; ``model`` has its tokenizer."""
    from repairgym.bridges.trajectories.files import import_trajectories, read_trajectories
    from repairgym.inference.loading import load_tokenizer
    from repairgym.inference.renderer import ChatRenderer
    from repairgym.rollout.store import RunStore

    tokenizer = tokenizer_folder(model)
    with TemporaryDirectory(prefix="repairgym-view-") as name:
        folder = Path(name) / source.name
        (folder / "checkpoints" / "base").mkdir(parents=True)
        copy(tokenizer / "tokenizer.json", folder / "checkpoints" / "base")
        renderer = ChatRenderer(load_tokenizer(tokenizer))
        with RunStore.create(folder / "run.db") as store:
            done = import_trajectories(read_trajectories(source), store, None, renderer)
        for bad in done.bad[:5]:
            typer.secho(f"left out: {bad.place}: {bad.reason}", fg="yellow", err=True)
        if not done.num_stored:
            raise InputError(f"none of the {len(done.bad)} documents of {source} is a trajectory that is known here")
        typer.echo(f"{done.num_stored} trajectories of {source}, {len(done.bad)} left out")
        yield folder

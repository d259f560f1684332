"""`repairgym cluster`: check that a Ray cluster can run episodes.

The exit code is 0 only without problems; 5 means that a node cannot make sandboxes, 9 any other problem.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.options import AsJson, Config, DryRun, Overrides, Preset, resolve
from repairgym.config.cluster import ClusterCheckConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import ClusterError, ConfigError, SandboxUnavailableError

if TYPE_CHECKING:
    from repairgym.bridges.ray.cluster_check import ClusterReport, NodeReport

app = typer.Typer(help="Check a Ray cluster before a run.", no_args_is_help=True, add_completion=False)
_COLUMNS = ("node", "sandboxes", "CPUs", "GPUs", "sandbox", "layer", "clock", "versions")


@app.callback()
def cluster() -> None:
    """Check a Ray cluster before a run."""


@app.command()
def check(
    overrides: Overrides = None,
    address: Annotated[str, typer.Option(help="ray://HOST:10001, HOST:6379, auto or local.")] = "",
    preset: Preset = "",
    config: Config = None,
    is_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Start a sandbox on each node, send it a layer, compare clocks and versions, list GPUs; leave nothing behind.

    Example: repairgym cluster check --address ray://head:10001
    """
    given = [f'cluster.address="{address}"'] if address else []
    resolved = resolve(ClusterCheckConfig, [*(overrides or []), *given], preset, config, dry_run)
    if not resolved.cluster.is_used:
        raise ConfigError("got no cluster, expected --address ray://HOST:10001, HOST:6379, auto or local")
    from repairgym.bridges.ray.cluster_check import check_cluster
    from repairgym.bridges.ray.nodes import connected

    with connected(resolved.cluster, RolloutConfig()) as ray:
        report = check_cluster(ray, resolved)
    if is_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _print_words(report)
    kinds = {problem.kind for problem in report.all_problems}
    code = SandboxUnavailableError.exit_code if "sandbox" in kinds else ClusterError.exit_code if kinds else 0
    raise typer.Exit(code)


def _print_words(report: ClusterReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for name in _COLUMNS:
        table.add_column(name)
    for node in report.nodes:
        table.add_row(*(Text(text) for text in _row(node)))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for node in report.nodes:
        for problem in node.problems:
            typer.echo(f"{node.name} is rejected: {problem.text}\n-> {problem.remedy}")
    for problem in report.problems:
        typer.echo(f"{problem.text}\n-> {problem.remedy}")
    if not report.all_problems:
        typer.echo(f"all nodes at {report.address} are ready: {len(report.nodes)}")


def _row(node: NodeReport) -> tuple[str, ...]:
    started = next((probe for probe in node.sandbox if probe.is_available), None)
    tried = "none starts" if node.num_sandboxes else "not wanted"
    kinds = {problem.kind for problem in node.problems}
    delivery, clock, versions = node.delivery, node.clock, node.installation
    return (
        node.name,
        f"{node.num_sandboxes:g}",
        f"{node.resources.get('CPU', 0.0):g}",
        ", ".join(node.gpus) or "-",
        f"{started.name}, {started.duration_s:.1f} s" if started else tried,
        f"{delivery.bytes_per_s / 1e6:,.0f} MB/s, digest {'differs' if 'layer' in kinds else 'right'}"
        if delivery
        else "no answer",
        f"{clock.offset_s * 1e3:+.1f} ms (of {clock.round_trip_s * 1e3:.1f})" if clock else "no answer",
        f"repairgym {versions.repairgym}, Python {versions.python}, Ray {versions.ray}" if versions else "no answer",
    )

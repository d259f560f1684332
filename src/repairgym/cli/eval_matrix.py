"""`repairgym eval matrix`: every policy in every environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.config.evaluation import DataFilesConfig, MatrixConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError

if TYPE_CHECKING:
    from repairgym.training.run import Run

FOLDER = "matrix"


def matrix(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks.")],
    run: Annotated[Path, typer.Argument(help="Run folder; an interrupted matrix is continued.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="a.b=value")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with [policies] and [environments].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and leave.")] = False,
) -> None:
    """Evaluate policies in environments (pipelines, tools, prompts, gates); table, heat map and findings in words.

    Example: repairgym eval matrix tasks runs/matrix --config configs/matrix.toml num_samples=2
    """
    resolved = load_config(MatrixConfig, config, overrides or [])
    if dry_run:
        typer.echo(to_toml(resolved), nl=False)
        return
    from repairgym.analysis.tables import matrix_tables
    from repairgym.cli.running import check_policy, open_run, policy_of
    from repairgym.cli.tables import print_table
    from repairgym.evaluation.matrix import build_matrix
    from repairgym.inference.loading import shipped_base
    from repairgym.report.data_files import export
    from repairgym.report.figures import heat_plot
    from repairgym.report.html import write_report
    from repairgym.report.run_folder import DATABASE_FILE, MATRIX_FILE
    from repairgym.rollout.store import RunStore
    from repairgym.studies.matrix import run_matrix

    temperature, *others = sorted({one.temperature for one in resolved.environments.values()})
    if others:
        raise InputError(f"got environments of temperatures {[temperature, *others]}; a matrix samples at one")
    policies = {name: policy_of(one.policy, temperature, resolved.endpoint) for name, one in resolved.policies.items()}

    @contextmanager
    def open_environment(rollout: RolloutConfig, model: Path) -> Iterator[Run]:
        for ref in policies.values():
            check_policy(ref, model, rollout)
        with open_run(run, tasks, model, rollout, resolved.seed) as opened:
            yield opened

    run.mkdir(parents=True, exist_ok=True)
    (run / MATRIX_FILE).write_text(to_toml(resolved), encoding="utf-8")
    run_matrix(resolved, policies, open_environment, shipped_base())
    with RunStore.open(run / DATABASE_FILE, is_read_only=True) as store:
        found = build_matrix(store, resolved)
    for one in matrix_tables(found):
        print_table(one)
    for finding in found.findings:
        typer.echo(finding)
    export(matrix_tables(found), [heat_plot(found)], run / FOLDER, DataFilesConfig())
    typer.echo(f"tables and heat map: {run / FOLDER}; report: {write_report(run)}")

"""`repairgym tasks curate`: the tasks that are worth learning from.

Reads options, evidence and run folders; prints the funnel. Invariant: no rule of curation is here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from repairgym.config.curation import CurationConfig
from repairgym.config.loading import load_config, to_toml
from repairgym.errors import InputError
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.build.verification import EvidenceFile
from repairgym.tasks.curation.candidate import SolveRate
from repairgym.tasks.curation.curate import CURATION_FILE, CurationFunnel, curate
from repairgym.tasks.store import TaskStore

Overrides = Annotated[list[str] | None, typer.Argument(help="Configuration overrides: a.b=value")]


def curate_tasks(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    output: Annotated[Path, typer.Argument(help="Folder for the tasks that stay; it must not hold anything.")],
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with the configuration.")] = None,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="File that repairgym tasks verify --evidence wrote.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="Run folder for solve rates; may be given several times.")
    ] = None,
    phase: Annotated[str, typer.Option("--phase", help="Phase of the runs that solve rates are taken from.")] = "rl",
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the configuration and leave.")] = False,
) -> None:
    """Leave out tasks by named filters with the papers' bounds, and write down what each left out and why.

    Example: repairgym tasks curate tasks curated --evidence evidence.jsonl size.max_files=3 'filters=["size", "trivial"]'

    Example: repairgym tasks curate tasks stage2 'filters=["solve_rate"]' --run runs/stage1
    """
    resolved = load_config(CurationConfig, config, overrides or [])
    if is_dry_run:
        typer.echo(to_toml(resolved))
        return
    if evidence and not evidence.is_file():
        raise InputError(f"there is no {evidence}; make it with: repairgym tasks verify {folder} --evidence {evidence}")
    seen = EvidenceFile(evidence).load() if evidence else {}
    funnel = curate(TaskStore(folder), output, resolved, seen, read_solve_rates(runs or [], phase))
    print_funnel(Console(), funnel)
    typer.echo(f"{funnel.num_kept} tasks in {output}; ids and reasons of the others: {output / CURATION_FILE}")


def read_solve_rates(runs: list[Path], phase: str) -> dict[str, SolveRate]:
    """Task id -> passed and valid samples of ``phase`` over all ``runs``; exploits count as not solved.

    Raises:
        InputError: a folder is no run, or no run has samples of ``phase``.
    """
    passed: Counter[str] = Counter()
    valid: Counter[str] = Counter()
    for run in runs:
        path = run / "run.db"
        if not path.is_file():
            raise InputError(f"{run} is no run folder: it has no run.db")
        with RunStore.open(path) as store:
            for row in store.rows(phase=phase):
                valid[row.task_id] += row.verdict is not VerdictKind.INVALID
                passed[row.task_id] += row.verdict is VerdictKind.PASSED
    if runs and not valid:
        raise InputError(f"no run has samples of the phase {phase}; name another with --phase")
    return {task_id: SolveRate(passed[task_id], count) for task_id, count in valid.items() if count}


def print_funnel(console: Console, funnel: CurationFunnel) -> None:
    """The funnel as a table."""
    table = Table("filter", "left out", "not measured", "left", "rule of")
    for column in table.columns[1:4]:
        column.justify = "right"
    table.add_row("candidates", "", "", str(funnel.num_candidates), "")
    if funnel.num_repeated_ids:
        left = funnel.num_candidates - funnel.num_repeated_ids
        table.add_row("(repeated ids)", str(funnel.num_repeated_ids), "", str(left), "always")
    for outcome in funnel.filters:
        counts = (outcome.num_removed, outcome.num_unmeasured, outcome.num_before - outcome.num_removed)
        table.add_row(outcome.name, *map(str, counts), outcome.source)
    console.print(table)

"""`repairgym doctor`: check this machine and name the fix of each problem (JSON: ``docs/reference/doctor.md``).

The exit code is 0 unless a finding has the status ``fail``.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repairgym import __version__
from repairgym.cli import doctor_checks
from repairgym.cli.doctor_checks import Finding, Status
from repairgym.cli.options import AsJson, Overrides
from repairgym.config.loading import load_config
from repairgym.config.sandbox import LayersConfig
from repairgym.records import Record
from repairgym.tasks.layers.store import cache_root

Check = Callable[[], list[Finding]]
_STYLES: dict[Status, str] = {"ok": "green", "skip": "dim", "warn": "yellow", "fail": "red"}


class DoctorReport(Record):
    """Output of ``repairgym doctor --json``."""

    schema_version: int = 1
    repairgym: str
    status: Status
    """The worst status of the findings."""
    findings: tuple[Finding, ...]


def default_checks(config: LayersConfig | None = None) -> dict[str, Check]:
    """Return every check by name, in the order of the report."""
    return {
        "python": doctor_checks.check_python,
        "cores": doctor_checks.check_cores,
        "memory": doctor_checks.check_memory,
        "disk": lambda: doctor_checks.check_disk([cache_root(), Path.cwd()]),
        "packages": doctor_checks.check_packages,
        "bytecode": doctor_checks.check_bytecode,
        "torch": doctor_checks.check_torch,
        "uv": doctor_checks.check_uv,
        "index": doctor_checks.check_index,
        "layers": lambda: doctor_checks.check_layers(cache_root(), config or LayersConfig()),
        "sandbox": doctor_checks.check_sandbox,
    }


def examine(checks: dict[str, Check]) -> DoctorReport:
    """Run ``checks``; an exception in a check becomes a finding, and the others still run."""
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings += check()
        except Exception as error:
            summary = f"the check broke: {type(error).__name__}: {error}"
            findings.append(Finding(id=name, status="fail", summary=summary, remedy="please report this"))
    return DoctorReport(repairgym=__version__, status=worst_status(findings), findings=tuple(findings))


def worst_status(findings: Sequence[Finding]) -> Status:
    """Return the worst of ``fail``, ``warn`` and ``ok``; ``skip`` counts as ``ok``."""
    statuses = {finding.status for finding in findings}
    return "fail" if "fail" in statuses else "warn" if "warn" in statuses else "ok"


def doctor(
    overrides: Overrides = None,
    is_json: AsJson = False,
    is_verifying: Annotated[
        bool, typer.Option("--verify-layers", help="Only read every layer and compare it with its manifest.")
    ] = False,
    is_collecting: Annotated[
        bool, typer.Option("--collect-layers", help="Only remove the least recently used layers above the bound.")
    ] = False,
) -> None:
    """Check this machine and say how to fix what is missing.

    Example: repairgym doctor --json
    """
    config = load_config(LayersConfig, None, overrides or [])
    selected: dict[str, Check] = {}
    if is_collecting:  # before the verification
        selected["layers.collected"] = lambda: doctor_checks.collect_layers(cache_root(), config)
    if is_verifying:
        selected["layers.verified"] = lambda: doctor_checks.verify_layers(cache_root())
    report = examine(selected or default_checks(config))
    if is_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _print_words(report)
    raise typer.Exit(1 if report.status == "fail" else 0)


def _print_words(report: DoctorReport) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(box=None, show_header=False, padding=(0, 1))
    for finding in report.findings:
        style = _STYLES[finding.status]
        mark = "-" if finding.status == "skip" else finding.status
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(f"[{style}]{mark}[/]", f"[bold]{finding.id}[/]", escape(finding.summary + remedy))
    console.print(table)
    verdicts = {"warn": "this machine works; see the warnings", "fail": "a required part is missing"}
    console.print(f"[{_STYLES[report.status]}]{verdicts.get(report.status, 'this machine is ready')}[/]")

"""`repairgym tasks audit` for task folders of Harbor: their defects, each with its evidence and remedy."""

import asyncio
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import print_json
from repairgym.errors import TaskError
from repairgym.tasks.audit.foreign.defects import KINDS, AuditReport
from repairgym.tasks.audit.foreign.foreign import audit_foreign
from repairgym.tasks.audit.foreign.harbor_folder import find_folders

_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def audit_harbor(path: Path, as_json: bool) -> None:
    """Audit the Harbor task folders in ``path`` and print the reports."""
    folders = find_folders(path)
    with ProgressDisplay() as progress:
        reports = asyncio.run(_audit_all(folders, progress))
    if as_json:
        print_json([_as_data(report) for report in reports])
    else:
        for report in reports:
            _print_report(Console(), report)
    num_bad = sum(bool(report.alarms) for report in reports)
    if num_bad:
        raise TaskError(f"{num_bad} of {len(reports)} task folders have defects; the remedies are next to them")


async def _audit_all(folders: list[Path], progress: ProgressDisplay) -> list[AuditReport]:
    from repairgym.config.sandbox import SandboxConfig
    from repairgym.sandbox.probe import create_backend
    from repairgym.tasks.audit.foreign.place import environment_of
    from repairgym.tasks.layers.store import LayerStore

    backend, store = create_backend(SandboxConfig()), LayerStore()
    reports = []
    try:
        for number, folder in enumerate(folders):
            progress("audit", number, len(folders), folder.name)
            reports.append(await audit_foreign(folder, backend, environment_of(folder, store)))
    finally:
        await backend.close()
    return reports


def _as_data(report: AuditReport) -> dict[str, object]:
    rows = [
        {**defect.model_dump(), "severity": defect.severity, "remedy": KINDS[defect.kind].remedy}
        for defect in report.defects
    ]
    return {**report.model_dump(mode="json"), "defects": rows}


def _print_report(console: Console, report: AuditReport) -> None:
    summary = f"defects: {len(report.alarms)}, runs of the verifier: {len(report.runs)}"
    console.print(f"[bold]{escape(report.path)}[/bold]: {escape(report.not_run or summary)}", soft_wrap=True)
    for defect in report.defects:
        kind = KINDS[defect.kind]
        style = _STYLES[kind.severity]
        console.print(f"  [{style}]{kind.severity:<8}[/{style}]{defect.kind}: {kind.meaning}", soft_wrap=True)
        console.print(f"          seen: {escape(defect.evidence)}", soft_wrap=True, highlight=False)
        console.print(f"          remedy: {escape(kind.remedy)}", soft_wrap=True, highlight=False)

"""`repairgym grade`: score the patches of any agent against tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_tasks, load_tasks
from repairgym.cli.options import AsJson, Tasks, configured
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.loading import to_toml
from repairgym.errors import InputError, Interrupted, SandboxError

if TYPE_CHECKING:
    from repairgym.grading.predictions.results import GradedPrediction, GradingSummary, ResultsFolder

_MAX_SHOWN = 5


@configured
def grade(
    tasks: Tasks,
    predictions: Annotated[Path, typer.Argument(help="SWE-bench predictions: JSON lines, list or object.")],
    config: GradeCommandConfig,
    out: Annotated[Path | None, typer.Option(help="Results folder; default: PREDICTIONS-graded.")] = None,
    as_json: AsJson = False,
) -> None:
    """Grade predictions of the SWE-bench family: cold, each in a fresh sandbox, in parallel.

    Keeps the verdicts of earlier calls; tries invalid ones again. Results: instances/ID.json,
    summary.json, report.json (SWE-bench's form).

    Example: repairgym grade tasks preds.jsonl num_workers=4
    """
    check_tasks(tasks)
    from repairgym.grading.predictions.results import ResultsFolder

    results = ResultsFolder(out or predictions.with_name(predictions.stem + "-graded"))
    summary = _grade(config, tasks, predictions, results)
    if as_json:
        typer.echo(summary.model_dump_json(indent=2))
    else:
        _print(summary, results.folder)
    if summary.num_invalid:
        raise SandboxError(f"{summary.num_invalid} verdicts are invalid; the same command tries those again")
    if summary.rejections:
        first = summary.rejections[0]
        raise InputError(
            f"{summary.num_rejected} entries of {predictions} were not graded, the first: {first.place}: {first.reason}"
            f"; all of them: {results.folder / 'summary.json'}"
        )


def _grade(config: GradeCommandConfig, tasks: Path, predictions: Path, results: ResultsFolder) -> GradingSummary:
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.predictions.pool import GradingPool, grade_predictions
    from repairgym.grading.predictions.reading import read_predictions, reject_unknown
    from repairgym.grading.predictions.results import summarize, swe_bench_report
    from repairgym.records import VerdictKind

    known = load_tasks(tasks)
    file = reject_unknown(read_predictions(predictions), known)
    results.write(results.folder / "config.toml", to_toml(config).rstrip("\n"))
    graded: list[GradedPrediction] = []
    num_resolved = 0
    try:
        with GradingPool(config) as pool, ProgressDisplay() as progress:
            for prediction in grade_predictions(file.predictions, known, results, pool, config.grading):
                graded.append(prediction)
                num_resolved += prediction.verdict.kind is VerdictKind.PASSED
                progress("grade", len(graded), len(file.predictions), f"{num_resolved} resolved")
    except KeyboardInterrupt as error:
        raise Interrupted(f"{len(graded)} results are kept, the same command resumes there") from error
    summary = summarize(graded, file.rejected, len(known))
    results.write_totals(summary, swe_bench_report(graded, known))
    return summary


def _print(summary: GradingSummary, folder: Path) -> None:
    for entry in summary.rejections[:_MAX_SHOWN]:
        typer.echo(f"not graded: {entry.place}: {entry.reason}", err=True)
    names = ("resolved", "failed", "exploited", "invalid")
    typer.echo(", ".join(f"{getattr(summary, f'num_{name}')} {name}" for name in names), nl=False)
    typer.echo(f", {summary.num_rejected} rejected; {summary.resolved_share:.1%} of {summary.num_tasks} tasks resolved")
    if summary.num_empty or summary.num_not_applied:
        typer.echo(f"among the failed: {summary.num_empty} empty, {summary.num_not_applied} that do not apply")
    for detector, counts in summary.detectors.items():
        severities = [f"{count} {severity}" for severity, count in counts.model_dump().items() if count]
        typer.echo(f"  {detector}: {', '.join(severities)}")
    typer.echo(f"results: {folder}")

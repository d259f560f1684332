"""`repairgym grade`: score the patches of any agent against tasks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from repairgym.cli.arguments import check_tasks, load_tasks
from repairgym.cli.options import AsJson, Config, DryRun, Preset, resolve
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.loading import to_toml
from repairgym.errors import ConfigError, InputError, Interrupted, SandboxError, TaskError
from repairgym.records import Split, Task
from repairgym.tasks.audit.foreign.harbor_folder import holds_task_folders
from repairgym.tasks.store import FUNNEL_FILE, TaskStore

if TYPE_CHECKING:
    from repairgym.grading.predictions.harbor_folders import FolderTask
    from repairgym.grading.predictions.reading import Prediction, RejectedEntry
    from repairgym.grading.predictions.results import GradedPrediction, GradingSummary, ResultsFolder

_MAX_SHOWN = 5
_DEFAULT_TASKS = Path("tasks")
Difference = dict[str, str]


class Call(NamedTuple):
    """The files of a call."""

    tasks: Path
    predictions: Path
    dataset: str
    split: Split | None = None
    is_only_predicted: bool = False


def grade(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[TASKS] PREDICTIONS [SETTINGS]...",
            help="Folder of tasks (--dataset: default `tasks`) or of Harbor folders; SWE-bench predictions; settings.",
        ),
    ],
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
    dataset: Annotated[
        str, typer.Option("--dataset", help="Score all instances of a data set: a file, or a name such as verified.")
    ] = "",
    split: Annotated[
        Split | None, typer.Option(help="Grade and count the tasks of this split; leave other predictions out.")
    ] = None,
    only_predicted: Annotated[
        bool, typer.Option("--only-predicted", help="Count the tasks with a prediction only, as a partial run has.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Results folder; default: PREDICTIONS-graded.")] = None,
    as_json: AsJson = False,
) -> None:
    """Grade predictions of the SWE-bench family: cold, each in a fresh sandbox, in parallel.

    Keeps the verdicts of earlier calls; tries invalid ones again. Results: instances/ID.json,
    summary.json, report.json (SWE-bench's form).

    Example: repairgym grade tasks preds.jsonl num_workers=4

    Example: repairgym grade --dataset verified preds.jsonl

    Example: repairgym grade harbor-folders preds.jsonl
    """
    call, settings = _read_call(files, dataset)
    call = call._replace(split=split, is_only_predicted=only_predicted)
    resolved = resolve(GradeCommandConfig, settings, preset, config, dry_run)
    has_folders = _has_folders(call)
    from repairgym.grading.predictions.results import ResultsFolder

    results = ResultsFolder(out or call.predictions.with_name(call.predictions.stem + "-graded"))
    summary, differences = (_grade_folders if has_folders else _grade)(resolved, call, results)
    if as_json:
        typer.echo(summary.model_dump_json(indent=2))
    else:
        _print(summary, differences, results.folder)
    _check_whole(summary, call, results)


def _check_whole(summary: GradingSummary, call: Call, results: ResultsFolder) -> None:
    """Raise where predictions have no verdict."""
    if summary.num_invalid:
        raise SandboxError(f"{summary.num_invalid} verdicts are invalid; the same command tries those again")
    if summary.rejections:
        first = _entry(summary.rejections[0])
        raise InputError(
            f"{summary.num_rejected} entries of {call.predictions} were not graded, the first: {first}"
            f"; all of them: {results.folder / 'summary.json'}"
        )
    if summary.not_built and not summary.num_graded:
        raise TaskError(f"none of the predicted instances is built here, the first: {_entry(summary.not_built[0])}")


def _has_folders(call: Call) -> bool:
    """Return True for folders of Harbor; raise where the tasks of the call cannot be used."""
    if TaskStore(call.tasks).has_tasks or not holds_task_folders(call.tasks):
        check_tasks(call.tasks)
        return False
    if call.split or call.is_only_predicted:
        raise ConfigError(
            f"--split and --only-predicted need tasks that repairgym built; {call.tasks} holds Harbor folders"
        )
    if call.dataset:
        raise ConfigError(f"--dataset is of task folders that repairgym built, and {call.tasks} holds Harbor folders")
    return True


def _read_call(words: list[str], dataset: str) -> tuple[Call, list[str]]:
    """Return the files and the settings of a call; ConfigError without predictions."""
    is_setting = ["=" in word and not Path(word).exists() for word in words]
    num_files = is_setting.index(True) if True in is_setting else len(words)
    files, settings = [Path(word) for word in words[:num_files]], words[num_files:]
    if dataset and len(files) == 1:
        files.insert(0, _DEFAULT_TASKS)
    if len(files) != 2:
        raise ConfigError(f"got {len(files)} files, expected TASKS PREDICTIONS, or --dataset NAME PREDICTIONS")
    return Call(files[0], files[1], dataset), settings


def _grade(config: GradeCommandConfig, call: Call, results: ResultsFolder) -> tuple[GradingSummary, list[Difference]]:
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.predictions.pool import GradingPool, grade_predictions
    from repairgym.grading.predictions.reading import read_predictions, reject_unknown
    from repairgym.grading.predictions.results import summarize, swe_bench_report
    from repairgym.records import VerdictKind

    known, unbuilt = _instances(config, call)
    read = read_predictions(call.predictions)
    if call.split:
        left_out = {name for name, task in known.items() if task.split != call.split}
        known = {name: task for name, task in known.items() if name not in left_out}
        read = read.without(left_out)
    file = reject_unknown(read, known, unbuilt)
    if call.is_only_predicted:
        named = {prediction.instance_id for prediction in read.predictions}
        known = {name: task for name, task in known.items() if name in named}
        unbuilt = {name: reason for name, reason in unbuilt.items() if name in named}
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
    ids = (*known, *unbuilt)
    summary, report = summarize(graded, file.rejected, len(ids)), swe_bench_report(graded, ids, file.rejected)
    results.write_totals(summary, report)
    return summary, report.get("differences", [])


def _grade_folders(
    config: GradeCommandConfig, call: Call, results: ResultsFolder
) -> tuple[GradingSummary, list[Difference]]:
    """Grade predictions for Harbor folders: the official verdict is that of a folder's own verifier."""
    from repairgym.grading.predictions.harbor_folders import read_folder_tasks
    from repairgym.grading.predictions.reading import read_predictions, reject_unknown
    from repairgym.grading.predictions.results import summarize, swe_bench_report

    tasks = read_folder_tasks(call.tasks)
    file = reject_unknown(read_predictions(call.predictions), tasks)
    results.write(results.folder / "config.toml", to_toml(config).rstrip("\n"))
    keys = {p.instance_id: tasks[p.instance_id].key(p.model_patch, config.grading) for p in file.predictions}
    known = {p.instance_id: results.load(p, keys[p.instance_id]) for p in file.predictions}
    left = [prediction for prediction in file.predictions if known[prediction.instance_id] is None]
    graded = [result for result in known.values() if result is not None]
    try:
        graded += asyncio.run(_run_folders(config, tasks, left, results))
    except KeyboardInterrupt as error:
        raise Interrupted("stored results are kept, the same command resumes there") from error
    summary, report = summarize(graded, file.rejected, len(tasks)), swe_bench_report(graded, tuple(tasks))
    results.write_totals(summary, report)
    return summary, report.get("differences", [])


async def _run_folders(
    config: GradeCommandConfig, tasks: dict[str, FolderTask], left: list[Prediction], results: ResultsFolder
) -> list[GradedPrediction]:
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.predictions.harbor_folders import grade_folders
    from repairgym.grading.predictions.pool import GradeRequest, GradingPool
    from repairgym.sandbox.probe import create_backend

    certified = [(p, task) for p in left if (task := tasks[p.instance_id].certified)]
    with GradingPool(config) as pool:
        answers = pool.run([GradeRequest(task, p.model_patch) for p, task in certified])
        ours = {certified[index][0].instance_id: answer for index, answer in answers}
    graded, backend = [], create_backend(config.sandbox)
    try:
        with ProgressDisplay() as progress:
            workers = config.num_workers or os.cpu_count() or 1
            async for result in grade_folders(tasks, left, ours, backend, config.grading, workers):
                results.save(result)
                graded.append(result)
                progress("grade", len(graded), len(left), result.instance_id)
    finally:
        await backend.close()
    return graded


def _instances(config: GradeCommandConfig, call: Call) -> tuple[dict[str, Task], dict[str, str]]:
    """Return the tasks to score, and the reason for each instance of the data set without a certified task."""
    if not call.dataset:
        return load_tasks(call.tasks), {}
    from repairgym.grading.predictions.named_sets import instance_ids
    from repairgym.tasks.imported.outcomes import reason_of

    store = TaskStore(call.tasks)
    certified = {task.id: task for task in store.load_certified()}
    ids, units = instance_ids(call.dataset, Path(config.datasets)), store.load_document(FUNNEL_FILE).get("units", {})
    known = {name: certified[name] for name in ids if name in certified}
    return known, {name: reason_of(units.get(name)) for name in ids if name not in certified}


def _entry(entry: RejectedEntry) -> str:
    return f"{entry.place}: {entry.reason}"


def _print(summary: GradingSummary, differences: list[Difference], folder: Path) -> None:
    from repairgym.report.wording import percent

    for entry in (*summary.rejections[:_MAX_SHOWN], *summary.not_built[:_MAX_SHOWN]):
        typer.echo(f"not graded: {_entry(entry)}", err=True)
    names = ("resolved", "failed", "exploited", "invalid")
    typer.echo(", ".join(f"{getattr(summary, f'num_{name}')} {name}" for name in names), nl=False)
    typer.echo(f", {summary.num_not_built} not built" if summary.num_not_built else "", nl=False)
    share = percent(summary.resolved_share, space="")
    typer.echo(f", {summary.num_rejected} rejected; {share} of {summary.num_tasks} tasks resolved")
    if summary.num_empty or summary.num_not_applied:
        typer.echo(f"among the failed: {summary.num_empty} empty, {summary.num_not_applied} that do not apply")
    for task_id, reason in list(summary.reasons.items())[:_MAX_SHOWN]:
        typer.echo(f"  {task_id}: {reason}")
    if len(summary.reasons) > _MAX_SHOWN:
        typer.echo(f"  {len(summary.reasons) - _MAX_SHOWN} more: `reasons` of {folder / 'summary.json'}")
    for detector, counts in summary.detectors.items():
        severities = [f"{count} {severity}" for severity, count in counts.model_dump().items() if count]
        typer.echo(f"  {detector}: {', '.join(severities)}")
    if summary.official:
        typer.echo(f"official verdicts: {', '.join(f'{num} {kind}' for kind, num in summary.official.items())}")
    for difference in differences[:_MAX_SHOWN]:
        kinds = f"official {difference['official']}, certified {difference['certified']}"
        typer.echo(f"  {difference['instance_id']}: {kinds}: {difference['reason']}")
    typer.echo(f"results: {folder}")

"""`repairgym tasks`: build, lock, record, verify, curate and expose; the other commands are in `task_*` modules."""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repairgym.cli.arguments import open_stored
from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import Config, DryRun, Overrides, Preset, TaskFolder, configured, resolve
from repairgym.cli.still_running import StillRunning
from repairgym.cli.task_adding import add
from repairgym.cli.task_aged import aged
from repairgym.cli.task_audit import audit, strengthen
from repairgym.cli.task_backtest import backtest
from repairgym.cli.task_calibrating import calibrate
from repairgym.cli.task_describing import describe
from repairgym.cli.task_evolve import evolve
from repairgym.cli.task_exchange import checkout, export_tasks, import_tasks
from repairgym.cli.task_fresh import fresh
from repairgym.cli.task_imported import build_imported
from repairgym.cli.task_replays import replay_tasks
from repairgym.cli.task_scan import scan
from repairgym.cli.task_views import show, stats
from repairgym.config.tasks import CurationConfig, ImportedConfig, RebuildConfig, TasksConfig
from repairgym.errors import ConfigError, InputError, Interrupted, TaskError
from repairgym.records import Task, VerdictKind
from repairgym.tasks.build.exposed_tasks import expose
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.build.verification import TaskEvidence, evidence_lines, explain_failure, verify_tasks
from repairgym.tasks.curation.curate import CURATION_FILE, CurationFunnel, curate
from repairgym.tasks.layers.catalogue import load_catalogue, shipped_path
from repairgym.tasks.layers.environments import shipped_locks_folder, write_lock
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.manifest.manifest import TaskManifest
from repairgym.tasks.record_lines import RecordLines
from repairgym.tasks.sight.scan import ScanReport
from repairgym.tasks.solve_rates import RATES_FILE, SolveRate, rates_of
from repairgym.tasks.sources.breakages import BUILD_REQUIREMENTS
from repairgym.tasks.sources.history import NOT_TRIED
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TASKS_FILE, UNITS_FOLDER, TaskStore, Unit

app = typer.Typer(
    help="Build, verify, exchange, curate and show validated repair tasks.", no_args_is_help=True, add_completion=False
)

app.command()(add)
app.command()(aged)
app.command()(fresh)
app.command("import")(import_tasks)
app.command("export")(export_tasks)
app.command()(checkout)
app.command()(describe)
app.command()(show)
app.command()(stats)
app.command()(audit)
app.command()(backtest)
app.command()(calibrate)
app.command()(evolve)
app.command("replay")(replay_tasks)
app.command()(scan)
app.command()(strengthen)


@app.command()
def build(
    folder: TaskFolder,
    overrides: Overrides = None,
    preset: Preset = "",
    config: Config = None,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="Rebuild the certified tasks of this task manifest.")
    ] = None,
    is_imported: Annotated[
        bool, typer.Option("--imported", help="Build the imported records of the folder, from local clones.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="With --imported: print the funnel as JSON.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make validated tasks from the catalogue's packages and repositories; an interrupted build resumes.

    Example: repairgym tasks build tasks limits.train=100 packages=boltons,click

    Example: repairgym tasks build tasks sources=history catalogue=repositories.toml

    Example: repairgym tasks build tasks --manifest catalog/real.toml packages=boltons

    Example: repairgym tasks build tasks --imported repos=clones environments=environments num_workers=2
    """
    if is_imported and manifest:
        raise ConfigError("got --imported and --manifest; give one of them")
    if is_imported:
        build_imported(folder, resolve(ImportedConfig, overrides, preset, config, dry_run), is_json)
        return
    if is_json:
        raise ConfigError("--json is of --imported only; without it the counts are in the folder's funnel.json")
    if manifest:
        _rebuild(folder, manifest, resolve(RebuildConfig, overrides, preset, config, dry_run))
        return
    _make(folder, resolve(TasksConfig, overrides, preset, config, dry_run))


def _check_keeps_others(folder: Path, packages: Collection[str]) -> None:
    """Raise InputError where a build of ``packages`` alone would take out the folder's tasks of others."""
    if not packages or not (folder / TASKS_FILE).is_file():
        return
    others = {task.provenance.package for task in TaskStore(folder).load_certified()} - set(packages)
    if others:
        named = ",".join((*packages, *sorted(others)))
        raise InputError(
            f"{folder} holds tasks of {', '.join(sorted(others))}, which a build of {', '.join(packages)} alone would "
            f"take out; name all of them (packages={named}; what was built is kept), or another folder"
        )


def _make(folder: Path, resolved: TasksConfig) -> None:
    """Make tasks from the catalogue and print how many each split and source has."""
    from repairgym.tasks.build import build_tasks as building
    from repairgym.tasks.sources.mutations import is_mostly_late

    _check_keeps_others(folder, resolved.packages)
    with ProgressDisplay() as progress, StillRunning(progress) as running:

        def report(done: building.Progress) -> None:
            unit = done.unit
            running.ended(unit.name)
            detail = f"{done.num_tasks} tasks, {len(unit.tasks)} of {unit.name}"
            progress("build", done.num_done, done.num_jobs, detail)
            if not unit.tasks:
                progress(unit.name, 0, 0, unit.error or _why_empty(unit))
            elif is_mostly_late(unit.funnel):
                progress(unit.name, 0, 0, unit.logs["timed_out"].partition("\n")[0])

        try:
            store = building.build(resolved, folder, report=report, started=running.started)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; finished packages are kept, the same command resumes there") from error
    tasks = store.load()
    for (split, source), count in sorted(Counter((task.split, task.source) for task in tasks).items()):
        typer.echo(f"{split:<12}{source:<12}{count:>6}")
    _print_kinds(store)
    typer.echo(f"{len(tasks)} tasks in {folder}; reasons for the others: {folder / FUNNEL_FILE}")
    typer.echo(f"the log of the first one of a reason: repairgym tasks stats {folder} --log REASON")


def _print_kinds(store: TaskStore) -> None:
    """Print how many real bugs of other kinds were left out, and how to keep them."""
    for source, counts in store.load_document(FUNNEL_FILE).get("total", {}).items():
        left = {reason.removeprefix("kind_"): count for reason, count in counts.items() if reason.startswith("kind_")}
        if left:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left.items()))
            typer.echo(f"{source}: left out by {source}.kinds: {kinds}; {source}.kinds=[] keeps all")


def _why_empty(unit: Unit) -> str:
    """Return why a unit made no task: its funnel, and the log of the most frequent reason, one of what ran first."""
    counts = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in unit.funnel.items())
    text = f"no task: {counts or 'nothing to try'}"
    if not unit.logs:
        return text
    main = max(unit.logs, key=lambda reason: (reason not in NOT_TRIED, unit.funnel.get(reason, 0)))
    return f"{text}; the first {main.replace('_', ' ')}: {' '.join(unit.logs[main].split())[:300]}"


@app.command()
def lock(
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the locks; default: the package's.")
    ] = None,
    exclude_newer: Annotated[str, typer.Option("--exclude-newer", help="RFC 3339 time: ignore later uploads.")] = "",
    catalogue: Annotated[Path | None, typer.Option("--catalogue", help="Another catalogue file.")] = None,
) -> None:
    """Lock the test environments of a catalogue: exact versions with hashes of pytest and the requirements.

    Example: repairgym tasks lock --catalogue mine.toml --output locks
    """
    for requirements in (*load_catalogue(catalogue).requirement_sets(), BUILD_REQUIREMENTS):
        typer.echo(write_lock(requirements, output or shipped_locks_folder(), exclude_newer))


@app.command()
def record(
    folder: TaskFolder,
    manifest: Annotated[Path, typer.Argument(help="TOML file of the task manifest.")],
    catalogue: Annotated[
        Path | None, typer.Option("--catalogue", help="Catalogue of the packages; default: that of the build.")
    ] = None,
    is_replacing: Annotated[
        bool, typer.Option("--replace", help="Give tasks that have an entry a new one: those made stronger.")
    ] = False,
) -> None:
    """Add certified tasks to a task manifest, new or not; entries stay as they are, unless --replace is given.

    Example: repairgym tasks record tasks catalog/real.toml
    """
    store = TaskStore(folder)
    used = store.load_document(MANIFEST_FILE).get("config", {}).get("catalogue", "")
    path = catalogue or (Path(used) if used else None)
    packages = {package.name: package for package in load_catalogue(path).select()}
    tasks = [task for task in store.load() if task.certificate.is_valid]
    is_new = not shipped_path(manifest).exists()
    opened = TaskManifest.create(manifest, tasks) if is_new else TaskManifest(manifest)
    counts = opened.add(tasks, packages, is_replacing)
    for name, count in sorted(counts.items()):
        typer.echo(f"{count} {name.replace('_', ' ')}")


def _rebuild(folder: Path, manifest_path: Path, config: RebuildConfig) -> None:
    """Rebuild the tasks of a manifest into ``folder`` and print the outcome."""
    from repairgym.tasks.manifest.rebuild import UNIT_PREFIX, RebuildProgress, rebuild_manifest

    manifest = TaskManifest(manifest_path)
    if any(not unit.name.startswith(UNIT_PREFIX) for unit in (folder / UNITS_FOLDER).glob("*.jsonl")):
        raise InputError(f"{folder} holds a build from a catalogue; name another folder for the tasks of a manifest")
    with ProgressDisplay() as progress:

        def report(done: RebuildProgress) -> None:
            progress("rebuild", done.num_done, done.num_packages, f"{done.num_tasks} tasks")
            if done.error:
                progress(done.package, 0, 0, done.error)

        try:
            store = rebuild_manifest(manifest, folder, config, report=report)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; finished packages are kept, run the same command again") from error
    counts = store.load_document(FUNNEL_FILE)["total"]["rebuild"]
    typer.echo(f"{counts['rebuilt']} of {counts['entries']} tasks in {folder}")
    if counts["rebuilt"] < counts["entries"]:
        raise TaskError(f"{counts['entries'] - counts['rebuilt']} tasks could not be rebuilt: {folder / FUNNEL_FILE}")


@app.command()
def verify(
    folder: TaskFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Task ids; all when none is given.")] = None,
    num_runs: Annotated[int, typer.Option("--runs", min=1, help="Empty runs and gold runs per task.")] = 3,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 2,
    share: Annotated[
        float, typer.Option("--share", min=0, max=1, help="Only this share of the tasks, drawn by --seed.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Draws the tasks of --share.")] = 0,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="File to add each task's runs to; tasks in it are not run again.")
    ] = None,
) -> None:
    """Validate tasks again in fresh sandboxes: every run of the empty patch fails, every run of the gold patch passes.

    --evidence stores the runs for `repairgym tasks curate`; an interrupted command resumes.

    Example: repairgym tasks verify tasks --runs 50 --evidence evidence.jsonl

    Example: repairgym tasks verify tasks --share 0.1
    """
    tasks = _draw(TaskStore(folder).load(ids=ids or ()), share, seed)
    file = evidence_lines(evidence) if evidence else None
    known = _enough_evidence(file.load(), tasks, num_runs) if file else {}
    failures = {task_id: explain_failure(proof) for task_id, proof in known.items()}
    console = Console()
    for task_id, failure in failures.items():
        _print_failure(console, task_id, failure)
    try:
        asyncio.run(_validate(console, tasks, failures, num_runs, num_concurrent, file))
    except KeyboardInterrupt as error:
        kept = "finished tasks are in the evidence file, " if file else ""
        raise Interrupted(f"interrupted; {kept}run the same command again") from error
    num_broken = sum(bool(failure) for failure in failures.values())
    if num_broken:
        raise TaskError(f"{num_broken} of {len(tasks)} tasks are broken; build them again or leave them out")
    console.print(f"{len(tasks)} tasks are valid ({num_runs} empty and {num_runs} gold runs each)", highlight=False)


def _draw(tasks: Sequence[Task], share: float, seed: int) -> Sequence[Task]:
    """Return a random ``share`` of ``tasks``, at least one, in their order."""
    if share == 1.0:
        return tasks
    drawn = {task.id for task in random.Random(seed).sample(tasks, max(1, round(share * len(tasks))))}
    return [task for task in tasks if task.id in drawn]


async def _validate(
    console: Console,
    tasks: Sequence[Task],
    failures: dict[str, str],
    num_runs: int,
    num_concurrent: int,
    file: RecordLines[TaskEvidence] | None,
) -> None:
    """Validate the tasks not in ``failures``; add task id -> failure (empty if valid) and print each failure."""
    left = [task for task in tasks if task.id not in failures]
    record = file.add if file else lambda _: None
    with ProgressDisplay() as progress:
        async for task, failure in verify_tasks(left, num_runs, num_concurrent, record=record):
            failures[task.id] = failure
            progress("verify", len(failures), len(tasks), "")
            _print_failure(console, task.id, failure)


def _print_failure(console: Console, task_id: str, failure: str) -> None:
    if failure:
        console.print(f"[red]broken[/] {escape(task_id)}: {escape(failure)}")


def _enough_evidence(
    evidence: dict[str, TaskEvidence], tasks: Sequence[Task], num_runs: int
) -> dict[str, TaskEvidence]:
    """Return the evidence with the digest of its task and at least ``num_runs`` runs of each kind."""
    digests = {task.id: task.digest() for task in tasks if task.id in evidence}
    return {
        task_id: evidence[task_id]
        for task_id, digest in digests.items()
        if evidence[task_id].task_digest == digest
        and min(evidence[task_id].num_empty_runs, evidence[task_id].num_gold_runs) >= num_runs
    }


@app.command("curate")
@configured
def curate_tasks(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the kept tasks; it must be empty.")],
    config: CurationConfig,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", help="File that repairgym tasks verify --evidence wrote.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="Run folder for solve rates; may be given several times.")
    ] = None,
    phase: Annotated[str, typer.Option("--phase", help="Phase of the runs that solve rates are taken from.")] = "rl",
    reference: Annotated[
        str, typer.Option("--reference", help="Reference policy of repairgym tasks calibrate, for solve rates.")
    ] = "",
    sightings: Annotated[
        Path | None, typer.Option("--sightings", help="Report that repairgym tasks scan --out wrote.")
    ] = None,
) -> None:
    """Filter tasks with named filters and the papers' bounds; store the reason for each task left out.

    Example: repairgym tasks curate tasks curated --evidence runs.jsonl size.max_files=3 'filters=["size", "trivial"]'

    Example: repairgym tasks curate tasks stage2 'filters=["solve_rate"]' --run runs/stage1

    Example: repairgym tasks curate tasks solvable 'filters=["solve_rate"]' solve_rate.min_samples=4 --reference base
    """
    if evidence and not evidence.is_file():
        raise InputError(f"there is no {evidence}; make it with: repairgym tasks verify {folder} --evidence {evidence}")
    seen = evidence_lines(evidence).load() if evidence else {}
    report = ScanReport.read(sightings) if sightings else None
    shown = {**dict.fromkeys(report.task_ids, ""), **report.reasons()} if report else {}
    store, rates = TaskStore(folder), read_solve_rates(runs or [], phase)
    if reference:
        rates = {**rates_of(folder / RATES_FILE, reference, store.load_certified()), **rates}
    funnel = curate(store, output, config, seen, rates, shown)
    _print_funnel(Console(), funnel)
    typer.echo(f"{funnel.num_kept} tasks in {output}; ids and reasons of the others: {output / CURATION_FILE}")


def read_solve_rates(runs: list[Path], phase: str) -> dict[str, SolveRate]:
    """Return task id -> passed and valid samples of ``phase`` over all ``runs``; exploits count as not solved."""
    passed: Counter[str] = Counter()
    valid: Counter[str] = Counter()
    for run in runs:
        with open_stored(run) as store:
            for row in store.rows(phase=phase):
                valid[row.task_id] += row.verdict is not VerdictKind.INVALID
                passed[row.task_id] += row.verdict is VerdictKind.PASSED
    if runs and not valid:
        raise InputError(f"no run has samples of the phase {phase}; name another with --phase")
    return {task_id: SolveRate(passed[task_id], count) for task_id, count in valid.items() if count}


def _print_funnel(console: Console, funnel: CurationFunnel) -> None:
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


@app.command("expose")
def expose_tasks(
    folder: TaskFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the exposed copies; it must hold no tasks.")],
    opens_test: Annotated[
        bool, typer.Option("--open-test", help="Open every second episode on the failing test instead of the source.")
    ] = False,
) -> None:
    """Copy tasks with every test visible and writable by the agent; nothing else changes.

    Example: repairgym tasks expose tasks exposed --open-test
    """
    store = TaskStore(folder)
    if (output / TASKS_FILE).exists():
        raise InputError(f"{output} holds tasks already; name a new folder")
    layers = LayerStore()
    copies = [
        expose(task, "test", pinned_tree(task, layers)) if opens_test and number % 2 == 1 else expose(task)
        for number, task in enumerate(store.load())
    ]
    exposed = [copy for copy in copies if copy]
    TaskStore(output).save(exposed, store.load_document(FUNNEL_FILE), store.load_document(MANIFEST_FILE))
    typer.echo(f"{len(exposed)} exposed tasks in {output}; grade policies trained on them with every gate")

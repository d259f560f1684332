"""`repairgym tasks show` and `repairgym tasks stats`: tasks for people to read.

A pipe gets whole lines without colors, a terminal gets colors.
"""

from itertools import chain
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from repairgym.cli.options import TaskFolder, print_json
from repairgym.errors import InputError
from repairgym.records import Task
from repairgym.tasks.imported.outcomes import BuildOutcome, OutcomeFolder
from repairgym.tasks.layers.npm_locks import NODE_PACKAGES, locked_version
from repairgym.tasks.layers.store import cache_root
from repairgym.tasks.solve_rates import RATES_FILE, MeasuredRate, count_levels, load_rates
from repairgym.tasks.statistics import PackageStatistics, markdown_table, package_statistics
from repairgym.tasks.store import FUNNEL_FILE, TaskStore
from repairgym.tasks.unbuilt import UnbuiltTask

_DIFF_COLORS = {"+": "green", "-": "red", "@": "cyan"}
_NUM_VALUES_SHOWN = 6
_PIPE_WIDTH = 200


def show(
    folder: TaskFolder,
    task_id: Annotated[str, typer.Argument(help="Task id; without it the ids are listed.")] = "",
    is_json: Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")] = False,
) -> None:
    """List the tasks of a folder, or show one: issue, patch, tests, certificate.

    For an unbuilt task it lists the missing parts.

    Example: repairgym tasks show tasks boltons-26.2.0-mutation-0123456789
    """
    store = TaskStore(folder)
    if not task_id:
        _list(store)
        return
    task = _find(store, task_id)
    if is_json:
        typer.echo(task.model_dump_json(indent=2))
    elif isinstance(task, Task):
        _print_task(Console(), task)
        _print_rates(Console(), [rate for rate in load_rates(folder / RATES_FILE) if rate.task_id == task_id], task)
    else:
        _print_unbuilt(Console(), task)
    if not is_json:
        _print_outcome(Console(), OutcomeFolder(folder).load(task_id))


def _print_rates(console: Console, rates: list[MeasuredRate], task: Task) -> None:
    """Print how often reference policies solve ``task``; a rate of another state of it says so."""
    if rates:
        _line(console, "\n[bold]solve rates[/]")
    for rate in rates:
        other = "" if rate.task_digest == task.digest() else ", measured before the task changed"
        _line(console, f"  {escape(rate.policy)} {rate.solve_rate.describe()}{other}")


def _print_outcome(console: Console, outcome: BuildOutcome | None) -> None:
    """Print how far the build of an imported task came, and how its lists of tests differ from the record's."""
    if outcome is None:
        return
    reached = outcome.stage if outcome.is_certified else f"stopped at {outcome.stage}: {outcome.reason}"
    _line(console, f"\n[bold]build[/] {escape(reached)} ({outcome.duration_s} s)")
    if outcome.left_out:
        _line(console, f"  requirements left out: {escape(', '.join(outcome.left_out))}")
    if counts := outcome.counts:
        pairs = (
            ("fail to pass", counts.num_official_fail_to_pass, counts.num_fail_to_pass),
            ("pass to pass", counts.num_official_pass_to_pass, counts.num_pass_to_pass),
        )
        for name, official, certified in pairs:
            _line(console, f"  {name}: {official} official, {certified} certified")
        for name in ("unmatched", "passed_before", "missing_before", "failed_after", "network"):
            if ids := getattr(counts, name):
                _line(console, f"  {name.replace('_', ' ')}: {escape(', '.join(ids[:_NUM_VALUES_SHOWN]))} ({len(ids)})")


def _list(store: TaskStore) -> None:
    for task in store.load_certified():
        typer.echo(f"{task.id}\t{task.split}\t{task.labels.get('operator', '')}\t{_summary(task.issue)}")
    for unbuilt in store.iter_left_unbuilt():
        typer.echo(f"{unbuilt.id}\t{unbuilt.split or ''}\t{unbuilt.format}, unbuilt\t{_summary(unbuilt.issue)}")


def _summary(issue: str) -> str:
    return next((line.strip() for line in issue.splitlines() if line.strip()), "")[:80]


def _find(store: TaskStore, task_id: str) -> Task | UnbuiltTask:
    everything = chain[Task | UnbuiltTask](store.load_certified(), store.iter_left_unbuilt())
    match = next((task for task in everything if task.id == task_id), None)
    if match is None:
        raise InputError(f"no task {task_id} in {store.folder}; see: repairgym tasks show {store.folder}")
    return match


def _print_task(console: Console, task: Task) -> None:
    origin = task.provenance
    _line(console, f"[bold]{escape(task.id)}[/] ({task.split}, {task.source}; {escape(origin.recipe)})")
    _line(console, escape(f"{origin.package} {origin.version}, {_platform(task)}"))
    if image := task.environment.image:
        _line(console, f"image {escape(image.name)} ({image.image_id[:12]}), Python in {escape(image.folder)}")
    _section(console, "issue", task.issue)
    _print_patch(console, "gold patch", task.gold_patch)
    hidden = tuple(test_id for test_id in task.fail_to_pass if test_id not in task.visible_tests)
    _print_tests(console, "visible tests", task.visible_tests)
    _print_tests(console, "hidden tests", hidden)
    _print_tests(console, "pass to pass tests", task.pass_to_pass)
    _print_table(console, "labels", task.labels)
    proof = task.certificate
    _line(console, f"\n[bold]certificate[/] {'valid' if proof.is_valid else '[red]not valid[/]'}")
    _line(console, f"  empty failed {proof.num_empty_failed}/{proof.num_empty_runs} ({proof.empty_duration_s} s each)")
    _line(console, f"  gold passed {proof.num_gold_passed}/{proof.num_gold_runs} ({proof.gold_duration_s} s each)")
    if proof.use:
        mib = [num_bytes >> 20 for num_bytes in (proof.use.peak_memory_bytes, proof.use.disk_bytes)]
        _line(console, f"  used at most {mib[0]} MiB of memory and {mib[1]} MiB of disk")
    _line(console, f"  unstable tests left out: {escape(', '.join(proof.unstable_tests)) or 'none'}")
    tools = ", ".join(f"{name} {version}" for name, version in sorted(proof.tool_versions.items()))
    _line(console, f"  made with {escape(tools) or 'tools that it does not name'}")


def _print_unbuilt(console: Console, task: UnbuiltTask) -> None:
    _line(console, f"[bold]{escape(task.id)}[/] ({task.split or 'no split'}, {task.format}, unbuilt)")
    where = f"{task.repository or 'no repository'} {task.version} at {task.base_commit or 'no commit'}"
    _line(console, escape(f"{where}; licence: {task.license or 'not named'}"))
    _section(console, "missing", "\n".join(f"- {part}" for part in task.missing))
    _section(console, "issue", task.issue)
    _print_patch(console, "gold patch", task.gold_patch)
    _print_patch(console, "patch of tests", task.test_patch)
    _print_tests(console, "fail to pass tests", task.fail_to_pass)
    _print_tests(console, "pass to pass tests", task.pass_to_pass)
    _print_table(console, "scores", {name: str(value) for name, value in task.quality_scores.items()})


def _line(console: Console, markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)


def _platform(task: Task) -> str:
    """Return the interpreter of the tests; of JavaScript also the framework."""
    if not task.runner.is_node:
        return f"Python {task.environment.python}"
    lock = task.environment.lock
    pinned = next((version for name in NODE_PACKAGES if (version := locked_version(lock, name))), "of this machine")
    framework = f"{task.runner.type} {locked_version(lock, task.runner.type)}".strip()
    return f"node {pinned}, {framework}"


def _section(console: Console, title: str, text: str) -> None:
    _line(console, f"\n[bold]{title}[/]")
    typer.echo(text.rstrip())


def _print_patch(console: Console, title: str, patch: str) -> None:
    _line(console, f"\n[bold]{title}[/]{'' if patch else ' none'}")
    for line in patch.splitlines():
        is_head = line.startswith(("+++ ", "--- ", "diff "))
        # The console would make spaces of tabs, and the patch would no longer apply.
        typer.secho(line, bold=is_head, fg=None if is_head else _DIFF_COLORS.get(line[:1]))


def _print_tests(console: Console, title: str, ids: tuple[str, ...]) -> None:
    _line(console, f"\n[bold]{title}[/] ({len(ids)})")
    for test_id in ids:
        _line(console, f"  {escape(test_id)}")


def _print_table(console: Console, title: str, values: dict[str, str]) -> None:
    if values:
        _line(console, f"\n[bold]{title}[/] " + escape(", ".join(f"{k} {v}" for k, v in sorted(values.items()))))


# --- statistics ----------------------------------------------------------------------------------------------------


def stats(
    folder: TaskFolder,
    is_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    is_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print one Markdown table, a line per package.")
    ] = False,
    reason: Annotated[str, typer.Option("--log", help="Print the first log of this row of the funnel only.")] = "",
) -> None:
    """Count the tasks of a folder per package and source: tests, edits, labels, licence, disk; and show its funnel.

    Example: repairgym tasks stats tasks

    Example: repairgym tasks stats tasks --log no_usable_tests
    """
    store = TaskStore(folder)
    if reason:
        _print_log(store, reason)
        return
    rows = package_statistics(store.load_certified(), store.iter_left_unbuilt(), cache_root())
    if is_markdown:
        from repairgym.evaluation.accuracy import accuracy_of, describe_accuracy

        typer.echo(markdown_table(rows, lambda audits: describe_accuracy(accuracy_of(audits))))
        return
    num_tasks = sum(row.num_tasks for row in rows if row.is_built)
    num_unbuilt = sum(row.num_tasks for row in rows if not row.is_built)
    # Task source, "import" or "curation" -> stage -> number, as the report shows it.
    funnel: dict[str, dict[str, int]] = store.load_document(FUNNEL_FILE).get("total", {})
    if is_json:
        packages = [row.model_dump(mode="json") for row in rows]
        rates = [rate.model_dump(mode="json") for rate in load_rates(folder / RATES_FILE)]
        counts = {"num_tasks": num_tasks, "num_unbuilt": num_unbuilt}
        print_json({**counts, "packages": packages, "funnel": funnel, "solve_rates": rates})
        return
    console = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
    console.print(_packages_table(rows))
    for row in rows:
        if row.labels:
            _line(console, f"{escape(row.package)}, {row.source}: {escape(_describe_labels(row))}")
    for policy, levels in count_levels(load_rates(folder / RATES_FILE)).items():
        _line(console, f"[bold]solve rates[/] by {escape(policy)}: {levels}")
    for name, counts in sorted(funnel.items()):
        ranked = sorted(counts.items(), key=lambda stage: (-stage[1], stage[0]))
        parts = ", ".join(f"{stage.replace('_', ' ')} {count}" for stage, count in ranked)
        _line(console, f"[bold]{escape(name)}[/]: {escape(parts)}")
    _line(console, f"{num_tasks} certified tasks, {num_unbuilt} unbuilt ones")


def _print_log(store: TaskStore, reason: str) -> None:
    """Print the log of the first drop that the row ``reason`` counts, of each source."""
    logs: dict[str, dict[str, str]] = store.load_document(FUNNEL_FILE).get("logs", {})
    matching = {source: by_reason[reason] for source, by_reason in sorted(logs.items()) if reason in by_reason}
    if not matching:
        known = sorted({name for by_reason in logs.values() for name in by_reason})
        raise InputError(f"{store.folder} has no log of {reason}; it has those of: {', '.join(known) or 'nothing'}")
    from repairgym.report.safe_text import visible

    for source, text in matching.items():
        typer.echo(f"{source}, {reason}: {visible(text)}")


def _packages_table(rows: tuple[PackageStatistics, ...]) -> Table:
    """Return a table of means per task (tasks and MB: totals); tests are fail-to-pass + pass-to-pass."""
    table = Table(
        "package", "source", "tasks", "splits", "tests", "test s", "edits", "lines", "licence", "MB", box=None
    )
    for place in (2, 4, 5, 6, 7, 9):
        table.columns[place].justify = "right"
    for row in rows:
        table.add_row(
            escape(row.package or "?"),
            row.source if row.is_built else f"{row.source}, unbuilt",
            str(row.num_tasks),
            ", ".join(f"{split} {count}" for split, count in row.splits.items()),
            f"{row.num_fail_to_pass:.1f}+{row.num_pass_to_pass:.1f}",
            "" if row.test_s is None else f"{row.test_s:.2f}",
            f"{row.num_edits:.1f}",
            f"{row.num_lines:.1f}",
            escape(row.license or "?"),
            f"{(row.record_bytes + (row.layer_bytes or 0)) / 1e6:.1f}",
        )
    return table


def _describe_labels(row: PackageStatistics) -> str:
    """Return each label with its values, the most common first."""
    parts = []
    for name, counts in row.labels.items():
        ranked = sorted(counts.items(), key=lambda value: (-value[1], value[0]))
        shown = ", ".join(f"{value} {count}" for value, count in ranked[:_NUM_VALUES_SHOWN])
        parts.append(f"{name}: {shown}{', ...' if len(ranked) > _NUM_VALUES_SHOWN else ''}")
    return "; ".join(parts)

"""`repairgym eval variance`, `merge`, `contamination`: what moves a result, what it is worth, whether it was known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli.arguments import check_tasks, find_model, load_tasks, open_stored
from repairgym.cli.options import AsJson, RunFolder, Tasks, TasksOption, configured, print_json
from repairgym.config.commands import ContaminationConfig, MergeConfig
from repairgym.errors import ConfigError, InputError

if TYPE_CHECKING:
    from repairgym.analysis.tables import Table
    from repairgym.evaluation.merging import MergeChecks, ReadFile
    from repairgym.evaluation.pass_at_k import TaskVerdicts
    from repairgym.evaluation.variance import RecipeComparison
    from repairgym.records import Record, Task, VerdictKind
    from repairgym.rollout.rows import TrajectoryRow
    from repairgym.rollout.store import RunStore

Phase = Annotated[str, typer.Option("--phase", help="Evaluation phase; default: the only one of each run.")]


def variance(
    runs: Annotated[list[Path], typer.Argument(help="Runs of one recipe with other seeds, on the same tasks.")],
    reference: Annotated[
        list[Path] | None, typer.Option(help="Run of another recipe, with the seeds in the same order; repeat.")
    ] = None,
    phase: Phase = "",
    where: Annotated[str, typer.Option(help="Only tasks with a label, difficulty=2 for example; with --tasks.")] = "",
    tasks: TasksOption = None,
    as_json: AsJson = False,
) -> None:
    """Split the variance of a result into task, seed, sample and grader; interval of the recipe's mean, or difference.

    The grader's part needs submissions that were graded twice (repairgym eval audit).

    Example: repairgym eval variance runs/seed0 runs/seed1 runs/seed2 --phase eval/rl/test-mutations
    """
    from repairgym.analysis.tables import recipe_table, variance_table
    from repairgym.evaluation.variance import MIN_SEEDS, compare_recipes, split_variance

    verdicts, regraded = {}, list[tuple["VerdictKind", "VerdictKind"]]()
    chosen = _labelled(where, tasks)
    for run in runs:
        verdicts[str(run)], graded_twice = _read(run, phase, chosen)
        regraded += graded_twice
    if reference:
        others = [_read(run, phase, chosen)[0] for run in reference]
        row = compare_recipes(list(verdicts.values()), others, names=(str(runs[0]), str(reference[0])))
        _show(recipe_table([row]), row, [_describe_difference(row)], as_json)
        return
    parts = split_variance(verdicts, regraded)
    few = f"new tasks, of these runs alone: an interval over new seeds needs {MIN_SEEDS} runs or more"
    drawn = "new tasks and seeds" if parts.num_seeds >= MIN_SEEDS else few
    interval = f"95 % {100 * parts.ci_low:.1f} to {100 * parts.ci_high:.1f}"
    sentence = f"mean Pass@1 of the recipe {100 * parts.mean:.1f} % ({interval}, {drawn})"
    _show(variance_table(parts), parts, [sentence], as_json)


def _describe_difference(row: RecipeComparison) -> str:
    from repairgym.evaluation.significance import signed_points

    interval = f"95 % interval {signed_points(row.ci_low)} to {signed_points(row.ci_high)} over new tasks"
    if row.seeds_ci_low is not None and row.seeds_ci_high is not None:
        drawn = f"{signed_points(row.seeds_ci_low)} to {signed_points(row.seeds_ci_high)}"
        interval += f", {drawn} over new tasks and seeds"
    return f"difference of the recipes' mean Pass@1: {signed_points(row.difference)} points ({interval})"


def _labelled(where: str, folder: Path | None) -> set[str] | None:
    """Return the ids of the tasks with the label ``where``; None: all tasks count."""
    from repairgym.evaluation.pass_at_k import LABELS, labels_of

    if not where:
        return None
    label, _, value = where.partition("=")
    if folder is None:
        raise InputError(f"got --where {where} without --tasks, the folder of tasks that knows their labels")
    known = {name: labels_of(task) for name, task in load_tasks(folder).items()}
    chosen = {name for name, labels in known.items() if labels.get(label) == value}
    if not chosen:
        values = sorted({f"{label}={labels[label]}" for labels in known.values() if label in labels})
        raise InputError(f"no task of {folder} has {where!r}; labels are {', '.join(values or LABELS)}")
    return chosen


def _read(run: Path, phase: str, chosen: set[str] | None) -> tuple[TaskVerdicts, list[tuple[VerdictKind, VerdictKind]]]:
    """Return verdicts of an evaluation of ``run`` by task, and the submissions of the run that were graded twice."""
    from repairgym.evaluation.pass_at_k import verdicts_by_task
    from repairgym.evaluation.runs import choose_phase

    with open_stored(run) as store:
        named = choose_phase(store, phase)
        rows = [row for row in store.rows(phase=named) if chosen is None or row.task_id in chosen]
        return verdicts_by_task(rows), _regraded(store, rows)


def _regraded(store: RunStore, rows: Iterable[TrajectoryRow]) -> list[tuple[VerdictKind, VerdictKind]]:
    """Return both verdicts of each submission of ``rows`` with an audit, unless one is invalid."""
    from repairgym.records import VerdictKind
    from repairgym.rollout.names import AUDIT

    audited = {row.id.removeprefix(AUDIT): row.verdict for row in store.rows(phase_prefix=AUDIT)}
    pairs = [(row.verdict, audited[row.id]) for row in rows if row.id in audited]
    return [pair for pair in pairs if VerdictKind.INVALID not in pair]


@configured
def merge(run: RunFolder, config: MergeConfig, tasks: TasksOption = None, as_json: AsJson = False) -> None:
    """Score how many samples passed with a patch that could be merged: size, files, complexity, lint and style.

    Every check compares with the gold patch. Needs ruff.

    Example: repairgym eval merge runs/eval --tasks tasks max_size_ratio=2
    """
    from repairgym.analysis.tables import merge_table
    from repairgym.evaluation.merging import CHECKS, check_merge, merge_score
    from repairgym.evaluation.runs import choose_phase
    from repairgym.records import VerdictKind

    known = load_tasks(tasks or run / "tasks")
    checks: dict[str, list[MergeChecks | None]] = {}
    with open_stored(run) as store:
        phase = choose_phase(store, config.phase)
        for row, document in store.documents(phase=phase):
            if row.task_id not in known:
                raise InputError(f"the run has samples of {row.task_id}, which is not in the task folder; name --tasks")
            task, is_passed = known[row.task_id], row.verdict is VerdictKind.PASSED
            held = check_merge(task, document.final_files, _reader(task), config) if is_passed else None
            checks.setdefault(row.task_id, []).append(held)
    score = merge_score(checks)
    if score is None:
        raise InputError(f"{run} has no samples in {phase!r}")
    sentence = (
        f"merge score {100 * score.value:.1f} % (95 % {100 * score.ci_low:.1f} to {100 * score.ci_high:.1f}) of Pass@1 "
        f"{100 * score.pass_at_1:.1f} %, {score.num_tasks} tasks; checked: {', '.join(CHECKS)}"
    )
    _show(merge_table(score), score, [sentence], as_json)


def _reader(task: Task) -> ReadFile:
    """Return the code that the agent began with; the tree is read for files that no repair changes."""
    from repairgym.grading.stages import read_pinned
    from repairgym.tasks.build.validation import pinned_tree
    from repairgym.tasks.layers.store import LayerStore

    def read(path: str) -> str | None:
        return task.base_files[path] if path in task.base_files else read_pinned(pinned_tree(task, LayerStore()), path)

    return read


@configured
def contamination(
    tasks: Tasks,
    config: ContaminationConfig,
    policy: Annotated[str, typer.Option(help="Model folder, base or hub id: recall of held-out functions.")] = "",
    run: Annotated[Path | None, typer.Option(help="Run: Pass@1 on tasks older and newer than known_until.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look for signs that a policy knows held-out code: likelihood against controls, and results by date.

    Example: repairgym eval contamination tasks --policy base control.splits=validation

    Example: repairgym eval contamination tasks --run runs/eval known_until=2025-06-30
    """
    from repairgym.analysis.tables import probe_table
    from repairgym.evaluation.contamination import functions_of, model_log_prob, probe_dates, probe_recall
    from repairgym.evaluation.pass_at_k import verdicts_by_task
    from repairgym.evaluation.runs import choose_phase
    from repairgym.tasks.selection import select_tasks

    if not policy and run is None:
        raise ConfigError("nothing to probe: give --policy (likelihood), or --run with known_until (dates)")
    if (run is None) != (not config.known_until):
        raise ConfigError("--run and known_until belong together: the day on which the model's corpus ends")
    check_tasks(tasks)
    known, probes = load_tasks(tasks), []
    if policy:
        held_out, control = (
            functions_of(select_tasks(known.values(), select).tasks)[: config.max_functions]
            for select in (config.select, config.control)
        )
        log_prob = model_log_prob(find_model(policy), config.max_len_tokens)
        probes.append(probe_recall(held_out, control, log_prob, config.num_renamings))
    if run is not None:
        with open_stored(run) as store:
            verdicts = verdicts_by_task(store.rows(phase=choose_phase(store, config.phase)))
        probes.append(probe_dates(verdicts, known, config.known_until))
    _show(probe_table(probes), None, [probe.sentence for probe in probes], as_json)


def _show(table: Table, record: Record | None, sentences: list[str], as_json: bool) -> None:
    from repairgym.cli.display import print_table, rows_of

    if as_json:
        values = record.model_dump(mode="json") if record else {}
        print_json({**values, "sentences": sentences, "tables": rows_of([table])})
        return
    print_table(table)
    for sentence in sentences:
        typer.echo(sentence)

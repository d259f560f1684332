"""`repairgym eval search`, `scorer`, `router`: searches by what they spend, chances of choices, models by situation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from repairgym.cli.arguments import find_model, load_tasks, open_stored, run_names
from repairgym.cli.options import AsJson, RunFolder, Tasks, TasksOption, print_json
from repairgym.config.commands import GradeCommandConfig
from repairgym.errors import ConfigError, InputError
from repairgym.records import Task

if TYPE_CHECKING:
    from repairgym.agent.routing import Member, Router
    from repairgym.analysis.tables import Table
    from repairgym.records import Trajectory
    from repairgym.solving.comparing import SearchCurve, Unit, Verdicts
    from repairgym.solving.scoring import Calibration
    from repairgym.solving.search import Solution

_ALL = "all"
_ROLLOUT = "rollout"
"""Start of the names of the phases of `repairgym rollout`."""
_UNITS = ("sampled_tokens", "forward_tokens", "test_runs", "wall_s", "cost_usd")
_EASY, _HARD = 2 / 3, 1 / 3


def search(
    tasks: Tasks,
    runs: Annotated[list[Path], typer.Argument(help="Runs of `repairgym solve`; the first one is the reference.")],
    unit: Annotated[str, typer.Option(help=f"What is spent: {', '.join(_UNITS)}.")] = "sampled_tokens",
    at: Annotated[
        list[float] | None, typer.Option(help="Budget of a task to show; may repeat. Default: quarters.")
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(help="Rollout of the same policy: difficulty by its pass rate; default: the label."),
    ] = None,
    num_workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that grade; 0: as many as fit.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare searches: accuracy by hidden tests against budget, by difficulty, paired at equal average spending.

    Patches that pass the visible tests are graded by hidden ones, once per grader version; the verdicts stay in
    RUN/search_verdicts.json.

    Example: repairgym eval search tasks runs/best_of_n runs/replay --at 50 --at 100 --at 200
    """
    if unit not in _UNITS:
        raise ConfigError(f"got --unit {unit}, expected one of {', '.join(_UNITS)}")
    from repairgym.cli.display import print_results, rows_of

    known = load_tasks(tasks)
    curves, notes = _read_curves(runs, known, cast("Unit", unit), num_workers)
    common = sorted(set.intersection(*(set(curve.solutions) for curve in curves)) & known.keys())
    if not common:
        raise InputError(f"{', '.join(map(str, runs))} have no task in common that is in {tasks}")
    groups = _groups(common, known, rates)
    tables, sentences = _tables(curves, groups, unit, at or [])
    sentences += notes
    if as_json:
        print_json({"num_tasks": len(common), "unit": unit, "sentences": sentences, "tables": rows_of(tables)})
        return
    print_results(tables, sentences)


def _read_curves(
    runs: Sequence[Path], known: Mapping[str, Task], unit: Unit, num_workers: int
) -> tuple[list[SearchCurve], list[str]]:
    """Read the runs, and grade what is not graded yet; also return what cannot be graded, in sentences."""
    from repairgym.solving.comparing import SearchCurve, Verdicts, read_solutions

    curves, notes = [], list[str]()
    for name, run in zip(run_names(runs), runs, strict=True):
        solutions, verdicts = read_solutions(run), Verdicts.read(run)
        if num_invalid := _judge(run, solutions, verdicts, known, num_workers):
            notes.append(
                f"{name}: {num_invalid} patches could not be graded and count as not right; the next call tries again"
            )
        curves.append(SearchCurve(name, solutions, verdicts.is_right, unit))
    return curves, notes


def _judge(
    run: Path, solutions: Mapping[str, Solution], verdicts: Verdicts, known: Mapping[str, Task], num_workers: int
) -> int:
    """Add verdicts by hidden tests, with every gate, and store each; return the number of invalid ones."""
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.predictions.pool import GradeRequest, GradingPool
    from repairgym.grading.predictions.results import grading_key
    from repairgym.solving.comparing import patch_key, to_judge

    config, missing = GradeCommandConfig(num_workers=num_workers), list[tuple[str, str, GradeRequest]]()
    for task_id, it in to_judge(solutions):
        if task_id in known:
            name, text = f"{task_id}/{patch_key(it)}", it.patch.encode(errors="replace").decode()
            key = grading_key(known[task_id], text, config.grading)
            if not verdicts.is_known(name, key):
                missing.append((name, key, GradeRequest(known[task_id], it.patch)))
    if not missing:
        return 0
    num_invalid = 0
    with GradingPool(config) as pool, ProgressDisplay() as progress:
        for done, (number, answer) in enumerate(pool.run([request for _, _, request in missing]), 1):
            name, key, _ = missing[number]
            verdicts.note(name, answer.verdict.kind, key)
            verdicts.save(run)
            num_invalid += not answer.verdict.is_valid
            progress("grade", done, len(missing), "patches that pass the visible tests")
    return num_invalid


def _groups(task_ids: Sequence[str], known: Mapping[str, Task], rates: Path | None) -> dict[str, list[str]]:
    """Return difficulty -> tasks; all of them under one more name."""
    groups: dict[str, list[str]] = defaultdict(list)
    groups[_ALL] += task_ids
    of_rollout = _pass_rates(rates) if rates else {}
    for task_id in task_ids:
        if not rates:
            groups[f"difficulty {known[task_id].labels.get('difficulty', 'unknown')}"].append(task_id)
        elif (rate := of_rollout.get(task_id)) is None:
            groups["not sampled"].append(task_id)
        else:
            groups["easy" if rate > _EASY else "hard" if rate < _HARD else "medium"].append(task_id)
    return groups if len(groups) > 2 else {_ALL: groups[_ALL]}


def _pass_rates(run: Path) -> dict[str, float]:
    rewards: dict[str, list[float]] = defaultdict(list)
    with open_stored(run) as store:
        for row in store.rows():
            if row.reward is not None and not row.phase.startswith("solve/"):
                rewards[row.task_id].append(float(row.reward > 0))
    return {task_id: sum(passed) / len(passed) for task_id, passed in rewards.items()}


def _tables(
    curves: Sequence[SearchCurve], groups: Mapping[str, list[str]], unit: str, at: Sequence[float]
) -> tuple[list[Table], list[str]]:
    from repairgym.analysis.tables import record_table
    from repairgym.solving.comparing import match

    every, word = groups[_ALL], unit.replace("_", " ")
    reference = curves[0]
    most = reference.budgets(every)[-1]
    budgets = at or [most * quarter / 4 for quarter in range(1, 5)]
    points = [curve.point(budget, ids, name) for name, ids in groups.items() for curve in curves for budget in budgets]
    matches = [match(curve, reference, ids, name) for name, ids in groups.items() for curve in curves[1:]]
    tables = [
        record_table("searches", f"Searches with their whole budget ({word})", [it.summary(every) for it in curves]),
        record_table("budgets", f"Accuracy against the budget of a task ({word})", points),
        record_table("matched", f"Paired differences at equal average spending ({word})", matches),
    ]
    sentences = [
        f"{it.name} - {it.reference}, {it.num_tasks} tasks, {_amount(it.spent, unit)} {word} each: "
        f"{100 * it.difference:+.1f} points (95 % interval {100 * it.ci_low:+.1f} to {100 * it.ci_high:+.1f})"
        + (f"; power 80 % to see a difference of {100 * it.detectable:.1f}" if it.detectable else "")
        for it in matches
        if it.difficulty == _ALL
    ]
    for curve in curves:
        mixed = [f"{name} ({', '.join(values)})" for name, values in curve.mixed_settings(every).items()]
        if mixed:
            sentences.append(f"{curve.name} has tasks of several searches, which differ in {', '.join(mixed)}")
        if (quality := curve.confidences(every)) is not None:
            sentences.append(f"{curve.name}: confidence of {quality.num} visible passes: {_describe(quality)}")
    return tables, sentences


def _amount(spent: float, unit: str) -> str:
    """Return a mean of what was spent; dollars and seconds have parts."""
    return f"{spent:.4g}" if unit in ("wall_s", "cost_usd") else f"{spent:.0f}"


def _describe(quality: Calibration) -> str:
    auc = "-" if quality.auc is None else f"{quality.auc:.3f}"
    return f"AUC {auc}, ECE {quality.ece:.3f}, Brier {quality.brier:.3f}, {quality.num_passed} right"


def scorer(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="File to write; solve reads it as choice.scorer.")],
    phase: Annotated[
        str, typer.Option(help="Phase with episodes on training packages; default: rl, else rollout/*.")
    ] = "",
    tasks: TasksOption = None,
    measure: Annotated[
        Path | None, typer.Option(help="Run with graded episodes of other packages to measure it on.")
    ] = None,
    measure_phase: Annotated[str, typer.Option(help="Phase of that run; default: the only evaluation.")] = "",
    as_json: AsJson = False,
) -> None:
    """Fit the chance that a patch which passes the visible tests is right; report AUC and ECE on other packages.

    Example: repairgym eval scorer RUN scorer.json --measure RUN --measure-phase eval/rft/test-mutations
    """
    from repairgym.evaluation.runs import choose_phase
    from repairgym.solving.scoring import fit_scorer, measure_scorer, save_scorer

    known = load_tasks(tasks or run / "tasks")
    with open_stored(run) as store:
        phase = phase or _training_phase({row.phase for row in store.rows() if row.split == "train"})
        fitted, num_unknown = fit_scorer(store, phase, known)
    save_scorer(fitted, out)
    result: dict[str, object] = {"phase": phase, "num_fitted": fitted.num_samples, "num_unknown": num_unknown}
    lines = [f"fitted on {fitted.num_samples} visible passes of {phase}{_left_out(num_unknown)}: {out}"]
    if measure is not None:
        others = load_tasks(tasks or measure / "tasks")
        with open_stored(measure) as store:
            chosen = choose_phase(store, measure_phase)
            quality = measure_scorer(fitted, store, chosen, others)
        result["measured"] = {"phase": chosen, **quality.model_dump()}
        measured = f"measured on {quality.num} visible passes of {chosen}{_left_out(quality.num_unknown)}"
        lines.append(f"{measured}, other packages: {_describe(quality)}")
    if as_json:
        print_json(result)
    else:
        typer.echo("\n".join(lines))


def _training_phase(names: set[str]) -> str:
    """Return the phase to fit on: rl, else the only rollout, else the only one; InputError where there are several."""
    if "rl" in names or not names:
        return "rl"
    chosen = sorted(name for name in names if name.startswith(_ROLLOUT)) or sorted(names)
    if len(chosen) > 1:
        raise InputError(f"got several phases with episodes on training packages: {', '.join(chosen)}; choose --phase")
    return chosen[0]


def _left_out(num_unknown: int) -> str:
    """Say how many episodes may pass the visible tests, of which grading has not run all."""
    if not num_unknown:
        return ""
    return (
        f" ({num_unknown} wrong ones left out: grading stopped before their visible tests, so that the numbers are too "
        "good; rollout.grading.stops_at_failure=false runs all)"
    )


def router(
    out: Annotated[Path, typer.Argument(help="File to write; it is a policy of rollout, eval run and solve.")],
    member: Annotated[
        list[str],
        typer.Option(help="MODEL=RUN or MODEL=RUN:PHASE: a model folder and its graded episodes; at least two."),
    ],
    tasks: TasksOption = None,
    as_json: AsJson = False,
) -> None:
    """Fit which of several models acts in which situation, on episodes of training and validation packages.

    Example: repairgym eval router router.json --tasks tasks --member models/rft=runs/rft --member models/rl=runs/rl

    Example: repairgym eval run tasks runs/routed --policy router.json select.splits=test
    """
    from repairgym.analysis.routing import fit_router
    from repairgym.cli.display import print_results, rows_of
    from repairgym.tasks.layers.atomic_write import written_whole

    if len(member) < 2:
        raise ConfigError(f"got {len(member)} members, expected at least two: --member MODEL=RUN --member MODEL=RUN")
    members: list[Member] = []
    episodes: dict[str, Sequence[Trajectory]] = {}
    for text in member:
        made, its_episodes = _read_member(text, tasks)
        if made.name in episodes:
            raise InputError(f"two members are named {made.name!r}; rename a model folder")
        members.append(made)
        episodes[made.name] = its_episodes
    _check_vocabularies(members)
    fitted = fit_router(members, episodes)
    with written_whole(out) as file:
        file.write(fitted.model_dump_json(indent=2).encode())
    tables, sentences = [_router_table(fitted)], [f"best single member: {fitted.best}", f"router: {out}"]
    if as_json:
        print_json({"best": fitted.best, "choices": fitted.choices, "tables": rows_of(tables)})
        return
    print_results(tables, sentences)


def _read_member(text: str, tasks: Path | None) -> tuple[Member, Sequence[Trajectory]]:
    """Return a member and its episodes on packages that are not held out."""
    from repairgym.agent.routing import Member
    from repairgym.training.evaluate import weights_digest

    model, _, stored = text.partition("=")
    run, _, phase = stored.partition(":")
    if not model or not run:
        raise ConfigError(f"got --member {text!r}, expected MODEL=RUN or MODEL=RUN:PHASE")
    folder = find_model(model).absolute()
    known = load_tasks(tasks or Path(run) / "tasks")
    with open_stored(Path(run)) as store:
        phases = list(dict.fromkeys(row.phase for row in store.rows()))
        if not phase and len(phases) != 1:
            names = ", ".join(phases) or "none"
            raise InputError(f"{run} has the phases {names}; name one: --member {model}={run}:PHASE")
        stage = phase or phases[0]
        if stage not in phases:
            raise InputError(f"{run} has no phase {stage!r}, only {', '.join(phases) or 'none'}")
        episodes = [it for it in store.trajectories(phase=stage) if _is_open(known.get(it.task_id))]
    return Member(name=folder.name, folder=str(folder), weights_digest=weights_digest(folder)), episodes


def _is_open(task: Task | None) -> bool:
    """Return True for a task that a choice may be made on."""
    return task is not None and task.split != "test"


def _check_vocabularies(members: Sequence[Member]) -> None:
    first = members[0]
    for other in members[1:]:
        if (Path(first.folder) / "tokenizer.json").read_bytes() != (Path(other.folder) / "tokenizer.json").read_bytes():
            raise InputError(f"{first.name} and {other.name} have different tokenizers; a router needs one vocabulary")


def _router_table(fitted: Router) -> Table:
    from repairgym.analysis.tables import table

    rows = [
        (at, name, cell.num_episodes, cell.num_passed, cell.value, fitted.choices[at] == name)
        for at, cells in fitted.table.items()
        for name, cell in cells.items()
    ]
    columns = ("situation", "member", "num_episodes", "num_passed", "value", "is_chosen")
    return table("router", "Members by situation", columns, rows)

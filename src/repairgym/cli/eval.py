"""`repairgym eval`: Pass@1 and Pass@k of a policy on tasks, comparisons, the matrix, audits and cold regrading."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repairgym.cli import arguments
from repairgym.cli.arguments import check_new_run, check_tasks, find_policy, load_tasks, open_stored, run_names
from repairgym.cli.eval_checks import contamination, merge, variance
from repairgym.cli.options import AsJson, NewRun, RunFolder, Tasks, TasksOption, Tokenizer, configured, print_json
from repairgym.cli.preflights import show_selection
from repairgym.cli.searches import router, scorer, search
from repairgym.config.commands import (
    NAME,
    AuditConfig,
    DataFilesConfig,
    EvalCommandConfig,
    ExploitStudyConfig,
    MatrixConfig,
)
from repairgym.config.loading import to_toml
from repairgym.config.rollout import RolloutConfig
from repairgym.config.sandbox import SandboxConfig
from repairgym.errors import ConfigError, InputError, TaskError
from repairgym.records import Task, VerdictKind
from repairgym.tasks.store import TASKS_FILE

if TYPE_CHECKING:
    from repairgym.evaluation.pass_at_k import TaskVerdicts
    from repairgym.training.run import Run

MATRIX_FOLDER = "matrix"
app = typer.Typer(help="Measure Pass@1 and Pass@k, with their uncertainty.", no_args_is_help=True, add_completion=False)
app.command()(search)
app.command()(scorer)
app.command()(router)

app.command()(variance)
app.command()(merge)
app.command()(contamination)

PhaseOption = Annotated[str, typer.Option(help="Evaluation phase; default: the only one of the run.")]


@app.command(name="run")
@partial(configured, check_dry=show_selection)
def run_command(
    tasks: Tasks,
    run: NewRun,
    config: EvalCommandConfig,
    policy: Annotated[
        str, typer.Option(help="Model folder, base or hub id, scripted policy, openai or vllm (endpoint.*).")
    ] = "base",
    model: Tokenizer = None,
    stage: Annotated[str, typer.Option(help="Name of the stored result.")] = "",
) -> None:
    """Evaluate a policy, graded cold; the sandbox must isolate.

    Example: repairgym eval run tasks runs/eval --policy runs/demo-DATE/checkpoints/rl num_samples=4
    """
    check_tasks(tasks), check_new_run(run)
    if stage and not NAME.fullmatch(stage):
        raise ConfigError(f"got --stage {stage!r}, expected letters, digits and . _ + - (it becomes part of ids)")
    from repairgym.cli.running import evaluate_policy

    ref, _, _ = evaluate_policy(tasks, run, config, policy, model, stage)
    print_evaluation(run, tasks, f"eval/{stage or ref.name}/{config.select.set_name}")


def print_evaluation(run: Path, tasks: Path, phase: str) -> None:
    """Print the results of an evaluation that has ended, its rate with the interval, and the next commands."""
    _show(run, tasks, phase)
    folder = shlex.quote(str(run))
    typer.echo(f"next: repairgym view {folder}, repairgym eval compare {folder} OTHER_RUN")


@app.command()
def show(run: RunFolder, tasks: TasksOption = None, phase: PhaseOption = "", as_json: AsJson = False) -> None:
    """Show the evaluations of a run: Pass@1, Pass@k, paired differences; of one phase also by label and best of n.

    Example: repairgym eval show runs/demo-DATE --phase eval/rl/test-mutations
    """
    from repairgym.evaluation.runs import choose_phase, evaluation_phases

    with open_stored(run) as store:
        phases = [] if phase else evaluation_phases(store)
        chosen = "" if len(phases) > 1 else choose_phase(store, phase)
    _show(run, tasks or run / "tasks", chosen, as_json)
    if not chosen and not as_json:
        typer.echo(f"by label and best of n: --phase with one of {', '.join(phases)}")


def _show(run: Path, tasks: Path, phase: str, as_json: bool = False) -> None:
    from repairgym.analysis.overview import training_phase
    from repairgym.analysis.selection import study_selection
    from repairgym.analysis.tables import (
        comparison_table,
        cost_table,
        label_table,
        pass_at_k_table,
        selection_tables,
        stage_table,
    )
    from repairgym.cli.display import print_results, rows_of
    from repairgym.evaluation.pass_at_k import by_label, labels_of, verdicts_by_task
    from repairgym.evaluation.summary import build_summary
    from repairgym.report.wording import percent

    if not (known := _certified_tasks(tasks)):
        typer.echo(f"no certified tasks in {tasks}: packages, labels and audits are unknown; see --tasks", err=True)
    with open_stored(run) as store:
        summary = build_summary(store, {}, packages=_packages_of(known), tasks=known)
        verdicts = verdicts_by_task(store.rows(phase=phase))
        study = phase and study_selection(store, phase, training_phase=training_phase(store))
    stages = summary.stages
    shown = [stage_table(stages), pass_at_k_table(stages), cost_table(stages), comparison_table(summary.comparisons)]
    if known and phase:
        shown.append(label_table(by_label(verdicts, {name: labels_of(task) for name, task in known.items()})))
    if study:
        shown.append(selection_tables(study)[0])
    sentences = [comparison.sentence for comparison in summary.comparisons]
    if as_json:
        print_json({"phase": phase, "sentences": sentences, "tables": rows_of(shown)})
        return
    print_results(shown, sentences)
    for stage in summary.stages:
        rate = stage.pass_at_1
        interval = f"95 % interval {100 * rate.ci_low:.1f} to {100 * rate.ci_high:.1f} %"
        value = f"{stage.stage} on {stage.test_set}: Pass@1 {percent(rate.value, space=' ')}, {interval}"
        typer.echo(f"{value} (verdicts: {stage.verdict_errors})")
        if stage.official_pass_at_1 is not None:
            official = (
                f"  official: {100 * stage.official_pass_at_1:.1f} %, certified: {100 * stage.pass_at_1.value:.1f} %"
            )
            typer.echo(f"{official}; {stage.num_official_undecided} of {stage.num_samples} officially undecided")


def _certified_tasks(folder: Path) -> dict[str, Task]:
    """Return id -> task; none where the folder has only imported tasks or is missing."""
    return load_tasks(folder) if (folder / TASKS_FILE).is_file() else {}


def _packages_of(tasks: dict[str, Task]) -> dict[str, str]:
    return {task_id: task.provenance.package for task_id, task in tasks.items()}


@app.command()
def compare(
    run: Annotated[Path, typer.Argument(help="Run to compare.")],
    reference: Annotated[Path, typer.Argument(help="Run to compare it with; may be the same folder.")],
    phase: PhaseOption = "",
    reference_phase: Annotated[str, typer.Option(help="Phase of the reference; default: the same.")] = "",
    tasks: TasksOption = None,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations on the tasks that both tried: paired bootstrap, and McNemar with one sample per task.

    Example: repairgym eval compare runs/a runs/b --phase eval/rl/test-mutations
    """
    from repairgym.analysis.tables import comparison_table
    from repairgym.cli.display import print_table, rows_of
    from repairgym.evaluation.significance import compare as compare_verdicts

    sides, names = [], []
    both = ((run, phase), (reference, reference_phase or phase))
    for (folder, wanted), name in zip(both, run_names((run, reference)), strict=True):
        chosen, verdicts = _verdicts(folder, wanted)
        sides.append(verdicts)
        names.append(f"{chosen} of {name}")
    packages = _packages_of(_certified_tasks(tasks or run / "tasks"))
    comparison = compare_verdicts(*sides, names=(names[0], names[1]), test_set="common tasks", clusters=packages)
    if comparison is None:
        raise InputError(f"{names[0]} and {names[1]} have no task in common")
    table = comparison_table([comparison])
    if as_json:
        print_json({"sentence": comparison.sentence, **rows_of([table])})
        return
    print_table(table)
    typer.echo(comparison.sentence)


@app.command()
def plan(
    run: RunFolder,
    reference: Annotated[Path | None, typer.Option(help="Run of another policy on the same tasks.")] = None,
    phase: PhaseOption = "",
    reference_phase: Annotated[str, typer.Option(help="Phase of the reference; default: the same.")] = "",
    num_tasks: Annotated[list[int] | None, typer.Option("--tasks", help="Tasks to plan with; may repeat.")] = None,
    num_samples: Annotated[list[int] | None, typer.Option("--samples", help="Samples per task; may repeat.")] = None,
    difference: Annotated[float, typer.Option(min=0.1, max=100, help="Difference to see, in points.")] = 5.0,
    power: Annotated[float, typer.Option(min=0.01, max=0.99, help="Probability to see it.")] = 0.8,
    correlation: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Of the two policies' rates over tasks, without a reference. Default: 0.8"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a comparison from a pilot evaluation: smallest detectable difference, power, and the tasks that it needs.

    Example: repairgym eval plan runs/a --reference runs/b --tasks 100 --tasks 350 --samples 2 --difference 4
    """
    from repairgym.analysis.tables import plan_tables
    from repairgym.cli.display import print_table, rows_of
    from repairgym.evaluation.planning import describe_variance, pilot_difference, plan_study, tasks_needed

    pilot = _verdicts(run, phase)[1]
    other = _verdicts(reference, reference_phase or phase)[1] if reference else None
    variance, note = pilot_difference(pilot, other, correlation)
    sizes, rate = num_samples or ([1] if variance.of_a_sample is None else [1, 2, 4, 8]), difference / 100.0
    studies = [
        plan_study(variance, tasks, samples, power=power, difference=rate)
        for tasks in num_tasks or [len(pilot)]
        for samples in sizes
    ]
    shown = plan_tables(studies, [(samples, tasks_needed(variance, samples, rate, power)) for samples in sizes])
    if as_json:
        print_json({"variance": variance.model_dump(), "variance_is": note, "tables": rows_of(shown)})
        return
    typer.echo(f"variance of a difference over {variance.num_tasks} tasks, {note}: {describe_variance(variance)}")
    for table in shown:
        print_table(table)


@app.command()
def rank(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; one with several evaluations is enough.")],
    phase: PhaseOption = "",
    as_json: AsJson = False,
) -> None:
    """Rank evaluations by test set, on the tasks that all have tried; says who cannot be distinguished.

    Example: repairgym eval rank runs/seed0 runs/seed1 runs/seed2 --phase eval/rl/test-mutations
    """
    from repairgym.analysis.tables import rank_table
    from repairgym.cli.display import print_table, rows_of
    from repairgym.evaluation.ranking import evaluated_policies, leaderboard
    from repairgym.evaluation.runs import evaluations

    by_run = {}
    for name, run in zip(run_names(runs), runs, strict=True):
        with open_stored(run) as store:
            by_run[name] = evaluations(store)
    boards, problems = [], list[str]()
    for name, policies in evaluated_policies(by_run, phase).items():
        try:
            boards.append(leaderboard(name, policies))
        except InputError as error:
            problems.append(f"{name} cannot be ranked: {error}")
    if problems and not boards:
        raise InputError("; ".join(problems))
    for problem in problems:
        typer.echo(problem, err=True)
    if not boards:
        raise InputError(
            f"no test set has two evaluations{f' {phase}' if phase else ''} in {', '.join(map(str, runs))}"
        )
    tables = [rank_table(board.places, board.test_set) for board in boards]
    if as_json:
        print_json(rows_of(tables))
        return
    for board, table in zip(boards, tables, strict=True):
        print_table(table)
        left_out = [f"{name} ({num})" for name, num in board.left_out.items()]
        typer.echo(board.sentence() + (f" Left out for too few tasks: {', '.join(left_out)}." if left_out else ""))


def _verdicts(run: Path, phase: str) -> tuple[str, TaskVerdicts]:
    """Return the name of an evaluation of ``run`` and its verdicts."""
    from repairgym.evaluation.pass_at_k import verdicts_by_task
    from repairgym.evaluation.runs import choose_phase

    with open_stored(run) as store:
        chosen = choose_phase(store, phase)
        return chosen, verdicts_by_task(store.rows(phase=chosen))


@app.command()
def predictions(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="File to write: JSON lines, one object per submission.")],
    phase: PhaseOption = "",
    sample: Annotated[int, typer.Option(min=0, help="Which sample of each task, in the order of seeds.")] = 0,
) -> None:
    """Write an evaluation's patches as SWE-bench predictions (instance_id, model_name_or_path, model_patch).

    Example: repairgym eval predictions runs/demo-DATE preds.jsonl --phase eval/rl/test-mutations
    """
    from repairgym.evaluation.runs import choose_phase, write_predictions

    with open_stored(run) as store:
        num = write_predictions(store, choose_phase(store, phase), sample, out)
    typer.echo(f"{num} predictions: {out}")


@app.command()
def regrade(run: RunFolder, tasks: TasksOption = None) -> None:
    """Grade every rewarded trajectory of a run again, cold, in a fresh sandbox each; not those of `solve`.

    Example: repairgym eval regrade runs/demo-20260101-120000
    """
    from repairgym.cli.display import ProgressDisplay
    from repairgym.rollout.names import AUDIT, SOLVE
    from repairgym.training.evaluate import regrade_cold

    known = load_tasks(tasks or run / "tasks")
    with open_stored(run) as store:
        passed = [row for row in store.rows() if row.verdict is VerdictKind.PASSED]
        rewarded = [store.trajectory(row.id) for row in passed if not row.phase.startswith((AUDIT, SOLVE))]
    with ProgressDisplay() as display:
        kinds = asyncio.run(regrade_cold(rewarded, known, SandboxConfig(), progress=display))
    lost = {id_: kind for id_, kind in kinds.items() if kind is not VerdictKind.PASSED}
    typer.echo(f"{len(kinds) - len(lost)} of {len(kinds)} rewarded trajectories are rewarded again")
    if lost:
        invalid = [id_ for id_, kind in lost.items() if kind is VerdictKind.INVALID]
        refuted = [id_ for id_ in lost if id_ not in invalid]
        raise TaskError(f"refuted: {', '.join(refuted[:5])}; invalid: {', '.join(invalid[:5])}")


@app.command()
def agreement(
    tasks: Tasks,
    num_per_package: Annotated[int, typer.Option("--per-package", min=0, help="Tasks per package; 0 for all.")] = 1,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 1,
) -> None:
    """Grade gold, empty and broken patches warm and cold, and list the tasks whose verdicts differ.

    Example: repairgym eval agreement tasks --per-package 2
    """
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.agreement import compare_warm_and_cold, one_per_package

    chosen = one_per_package(tuple(load_tasks(tasks).values()), num_per_package)

    async def compare() -> tuple[int, int]:
        num_different = num_pairs = num_done = 0
        with ProgressDisplay() as display:
            async for pairs in compare_warm_and_cold(chosen, num_concurrent=num_concurrent):
                num_done, num_pairs = num_done + 1, num_pairs + len(pairs)
                for pair in pairs:
                    if pair.difference:
                        num_different += 1
                        typer.echo(f"{pair.task_id} {pair.patch}: {pair.difference}")
                display("warm and cold", num_done, len(chosen), f"{num_different} differences")
        return num_different, num_pairs

    num_different, num_pairs = asyncio.run(compare())
    typer.echo(f"{num_pairs - num_different} of {num_pairs} pairs of verdicts agree ({len(chosen)} tasks)")
    if num_different:
        raise TaskError(f"{num_different} pairs of verdicts differ or are wrong for their patch")


# --- studies -------------------------------------------------------------------------------------------------------


@app.command()
@partial(configured, check_dry=show_selection)
def matrix(tasks: Tasks, run: NewRun, config: MatrixConfig) -> None:
    """Evaluate policies in environments (pipelines, tools, prompts, gates); table, heat map and findings in words.

    Example: repairgym eval matrix tasks runs/matrix --config matrix.toml num_samples=2
    """
    temperature = _common_temperature(config)
    policies = {
        name: find_policy(entry.policy, temperature, config.endpoint) for name, entry in config.policies.items()
    }
    check_tasks(tasks), check_new_run(run)
    from repairgym.analysis.tables import matrix_tables
    from repairgym.cli.display import print_table
    from repairgym.cli.running import check_policy, open_run
    from repairgym.evaluation.matrix import build_matrix
    from repairgym.inference.loading import shipped_base
    from repairgym.report.data_files import export
    from repairgym.report.figures import heat_plot
    from repairgym.report.html import write_report
    from repairgym.report.run_folder import MATRIX_FILE
    from repairgym.studies.without_learning import run_matrix

    @contextmanager
    def open_environment(rollout: RolloutConfig, model: Path) -> Iterator[Run]:
        for ref in policies.values():
            check_policy(ref, model, rollout)
        with open_run(run, tasks, model, rollout, config.seed) as opened:
            yield opened

    def keep() -> None:
        (run / MATRIX_FILE).write_text(to_toml(config), encoding="utf-8")

    run_matrix(config, policies, open_environment, shipped_base(), keep)
    with open_stored(run) as store:
        result = build_matrix(store, config)
    tables = matrix_tables(result)
    for table in tables:
        print_table(table)
    for finding in result.findings:
        typer.echo(finding)
    export(tables, [heat_plot(result)], run / MATRIX_FOLDER, DataFilesConfig())
    typer.echo(f"tables and heat map: {run / MATRIX_FOLDER}; report: {write_report(run)}")


def _common_temperature(config: MatrixConfig) -> float:
    temperature, *others = sorted({environment.temperature for environment in config.environments.values()})
    if others:
        raise ConfigError(
            f"got environments of temperatures {[temperature, *others]}; a matrix needs a single temperature"
        )
    return temperature


@app.command()
@configured
def audit(run: RunFolder, config: AuditConfig, tasks: TasksOption = None) -> None:
    """Grade rewarded submissions again with every gate and compare the rewards; resumable.

    Example: repairgym eval audit runs/rl phase=rl num_per_step=16
    """
    arguments.check_run(run)
    asyncio.run(_audit(run, tasks or run / "tasks", config))


async def _audit(run: Path, tasks: Path, config: AuditConfig) -> None:
    from repairgym.analysis.curves import gap_trend, reward_gap
    from repairgym.cli.display import ProgressDisplay
    from repairgym.report.wording import gap_claim
    from repairgym.rollout.calls import locked
    from repairgym.rollout.names import audit_phase
    from repairgym.rollout.store import RunStore
    from repairgym.training.evaluate import audit, open_grader
    from repairgym.training.run_settings import CallConfig, keep_config

    known = load_tasks(tasks)
    with locked(run), RunStore.open(run / "run.db") as store, ProgressDisplay() as progress:
        keep_config(
            run, CallConfig(f"audit-{config.phase}", config, free=("num_per_step", "num_in_flight", "sandbox.*"))
        )
        backend, grader = open_grader(config.sandbox, config.grading)
        try:
            num = await audit(store, known, config, grader, progress)
        finally:
            await backend.close()
        rows, audited = store.rows(phase=config.phase), store.rows(phase=audit_phase(config.phase))
    for point in reward_gap(rows, audited):
        typer.echo(
            f"step {point.step}: reported {point.reported:.3f}, validated {point.validated:.3f}, "
            f"gap {point.gap:+.3f} ({point.ci_low:+.3f} to {point.ci_high:+.3f}), {point.num_audited} submissions"
        )
    trend = gap_trend(rows, audited)
    typer.echo(gap_claim(trend) if trend else f"{num} submissions audited; a trend needs at least two steps")


@app.command()
@partial(configured, check_dry=show_selection)
def exploit_study(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks, best exposed ones (repairgym tasks expose).")],
    run: NewRun,
    config: ExploitStudyConfig,
) -> None:
    """Run a scripted policy whose share of cheats rises, by default graded without gates.

    Afterwards `repairgym eval audit RUN phase=exploit-study` and `repairgym report RUN` show the reward gap.

    Example: repairgym eval exploit-study exposed runs/study select.num_tasks=12
    """
    check_tasks(tasks), check_new_run(run)
    from repairgym.cli.running import open_run
    from repairgym.inference.loading import shipped_base
    from repairgym.studies.without_learning import cheat_shares, run_exploit_study
    from repairgym.training.run_settings import CallConfig

    call = CallConfig("exploit-study", config, free=("select.*", "num_samples"))
    with open_run(run, tasks, shipped_base(), config.rollout, config.seed, call=call) as opened:
        rewards = run_exploit_study(opened, config, opened.select(config.select, "tasks"))
    for step, (share, reward) in enumerate(zip(cheat_shares(config), rewards, strict=True)):
        typer.echo(f"step {step}: {share:.0%} cheats, reported reward {reward:.3f}")

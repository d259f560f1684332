"""`repairgym solve`: one budget, one patch, with the evidence and the search behind it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from repairgym.cli.arguments import check_new_run, find_policy, is_script, load_tasks, tokenizer_folder
from repairgym.cli.options import AsJson, Config, DryRun, Preset, Tokenizer, print_json, resolve
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.selection import TaskSelection
from repairgym.config.solving import SolveCommandConfig
from repairgym.errors import ConfigError, InputError, NotSolvedError
from repairgym.records import Task
from repairgym.rollout.names import SOLVE
from repairgym.tasks.layers.atomic_write import written_whole
from repairgym.tasks.store import TaskStore

if TYPE_CHECKING:
    from repairgym.solving.choice import Chooser
    from repairgym.solving.search import Solution

_FREE = ("select.*", "budget.*", "strategy.num_chains", "strategy.num_nodes", "is_abstaining", "choice.*")
"""Settings that a call may change when it continues a search."""


class Call(NamedTuple):
    """Folders, settings and candidates of a call."""

    tasks: Path
    run: Path
    config: SolveCommandConfig
    policy: str
    model: Path | None
    predictions: Path | None


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="TASKS|REPOSITORY [RUN] [SETTINGS]...",
        help="Folder of tasks, or a Python repository (--test); run folder; settings a.b=value.",
    ),
]
TaskIds = Annotated[list[str] | None, typer.Option("--task", help="Id of a task; may repeat. Default: select.*")]
TestCommand = Annotated[str, typer.Option("--test", help="Repository: the command that fails, e.g. 'pytest tests'.")]
Issue = Annotated[
    str, typer.Option("--issue", help="Repository: text for the agent, or a file with it. Default: the failure.")
]
VirtualEnvironment = Annotated[
    str, typer.Option("--python", help="Repository: virtual environment. Default: its .venv or venv, else pytest.")
]
Policy = Annotated[
    str, typer.Option(help="Model folder, base or hub id; openai, vllm (endpoint.*); scripts as in rollout.")
]
PredictionsFile = Annotated[
    Path | None, typer.Option(help="Choose among these patches (several per instance) instead of sampling.")
]
IsGraded = Annotated[bool, typer.Option("--grade", help="Grade the chosen patches by hidden tests, after the choice.")]
Output = Annotated[
    Path | None, typer.Option(help="File for the patch; of several tasks: for predictions, as `grade` reads them.")
]


def solve(
    words: Words,
    preset: Preset = "",
    config: Config = None,
    dry_run: DryRun = False,
    task: TaskIds = None,
    test: TestCommand = "",
    issue: Issue = "",
    python: VirtualEnvironment = "",
    policy: Policy = "base",
    predictions: PredictionsFile = None,
    grade: IsGraded = False,
    output: Output = None,
    model: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Search for one patch per task within a budget; visible tests choose, hidden ones are never seen.

    The patch goes to stdout, its evidence to stderr and to RUN/solutions. Ends with 10 where nothing is solved.
    Ctrl-C keeps what was sampled; the same command resumes.

    Example: repairgym solve tasks runs/one --task ID --policy runs/rl/checkpoints/rl --preset demo_eval

    Example: repairgym solve ~/src/shop runs/shop --test "pytest tests/test_prices.py" --policy base --preset demo_eval

    Example: repairgym solve tasks runs/more --task ID strategy.type=replay budget.max_sampled_tokens=2000

    Example: repairgym solve tasks runs/one --task ID --predictions preds.jsonl strategy.is_stopped_at_pass=false
    """
    source, run, settings = _read_words(words)
    if output is not None:
        _check_output(output)
    resolved = resolve(SolveCommandConfig, [*settings, *_ids(task)], preset, config, dry_run)
    call = Call(source, check_new_run(run), resolved, policy, model, predictions)
    if test:
        if task or grade:
            raise ConfigError(
                "--task and --grade are for folders of tasks; a repository has neither ids nor hidden tests"
            )
        call = _pin(call, test, issue, python)
    elif issue or python or _is_repository(source):
        raise ConfigError(f"{source} is solved as a repository with --test COMMAND, a command that fails there")
    known = load_tasks(call.tasks)
    if not all(task.gold_files for task in known.values()):  # a repository, also one that was pinned earlier
        call = call._replace(config=call.config.without_differential())
    solutions = (_choose if predictions else _sample)(call, known)
    if grade:
        solutions = _grade(call, known, solutions)
    _deliver(call, solutions, output, as_json)


def _read_words(words: list[str]) -> tuple[Path, Path, list[str]]:
    """Return the folder of tasks, the run folder and the settings of a call."""
    is_setting = ["=" in word and not Path(word).exists() for word in words]
    num_files = is_setting.index(True) if True in is_setting else len(words)
    if not 1 <= num_files <= 2:
        raise ConfigError(f"got {num_files} folders, expected TASKS [RUN]")
    source = Path(words[0])
    run = Path(words[1]) if num_files == 2 else Path("runs") / f"solve-{source.resolve().name}"
    return source, run, words[num_files:]


def _check_output(output: Path) -> None:
    """Check, before the budget is spent, that the file of the patch can be made; InputError where it cannot."""
    place = next(folder for folder in output.absolute().parents if folder.exists())
    if output.is_dir() or not place.is_dir() or not os.access(place, os.W_OK):
        raise InputError(f"got --output {output}, expected a file in a folder that can be written")


def _is_repository(source: Path) -> bool:
    return source.is_dir() and not TaskStore(source).has_tasks and any((*source.glob("*.py"), *source.glob("*/*.py")))


def _pin(call: Call, test: str, issue: str, python: str) -> Call:
    """Return the call over the task that the repository is, in the task folder of its run."""
    from repairgym.solving.repositories import Repair, pin_repository

    text = Path(issue).read_text(encoding="utf-8") if issue and _is_file(issue) else issue
    typer.echo(f"runs {test!r} twice in a sandbox", err=True)
    task = pin_repository(Repair(call.tasks, test, text, python, call.run), call.config.rollout)
    place = f"; suspected: {task.location.name} in {task.location.path}" if task.location else ""
    typer.echo(f"{task.id}: {len(task.fail_to_pass)} tests fail, {len(task.pass_to_pass)} pass{place}", err=True)
    store = TaskStore(call.run / "tasks")
    others = [known for known in store.load_certified() if known.id != task.id] if store.has_tasks else []
    store.save([*others, task], {}, {})
    select = TaskSelection(ids=(task.id,))
    return call._replace(tasks=store.folder, config=call.config.model_copy(update={"select": select}))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a text, not a name
        return False


def _ids(tasks: list[str] | None) -> list[str]:
    """Return the settings that --task means."""
    names = ", ".join(f'"{name}"' for name in tasks or ())
    return [f"select.ids=[{names}]", "select.splits=[]", "select.is_specified_only=false"] if tasks else []


def _sample(call: Call, known: dict[str, Task]) -> list[Solution]:
    """Search with the chains of a policy."""
    config = call.config
    ref = find_policy(call.policy, config.rollout.temperature, config.endpoint)
    from repairgym.cli.running import check_policy, open_run
    from repairgym.solving.search import search
    from repairgym.solving.sources import Chains
    from repairgym.solving.visible import visible_view
    from repairgym.tasks.selection import select_tasks
    from repairgym.training.evaluate import check_fingerprint, policy_fingerprint
    from repairgym.training.run_settings import CallConfig

    folder, rollout = tokenizer_folder(call.model, ref), config.strategy.sample(config.rollout)
    check_policy(ref, folder, rollout)
    if config.strategy.is_branching and is_script(call.policy):
        raise ConfigError(
            f"strategy.type={config.strategy.type!r}: a script says in a branch what it said before; use a model"
        )
    chooser = _chooser(config)
    kept = CallConfig(f"solve-{ref.name}", config, free=_FREE)
    selected = select_tasks(known.values(), config.select)
    views = [visible_view(task, is_gold_kept=is_script(call.policy)) for task in selected.tasks]
    if not rollout.num_workers and len(views) * getattr(config.strategy, "wave", 1) == 1:
        rollout = rollout.model_copy(update={"num_workers": 1})  # the others would start for nothing
    with open_run(call.run, call.tasks, folder, rollout, config.seed, call=kept) as run:
        run.progress("tasks", 0, 0, selected.summary)
        price = config.endpoint.prices.get(config.endpoint.model) if ref.endpoint else None
        phase, identity = f"{SOLVE}{ref.name}", policy_fingerprint(ref, rollout)
        check_fingerprint(run.store, phase, identity)
        with run.store.phase(phase, identity):
            return search(views, Chains(run, views, ref, phase, price), config, _saver(call), chooser)


def _chooser(config: SolveCommandConfig) -> Chooser:
    """Return the choice that ``config`` names."""
    from repairgym.solving.choice import Chooser
    from repairgym.solving.scoring import read_scorer

    scorer = read_scorer(Path(config.choice.scorer)) if config.choice.scorer else None
    return Chooser(config.choice, is_abstaining=config.is_abstaining, scorer=scorer)


def _choose(call: Call, known: dict[str, Task]) -> list[Solution]:
    """Search among the patches of a file."""
    from repairgym.cli.display import ProgressDisplay
    from repairgym.grading.predictions.pool import GradingPool
    from repairgym.grading.predictions.reading import read_predictions, reject_unknown
    from repairgym.solving.search import search
    from repairgym.solving.sources import Patches
    from repairgym.solving.visible import visible_view
    from repairgym.tasks.selection import select_tasks

    assert call.predictions is not None
    config = call.config
    if config.strategy.type != "best_of_n":
        raise ConfigError(f"strategy.type={config.strategy.type!r}: patches of a file have no turns; use best_of_n")
    if config.choice.by != "agreement" or config.choice.scorer:
        raise ConfigError(f"choice.by={config.choice.by!r}: patches of a file have no tokens; use choice.by=agreement")
    file = reject_unknown(read_predictions(call.predictions, has_several=True), known)
    for entry in file.rejected:
        typer.echo(f"left out: {entry.place}: {entry.reason}", err=True)
    views = [visible_view(task) for task in select_tasks(known.values(), config.select).tasks]
    with GradingPool(_grading(config)) as pool, ProgressDisplay() as progress:
        source = Patches(file.predictions, views, pool, progress)
        if not config.strategy.num_chains and source.num_most:
            strategy = config.strategy.model_copy(update={"num_chains": source.num_most})
            config = config.model_copy(update={"strategy": strategy})
        return search(views, source, config, _saver(call))


def _grading(config: SolveCommandConfig, *, is_final: bool = False) -> GradeCommandConfig:
    """Return the settings of a grading pool: every gate where ``is_final``, else those of a search."""
    rollout = config.rollout
    settings = GradeCommandConfig(num_workers=rollout.num_workers, sandbox=rollout.sandbox, layers=rollout.layers)
    return settings if is_final else settings.model_copy(update={"grading": rollout.grading})


def _saver(call: Call) -> Callable[[Solution], None]:
    from repairgym.solving.results import save_solution

    return partial(save_solution, call.run)


def _grade(call: Call, known: dict[str, Task], solutions: list[Solution]) -> list[Solution]:
    """Add the verdicts by hidden tests on the chosen patches."""
    from repairgym.grading.predictions.pool import GradeRequest, GradingPool

    graded = list(solutions)
    chosen = [index for index, solution in enumerate(solutions) if solution.patch]
    with GradingPool(_grading(call.config, is_final=True)) as pool:
        requests = [GradeRequest(known[solutions[index].task_id], solutions[index].patch) for index in chosen]
        for number, answer in pool.run(requests):
            index = chosen[number]
            graded[index] = solutions[index].model_copy(update={"evaluation": answer.verdict})
            _saver(call)(graded[index])
    return graded


# --- the answer ----------------------------------------------------------------------------------------------------


def _deliver(call: Call, solutions: list[Solution], output: Path | None, as_json: bool) -> None:
    """Print patch and evidence; NotSolvedError where nothing is solved."""
    from repairgym.solving.describing import describe, describe_totals

    is_single = len(solutions) == 1
    if as_json:
        records = [solution.model_dump(mode="json") for solution in solutions]
        print_json(records[0] if is_single else records)
    elif is_single:
        typer.echo(describe(solutions[0]), err=True)
    else:
        typer.echo(describe_totals(solutions))
    text = solutions[0].patch if is_single else "".join(map(_prediction, solutions))
    if output is not None:
        with written_whole(output) as file:
            file.write(text.encode("utf-8", "surrogateescape"))
    elif is_single and not as_json:
        typer.echo(text, nl=False)
    typer.echo(f"evidence: {call.run / 'solutions'}", err=True)
    if not any(solution.outcome == "solved" for solution in solutions):
        raise NotSolvedError(f"not solved: {solutions[0].why}" if is_single else "no task is solved")


def _prediction(solution: Solution) -> str:
    row = {"instance_id": solution.task_id, "model_name_or_path": "repairgym-solve", "model_patch": solution.patch}
    return json.dumps(row) + "\n"

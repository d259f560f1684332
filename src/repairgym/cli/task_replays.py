"""`repairgym tasks replay`: record the tests of tasks for the replay judge, ahead of grading."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from repairgym.cli.display import ProgressDisplay
from repairgym.cli.options import TaskFolder
from repairgym.errors import Interrupted
from repairgym.records import Task
from repairgym.tasks.replay.certifying import Measured, measure_strengths
from repairgym.tasks.store import TaskStore


def replay_tasks(
    folder: TaskFolder,
    ids: Annotated[list[str] | None, typer.Argument(help="Task ids; all when none is given.")] = None,
    num_concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Tasks at once.")] = 2,
) -> None:
    """Record and replay the tests of tasks for the replay judge; the certificates get what it can tell.

    Grading makes what is missing when it is needed first. An interrupted command resumes.

    Example: repairgym tasks replay tasks
    """
    store = TaskStore(folder)
    tasks = store.load(ids=ids or ())
    try:
        measured = asyncio.run(_measure(tasks, num_concurrent))
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; what was recorded is kept, run the same command again") from error
    store.replace(result.certified for result in measured)
    for result in measured:
        if result.reason:
            typer.echo(f"{result.task.id}: not judged: {result.reason}")
        elif result.strength.is_thin:
            typer.echo(f"{result.task.id}: thin: {result.strength.num_deciding_inputs} other inputs decide")
    strengths = [result.strength for result in measured]
    num_thin = sum(strength.is_thin for strength in strengths)
    num_told = sum(not result.reason for result in measured)
    num_scripts, num_tests = (
        sum(strength.num_scripts for strength in strengths),
        sum(strength.num_tests for strength in strengths),
    )
    num_killed = sum(strength.num_variants_killed for strength in strengths)
    num_variants = sum(strength.num_variants for strength in strengths)
    typer.echo(
        f"the replay judge can tell {num_told} of {len(tasks)} tasks; {num_scripts} of {num_tests} tests have scripts, "
        f"{num_killed} of {num_variants} variants of gold are told from it; {num_thin} tasks are thin"
    )


async def _measure(tasks: Sequence[Task], num_concurrent: int) -> list[Measured]:
    measured: list[Measured] = []
    with ProgressDisplay() as progress:
        async for result in measure_strengths(tasks, num_concurrent):
            measured.append(result)
            progress("replay", len(measured), len(tasks), "")
    return measured

"""`repairgym tasks expose`: copies of tasks on which cheating is easy, for exploit studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repairgym.errors import InputError
from repairgym.tasks.build.exposed_tasks import expose
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import FUNNEL_FILE, MANIFEST_FILE, TaskStore


def expose_tasks(
    folder: Annotated[Path, typer.Argument(help="Folder of the tasks.")],
    output: Annotated[Path, typer.Argument(help="Folder for the exposed copies; it must hold no tasks.")],
    opens_test: Annotated[
        bool, typer.Option("--open-test", help="Open every second episode on the failing test instead of the source.")
    ] = False,
) -> None:
    """Copy tasks with every test visible and in the agent's reach; nothing else about them changes.

    Example: repairgym tasks expose tasks exposed --open-test
    """
    store = TaskStore(folder)
    if (output / "tasks.jsonl").exists():
        raise InputError(f"{output} holds tasks already; name a new folder")
    layers = LayerStore()
    found = []
    for number, task in enumerate(store.load()):
        is_test = opens_test and number % 2 == 1
        one = expose(task, "test", pinned_tree(task, layers)) if is_test else expose(task)
        if one:
            found.append(one)
    documents = [store.load_document(name) for name in (FUNNEL_FILE, MANIFEST_FILE)]
    TaskStore(output).save(found, documents[0], documents[1])
    typer.echo(f"{len(found)} exposed tasks in {output}; grade policies trained on them with every gate")

"""Which build steps a task gets: those that fit it and that its gold state passes.

Reads tasks and their layers; makes the tasks with their steps. Invariants: a step that fails on the gold state is no
step of a task; tasks of one tree that import the same name share one trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from repairgym.errors import TaskError
from repairgym.records import BuildStep, Task
from repairgym.sandbox.base import SandboxBackend, SandboxLimits
from repairgym.tasks.build.build_steps import CHANGED, check_gold_builds
from repairgym.tasks.build.validation import TaskLayers, task_layers
from repairgym.tasks.layers.store import LayerStore

_CONFIGURED_BY = {
    "lint": {"ruff.toml": "", ".ruff.toml": "", "pyproject.toml": "[tool.ruff"},
    "types": {"mypy.ini": "", ".mypy.ini": "", "setup.cfg": "[mypy]", "pyproject.toml": "[tool.mypy"},
}
_TOOLS: tuple[BuildStep, ...] = (
    BuildStep(kind="lint", command=("ruff", "check", "--no-cache", CHANGED)),
    BuildStep(kind="types", command=("mypy", "--cache-dir=/dev/null", CHANGED)),
)


def candidate_steps(task: Task, layers: TaskLayers) -> tuple[BuildStep, ...]:
    """Steps that fit ``task``: each tool that the project configures and its environment has, byte-compile, import.

    Only changed files are compiled: what the pinned tree holds was when the task was certified.
    """
    name = import_name(task)
    tools = tuple(step for step in _TOOLS if _is_configured(step, layers))
    imports = (BuildStep(kind="import", modules=(name,)),) if name else ()
    is_python = any(path.endswith(".py") for path in task.gold_files)
    return (*tools, *((BuildStep(kind="compile"),) if is_python else ()), *imports)


def import_name(task: Task) -> str:
    """The top-level package or module that the gold files belong to; empty when there is not exactly one."""
    root = PurePosixPath(task.source_paths[0] if task.source_paths else "")
    paths = [PurePosixPath(path) for path in task.gold_files if path.endswith(".py")]
    tops = {path.relative_to(root).parts[0].removesuffix(".py") for path in paths if path.is_relative_to(root)}
    name = tops.pop() if len(tops) == 1 else ""
    return name if name.isidentifier() else ""


def _is_configured(step: BuildStep, layers: TaskLayers) -> bool:
    if not (layers.environment / "bin" / step.command[0]).exists():
        return False
    texts = {layers.tree / name: mark for name, mark in _CONFIGURED_BY[step.kind].items()}
    return any(path.is_file() and mark in path.read_text(errors="replace") for path, mark in texts.items())


async def with_build_steps(
    tasks: Iterable[Task], store: LayerStore, backend: SandboxBackend, limits: SandboxLimits
) -> tuple[list[Task], Counter[str]]:
    """``tasks`` with the candidate steps that their gold state passes, and how many steps fell away by kind.

    A task that has steps keeps them.

    Raises:
        SandboxError: the sandbox could not do its work.
    """
    chosen: dict[tuple[str, str, str], tuple[BuildStep, ...]] = {}
    dropped: Counter[str] = Counter()
    found: list[Task] = []
    for task in tasks:
        key = (task.base_tree, task.environment.digest, import_name(task))
        if key not in chosen and not task.build:
            layers = task_layers(task, store)
            steps = candidate_steps(task, layers)
            chosen[key] = tuple([step for step in steps if await _passes(task, step, layers, backend, limits)])
            dropped.update(f"no_{step.kind}_step" for step in steps if step not in chosen[key])
        found.append(task if task.build else task.model_copy(update={"build": chosen[key]}))
    return found, dropped


async def _passes(
    task: Task, step: BuildStep, layers: TaskLayers, backend: SandboxBackend, limits: SandboxLimits
) -> bool:
    try:
        await check_gold_builds(task.model_copy(update={"build": (step,)}), layers, backend, limits)
    except TaskError:
        return False
    return True

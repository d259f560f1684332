"""The diff as it grew: an episode's edits made again, on text alone.

Reads a trajectory, its task and the pinned tree; makes the files after each turn. Invariants: only tools that read and
write text are run again, in memory, never in a sandbox; what comes out is shown only when every edit answers what it
answered then and the last state is the submission, so a diff is right or absent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mendwright.config.pipeline import PipelineConfig
from mendwright.errors import MendError, SandboxError
from mendwright.pipelines.registry import make_pipeline
from mendwright.records import Task, Turn
from mendwright.rollout.rows import Document
from mendwright.sandbox.base import Sandbox
from mendwright.sandbox.cache import ExecutionCache
from mendwright.tasks.diffs import unified_diff
from mendwright.tasks.layers import cache_root
from mendwright.tools.base import ToolContext
from mendwright.tools.workspace import Workspace

_CONFIG = PipelineConfig()
"""The pipeline whose tools read and write text, with its defaults."""
_CHANGING = frozenset({"edit", "line", "undo", "write"})
_REPLAYED = _CHANGING | {"view"}


@dataclass(frozen=True)
class Growth:
    """What one turn did to the files."""

    step: str
    """Diff against the state before the turn; empty when the turn changed nothing."""
    whole: str
    """Diff against the code that the agent got."""


def grow(task: Task, document: Document) -> tuple[Growth, ...] | str:
    """The growth of the diff by turn, or why it cannot be told."""
    if not {turn.tool for turn in document.turns if turn.tool} <= set(_CONFIG.tools):
        return f"tools of the pipeline {document.pipeline} run in a sandbox and are not run again here"
    tree = cache_root() / "trees" / task.base_tree
    try:
        states = asyncio.run(_states(task, document.turns, tree))
    except (MendError, OSError, ValueError, TypeError, AttributeError) as error:
        return f"making the edits again ended in {type(error).__name__}"
    if states is None or (states[-1:] != [document.final_files] and document.turns):
        lacks = "" if tree.is_dir() else "; the package's source is not in the layer store of this machine"
        return f"making the edits again does not lead to what was submitted{lacks}"
    return tuple(_growths(Workspace(tree, task.base_files, _no_sandbox), states))


async def _states(task: Task, turns: tuple[Turn, ...], tree: Path) -> list[dict[str, str | None]] | None:
    """The changed files after each turn; None when an edit answers something else than it did."""
    workspace = Workspace(tree, task.base_files, _no_sandbox)
    context = ToolContext(task=task, workspace=workspace)
    pipeline = make_pipeline(_CONFIG, ExecutionCache())
    pipeline.open(context)
    states: list[dict[str, str | None]] = []
    for turn in turns:
        if turn.tool in _REPLAYED and "argument" in turn.arguments:
            tool = pipeline.tools[turn.tool]
            answer = await tool.run(context, tool.read(str(turn.arguments["argument"])))
            if turn.tool in _CHANGING and answer.text != turn.observation:
                return None
        states.append(dict(workspace.changes))
    return states


async def _no_sandbox(files: dict[str, str | None]) -> Sandbox:
    raise SandboxError("a viewer runs nothing")


def _growths(base: Workspace, states: Sequence[Mapping[str, str | None]]) -> Iterator[Growth]:
    whole = ""
    for before, after in itertools.pairwise([{}, *states]):
        if before == after:
            yield Growth("", whole)
            continue
        paths = before.keys() | after.keys()
        whole = unified_diff({path: base.read(path) for path in after}, after)
        yield Growth(
            unified_diff(
                {path: before[path] if path in before else base.read(path) for path in paths},
                {path: after[path] if path in after else base.read(path) for path in paths},
            ),
            whole,
        )
